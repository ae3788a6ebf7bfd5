"""``manage.py chaos``: orders under SIGKILL and SIGSTOP, by an atomic job and by one that is not."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from shop.chaos import HITS, WORKERS, Chaos, Tally
from shop.demo.processes import own_surroundings
from shop.demo.show import DemoFailed
from shop.jobs import take_once, take_twice

COLUMNS = {
    "atomic": 8,
    "orders": 8,
    "kills": 7,
    "in the middle": 15,
    "freezes": 9,
    "abandoned": 11,
    "entries": 9,
    "twice": 7,
    "stock off by": 14,
    "time": 7,
}


class Command(BaseCommand):
    help = "Kill and freeze workers at random moments, and compare the ledger with the orders."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--orders", type=int, default=500, help="How many orders each run places.")
        parser.add_argument("--hits", type=int, default=HITS, help="How many kills must hit a handler.")
        parser.add_argument("--seed", type=int, default=1, help="What chance begins with.")

    def handle(self, *, orders: int, hits: int, seed: int, **_: Any) -> None:
        print(f"{WORKERS} workers on {connection.display_name}, seed {seed}.\n")
        print("".join(f"{name:>{width}}" for name, width in COLUMNS.items()), flush=True)
        try:
            with own_surroundings() as folder:
                for task in (take_once, take_twice):
                    tally = Chaos(task, folder, orders=orders, hits=hits, seed=seed).run()
                    print_tally(tally, atomic=task.atomic)
                    tally.check(atomic=task.atomic, hits=hits)
        except DemoFailed as error:
            raise CommandError(f"The chaos run failed: {error}") from error
        print("\nThe atomic job's ledger equals the orders exactly; the other's has duplicates.")


def print_tally(tally: Tally, *, atomic: bool) -> None:
    values = (
        "yes" if atomic else "no",
        tally.orders,
        tally.kills,
        tally.hits,
        tally.freezes,
        tally.abandoned,
        tally.entries,
        tally.twice,
        tally.off,
        f"{tally.seconds:.0f} s",
    )
    print(
        "".join(f"{value:>{width}}" for value, width in zip(values, COLUMNS.values(), strict=True)),
        flush=True,
    )
