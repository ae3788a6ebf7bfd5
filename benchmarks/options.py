"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import contestants

#: Each measure, and what its flag says.
MEASURES = {
    "drain": "how fast jobs that were enqueued beforehand are finished, with one and two workers",
    "enqueue": "how fast jobs are enqueued, one by one and in bulk",
    "pickup": "how long a job waits for an idle worker",
    "flat": "drain over millions of rows, 500 queues and an old snapshot (django_backwave alone)",
    "sqlite": "drain and locks on SQLite (django_backwave alone)",
    "memory": "peak and growth of a worker's memory (django_backwave alone)",
    "recovery": "what becomes of a killed worker's jobs (django_backwave alone)",
}
#: How much of everything, as a rule and with --quick.
SIZES = {
    "jobs": (10_000, 1_000, "jobs of a drain; the slow contestants get fewer"),
    "rounds": (3, 1, "rounds, in turn, of which the median counts"),
    "singly": (2_000, 200, "jobs enqueued one by one"),
    "bulk": (10_000, 2_000, "jobs enqueued in bulk"),
    "waits": (200, 20, "jobs whose pick-up is timed"),
    "flat-jobs": (20_000, 1_000, "jobs of each drain of --flat"),
    "ready": (1_000_000, 5_000, "jobs that are due, for --flat"),
    "finished": (5_000_000, 20_000, "jobs that have finished, for --flat"),
    "future": (1_000_000, 5_000, "jobs due tomorrow, for --flat"),
    "seconds": (60, 5, "seconds of load with and without a snapshot, for --flat"),
    "sqlite-jobs": (5_000, 500, "jobs of a drain on SQLite"),
    "memory-jobs": (1_000_000, 5_000, "jobs over which memory is watched"),
    "lease": (10, 3, "seconds of the lease for --recovery"),
}
#: The sizes that each measure depends on.
SIZES_OF = {
    "drain": ("concurrency", "jobs", "rounds"),
    "enqueue": ("singly", "bulk", "rounds"),
    "pickup": ("concurrency", "waits"),
    "flat": ("concurrency", "flat-jobs", "ready", "finished", "future", "seconds", "rounds"),
    "sqlite": ("concurrency", "sqlite-jobs", "rounds"),
    "memory": ("concurrency", "memory-jobs"),
    "recovery": ("concurrency", "lease"),
}
#: The measures that compare contestants; the others are about django_backwave alone.
COMPARING = ("drain", "enqueue", "pickup")
RABBITMQ = "amqp://guest:guest@127.0.0.1:5672"
REDIS = "redis://127.0.0.1:6379/0"


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure django_backwave beside other queues. Where no measure is named, it takes all. "
        " The report and the raw results go to build/bench. See benchmarks/README.md.",
    )
    measures = made.add_argument_group("measures")
    measures.add_argument("--all", action="store_true", help="all of these; an hour or more")
    for name, text in MEASURES.items():
        measures.add_argument(f"--{name}", action="store_true", help=text)
    what = made.add_argument_group("what, and where")
    what.add_argument("--only", metavar="NAMES", help=f"contestants: {', '.join(contestants.BY_NAME)}")
    what.add_argument("--postgres-url", metavar="URL", help="a server to use instead of one of our own")
    what.add_argument("--rabbitmq-url", metavar="URL", default=RABBITMQ, help=f"default: {RABBITMQ}")
    what.add_argument("--redis-url", metavar="URL", default=REDIS, help=f"default: {REDIS}")
    what.add_argument("--source", metavar="PATH", help="another checkout to take django_backwave from")
    what.add_argument(
        "--concurrency", type=int, default=10, metavar="N", help="jobs a worker runs at once; 10"
    )
    what.add_argument("--add", action="store_true", help="keep the last report's other measures")
    what.add_argument(
        "--publish", action="store_true", help="only put the last report into docs/benchmarks.md"
    )
    sizes = made.add_argument_group("sizes")
    sizes.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    for name, (usual, quick, text) in SIZES.items():
        sizes.add_argument(
            f"--{name}", type=positive, metavar="N", help=f"{text}; {usual:,}, quick {quick:,}"
        )
    return made


def positive(text: str) -> int:
    """Return a whole number above 0; argparse tells of the ValueError."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options, every size filled in; `measures` and `chosen` say what to measure, and of whom.

    Ends the process, with a word on standard error, where something is wrong.
    """
    made = parser()
    options = made.parse_args(arguments)
    named = [name for name in MEASURES if getattr(options, name)]
    options.measures = list(MEASURES) if options.all or not named else named
    for name, (usual, quick, _) in SIZES.items():
        key = name.replace("-", "_")
        if getattr(options, key) is None:
            setattr(options, key, quick if options.quick else usual)
    options.sizes = {
        measure: {name: getattr(options, name.replace("-", "_")) for name in names}
        for measure, names in SIZES_OF.items()
    }
    try:
        options.chosen = contestants.chosen(options.only.split(",") if options.only else None)
    except ValueError as error:
        made.error(str(error))
    return options
