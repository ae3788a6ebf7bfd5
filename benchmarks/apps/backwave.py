"""django_backwave."""

from __future__ import annotations

import os

from benchmarks.apps.django_tasks import TASK, connect, enqueue, prepare
from benchmarks.project import tasks
from django_backwave import enqueue_many as backwave_enqueue_many

__all__ = ["connect", "enqueue", "enqueue_many", "prepare", "sleepers"]

# Where the harness asks for it, each job has a queue of its own, which no worker has ever seen.
FRESH = os.environ.get("BENCH_FRESH_QUEUES")


def enqueue_many(numbers: list[int]) -> None:
    """Enqueue jobs in one transaction."""
    backwave_enqueue_many(TASK, [((number,), {}) for number in numbers])


def fresh(number: int) -> None:
    """Enqueue one job on a queue that nobody has used before."""
    TASK.using(queue_name=f"fresh-{number}").enqueue(number)


def sleepers(count: int, seconds: float) -> None:
    """Enqueue jobs that leave a line in the run's folder when they start, and sleep."""
    folder = os.environ["BENCH_FOLDER"]
    backwave_enqueue_many(tasks.sleeper, [((number, seconds, folder), {}) for number in range(count)])


if FRESH:
    enqueue = fresh
