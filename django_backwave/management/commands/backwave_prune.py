"""``manage.py backwave_prune``: delete what ended long ago, beside what the workers delete themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandParser

from django_backwave import conf
from django_backwave.management.arguments import number
from django_backwave.management.database import usable_database
from django_backwave.store.doctor.results import counted
from django_backwave.store.keys import SLICE as FORGET_SLICE
from django_backwave.store.keys import forget, forget_idle, forgettable
from django_backwave.store.operations import SLICE as OPERATIONS_SLICE
from django_backwave.store.operations import prune as prune_operations
from django_backwave.store.retention import SLICE, prunable, prune, prune_workers

if TYPE_CHECKING:
    from collections.abc import Callable

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
        add(
            "--keys-idle-for",
            type=number(0, MOST_DAYS, "days"),
            metavar="D",
            help="Forget keys, too, that nobody has asked for in so long and of which no job is left, also "
            "those that are unique for ever. A later enqueue with such a key begins anew. Default: none.",
        )
        add("--dry-run", action="store_true", help="Say how many would be deleted, and delete none.")
        add("--database", metavar="ALIAS", help="Where the jobs are. Default: where they are enqueued.")

    def handle(self, **options: Any) -> None:
        """Delete slice by slice until nothing old is left."""
        using = usable_database(options["database"])
        keep_done = _age(options["done_days"], "KEEP_DONE")
        keep_dead = _age(options["dead_days"], "KEEP_DEAD")
        days = options["keys_idle_for"]
        idle_for = None if days is None else days * DAY
        if options["dry_run"]:
            jobs = prunable(keep_done=keep_done, keep_dead=keep_dead, using=using)
            self._tell("Would delete", jobs, "Would forget", forgettable(idle_for=idle_for, using=using))
            return
        total = _in_slices(partial(prune, keep_done=keep_done, keep_dead=keep_dead, using=using), SLICE)
        keys = _in_slices(partial(forget, using=using), FORGET_SLICE)
        if idle_for is not None:
            keys += forget_idle(idle_for, using=using)
        _in_slices(partial(prune_operations, using=using), OPERATIONS_SLICE)
        prune_workers(using=using)
        self._tell("Deleted", total, "Forgot", keys)

    def _tell(self, deleted: str, jobs: int, forgot: str, keys: int) -> None:
        told = f"{deleted} {counted(jobs, 'job')}."
        self.stdout.write(f"{told} {forgot} {counted(keys, 'key')}." if keys else told)


def _in_slices(prune: Callable[[], int], most: int) -> int:
    """Prune slice by slice until one is not full; return how many there were in all."""
    total = 0
    while True:
        count = prune()
        total += count
        if count < most:
            return total


def _age(days: float | None, setting: str) -> float | None:
    return conf.seconds_or_none(setting) if days is None else days * DAY
