"""``manage.py backwave_status``: queues, workers, and what nobody serves, for people and for alarms."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandParser

from django_backwave.management.arguments import seconds, whole
from django_backwave.management.database import usable_database
from django_backwave.store.overview import Overview, overview

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COLUMNS = ("queue", "ready", "due", "oldest_due_age", "running", "waiting", "dead_lettered", "quarantined")


class Command(BaseCommand):
    """Prints the overview; ends with 1 if a threshold given is exceeded."""

    help = "Show queues, workers and what nobody serves. Ends with 1 if a threshold is exceeded."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; all durations are seconds."""
        add = parser.add_argument
        add("--json", action="store_true", help="Print one JSON object.")
        add("--database", metavar="ALIAS", help="Where the jobs are. Default: where they are enqueued.")
        add(
            "--max-due-age",
            type=seconds(0),
            metavar="S",
            help="End with 1 if a job has been due for longer.",
        )
        add("--max-due", type=whole(0, 10**12), metavar="N", help="End with 1 if a queue has more jobs due.")
        add(
            "--max-dead",
            type=whole(0, 10**12),
            metavar="N",
            help="End with 1 if a queue has more dead-lettered and quarantined jobs.",
        )
        add(
            "--require-served",
            action="store_true",
            help="End with 1 if a queue or job name with ready jobs is served by no live worker.",
        )

    def handle(self, **options: Any) -> None:
        """Print, then judge."""
        found = overview(using=usable_database(options["database"]))
        problems = list(_problems(found, options))
        if options["json"]:
            self.stdout.write(json.dumps({**asdict(found), "problems": problems}, default=str, indent=2))
        else:
            self._show(found, problems)
        if problems:
            raise SystemExit(1)

    def _show(self, found: Overview, problems: list[str]) -> None:
        rows = [[_cell(getattr(status, column)) for column in _COLUMNS] for status in found.queues]
        self.stdout.write(_table([column.replace("_", " ") for column in _COLUMNS], rows, "No jobs."))
        self.stdout.write("")
        rows = [
            [
                worker.name,
                "all" if worker.queues is None else ", ".join(worker.queues),
                str(worker.concurrency),
                f"{worker.seen_ago:.0f} s ago",
            ]
            for worker in found.workers
        ]
        self.stdout.write(_table(["worker", "queues", "concurrency", "seen"], rows, "No worker is alive."))
        for problem in problems:
            self.stderr.write(self.style.ERROR(problem))
        for what, names in (("queue", found.unserved_queues), ("job name", found.unserved_names)):
            if names and not problems:
                self.stdout.write(self.style.WARNING(f"No live worker serves the {what}: {', '.join(names)}"))


def _problems(found: Overview, options: dict[str, Any]) -> Iterator[str]:
    for status in found.queues:
        age, dead = status.oldest_due_age or 0.0, status.dead_lettered + status.quarantined
        if options["max_due_age"] is not None and age > options["max_due_age"]:
            yield f"Queue {status.queue}: a job has been due for {age:.0f} s."
        if options["max_due"] is not None and status.due > options["max_due"]:
            yield f"Queue {status.queue}: jobs due: {status.due:,}."
        if options["max_dead"] is not None and dead > options["max_dead"]:
            yield f"Queue {status.queue}: jobs dead-lettered or quarantined: {dead:,}."
    if options["require_served"]:
        for name in found.unserved_queues:
            yield f"Queue {name}: no live worker serves it."
        for name in found.unserved_names:
            yield f"Job name {name}: no live worker serves it."


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f} s"
    if isinstance(value, str) and value != value.strip():
        return repr(value)  # or its spaces would not be seen
    return "-" if value is None else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> str:
    if not rows:
        return empty
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows))
    return "\n".join(lines)
