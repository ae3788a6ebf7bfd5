"""``manage.py backwave_prune``: delete what ended long ago, beside what the workers delete themselves."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_backwave import conf
from django_backwave.management.arguments import number
from django_backwave.management.database import usable_database
from django_backwave.store.retention import SLICE, prunable, prune, prune_workers

DAY = 24 * 3600.0  # seconds
MOST_DAYS = 100_000


class Command(BaseCommand):
    """Deletes in slices, each in a transaction of its own."""

    help = "Delete jobs that ended long ago, with their attempts. Workers do the same by themselves."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; ages are days."""
        add = parser.add_argument
        for option, setting, states in (
            ("--done-days", "KEEP_DONE", "succeeded and cancelled"),
            ("--dead-days", "KEEP_DEAD", "dead-lettered and quarantined"),
        ):
            add(
                option,
                type=number(0, MOST_DAYS, "days"),
                metavar="D",
                help=f"Delete {states} jobs that ended longer ago. Default: BACKWAVE {setting}.",
            )
        add("--dry-run", action="store_true", help="Say how many would be deleted, and delete none.")
        add("--database", metavar="ALIAS", help="Where the jobs are. Default: where they are enqueued.")

    def handle(self, **options: Any) -> None:
        """Delete slice by slice until nothing old is left."""
        using = usable_database(options["database"])
        keep_done = _age(options["done_days"], "KEEP_DONE")
        keep_dead = _age(options["dead_days"], "KEEP_DEAD")
        if options["dry_run"]:
            count = prunable(keep_done=keep_done, keep_dead=keep_dead, using=using)
            self.stdout.write(f"Would delete {count:,} jobs.")
            return
        total = 0
        while count := prune(keep_done=keep_done, keep_dead=keep_dead, using=using):
            total += count
            if count < SLICE:
                break
        prune_workers(using=using)
        self.stdout.write(f"Deleted {total:,} jobs.")


def _age(days: float | None, setting: str) -> float | None:
    return conf.seconds_or_none(setting) if days is None else days * DAY
