"""A long run without faults: are memory and connections flat over a million jobs?

    python -m tests.chaos.soak --jobs 1000000

Every few seconds it prints what the processes use. It ends with 1 if one of them has grown between the second
quarter and the last, or if the connections have become more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.stage import Stage, stage

#: Jobs per transaction, and how many may wait: the table's size shall not be what is measured.
BATCH, BACKLOG = 500, 20_000

#: What a process may grow by in the second half, as a share, and megabytes that are no growth.
GROWTH, NOISE = 0.05, 4.0

#: So many lines have to be there for a comparison.
FEWEST = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one time."""

    seconds: float
    done: int
    waiting: int
    memory: float  # megabytes of the largest child
    connections: int

    def __str__(self) -> str:
        return (
            f"{self.seconds:8.0f} s {self.done:10,} done {self.waiting:8,} waiting"
            f" {self.memory:7.1f} MB {self.connections:4} connections"
        )


def main() -> int:
    """Read the options, and make the run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="seconds between two lines")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="backwave-soak-") as folder,
        stage(options.database, Path(folder), seats=0) as made,
    ):
        samples = soak(made, options.jobs, options.every)
    return verdict(samples)


def soak(made: Stage, jobs: int, every: float) -> list[Sample]:
    """Enqueue so many jobs while a worker with two processes runs them; return what was seen."""
    from tests.chaos.fleet import Fleet

    fleet = Fleet(made, workers=1, processes=2, clients=0, seed=0, quiet=True)
    samples: list[Sample] = []
    begin, enqueued, due = time.monotonic(), 0, 0.0
    with fleet:
        while not samples or samples[-1].done < jobs:
            waiting = _waiting()
            if enqueued < jobs and waiting < BACKLOG:
                enqueued += _enqueue(min(BATCH, jobs - enqueued))
            else:
                threading.Event().wait(0.05)
            fleet.tend()
            if (now := time.monotonic() - begin) >= due or (enqueued == jobs and waiting == 0):
                due = now + every
                samples.append(_sample(now, enqueued, waiting))
                print(samples[-1], flush=True)
        fleet.stop_workers()
        for complaint in fleet.complaints():
            print(f"WRONG: {complaint}")
    return samples


def verdict(samples: list[Sample]) -> int:
    """Say whether it is flat; 1 if it is not."""
    if len(samples) < FEWEST:
        print("That was too short to say anything: give it more --jobs.")
        return 0
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]
    memory = [max(sample.memory for sample in part) for part in (before, after)]
    connections = [max(sample.connections for sample in part) for part in (before, after)]
    print(f"second quarter: {memory[0]:.1f} MB, {connections[0]} connections")
    print(f"last quarter:   {memory[1]:.1f} MB, {connections[1]} connections")
    grown = memory[1] > memory[0] * (1 + GROWTH) + NOISE or connections[1] > connections[0]
    print("It has grown." if grown else "It is flat.")
    return int(grown)


def _enqueue(count: int) -> int:
    from django_backwave import enqueue_many
    from tests.chaos.handlers import nothing

    return len(enqueue_many(nothing, [((), {})] * count))


def _waiting() -> int:
    from django_backwave.core.states import JobState
    from django_backwave.models import Job

    # A sum of two counts along small indexes, however many jobs have ended.
    return sum(Job.objects.filter(state=state.value).count() for state in (JobState.READY, JobState.RUNNING))


def _sample(seconds: float, enqueued: int, waiting: int) -> Sample:
    from django_backwave.models import Worker
    from tests.chaos.fleet import memory

    # A quiet worker does not say who its children are; the table does.
    largest = max((memory(pid) for pid in Worker.objects.values_list("pid", flat=True)), default=0.0)
    return Sample(seconds, enqueued - waiting, waiting, largest, _connections())


def _connections() -> int:
    from django.db import connection

    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        return cursor.fetchone()[0]


if __name__ == "__main__":
    sys.exit(main())
