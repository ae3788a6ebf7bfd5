"""The work: a task that does nothing but say when it ran, once as a function and once as a coroutine."""

from __future__ import annotations

import os
import time
from pathlib import Path

from django.tasks import task

from benchmarks.stamps import record


@task()
def noop(number: int) -> None:
    """Run in a thread."""
    record(number)


if os.environ.get("BENCH_ASYNC"):  # not every backend takes coroutine functions

    @task()
    async def async_noop(number: int) -> None:
        """Run in an event loop."""
        record(number)


@task()
def sleeper(number: int, seconds: float, folder: str) -> None:
    """Say when it started, in a line of its own, and sleep. For runs in which workers are killed."""
    with (Path(folder) / f"{number}.txt").open("a") as file:
        file.write(f"{time.monotonic()} {os.getpid()}\n")
    time.sleep(seconds)
