"""``manage.py backwave_doctor``: whether a database keeps what the package promises; it only reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_backwave import discovery, registry
from django_backwave.management.arguments import number, seconds, whole
from django_backwave.management.database import usable_database
from django_backwave.store.doctor import Limits, Severity, examine

if TYPE_CHECKING:
    from django_backwave.store.doctor import Result

#: What the command ends with: as monitoring systems have it, 3 means that nothing can be said.
EXIT_CODES = {Severity.WARNING: 1, Severity.ERROR: 2}
CANNOT_TELL = 3

_LIMITS = Limits()


class Command(BaseCommand):
    """Prints what the checks found; ends with 0, 1 (warnings), 2 (errors) or 3 (cannot tell)."""

    help = "Check the invariants of the jobs' database. Reads only. Ends with 1 for warnings, 2 for errors."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; all durations are seconds."""
        add = parser.add_argument
        add("--json", action="store_true", help="Print one JSON object with every check.")
        add("--database", metavar="ALIAS", help="Where the jobs are. Default: where they are enqueued.")
        add(
            "--rows",
            type=whole(1, 1_000_000),
            default=_LIMITS.rows,
            metavar="N",
            help="Jobs of each state that are looked at. Default: %(default)s.",
        )
        add(
            "--timeout",
            type=number(0.01, 3600, "seconds"),
            default=_LIMITS.timeout,
            metavar="S",
            help="The longest time for one statement. Default: %(default)s.",
        )
        add(
            "--max-due-age",
            type=seconds(0),
            default=_LIMITS.due_age,
            metavar="S",
            help="Warn if a job has been due for longer. Default: %(default)s.",
        )
        add(
            "--max-transaction-age",
            type=seconds(0),
            default=_LIMITS.transaction_age,
            metavar="S",
            help="Warn if a transaction has been open for longer. Default: %(default)s.",
        )

    def handle(self, **options: Any) -> None:
        """Examine, print, and tell by the exit code."""
        try:
            using = usable_database(options["database"])
        except CommandError as error:
            raise CommandError(str(error), returncode=CANNOT_TELL) from error
        limits = Limits(
            rows=options["rows"],
            timeout=options["timeout"],
            due_age=options["max_due_age"],
            transaction_age=options["max_transaction_age"],
        )
        results = examine(known=_known_names(), limits=limits, using=using)
        code = max(EXIT_CODES.get(result.severity, 0) for result in results)
        if options["json"]:
            content = {"exit_code": code, "checks": [asdict(result) for result in results]}
            self.stdout.write(json.dumps(content, indent=2))
        else:
            self._show(results, options["verbosity"])
        if code:
            raise SystemExit(code)

    def _show(self, results: list[Result], verbosity: int) -> None:
        styles = {Severity.ERROR: self.style.ERROR, Severity.WARNING: self.style.WARNING}
        for result in results:
            if result.severity in styles or verbosity > 1:
                line = f"{result.severity}: {result.check}: {result.text} {result.remedy}".strip()
                self.stdout.write(styles.get(result.severity, str)(line))
        if verbosity == 1:
            self.stdout.write(_summary(results))


def _known_names() -> list[str] | None:
    try:
        discovery.discover_once()
    except ImportError:
        return None
    return registry.names()


def _summary(results: list[Result]) -> str:
    of = [result.severity for result in results]
    blind = [result.check for result in results if result.severity is Severity.UNAVAILABLE]
    told = f"{len(of)} checks: {of.count(Severity.ERROR)} errors, {of.count(Severity.WARNING)} warnings"
    return f"{told}; not available here: {', '.join(blind)}." if blind else f"{told}."
