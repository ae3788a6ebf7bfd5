"""``run_jobs()``: a worker for tests, in the current thread, over the test's own connections."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_backwave import discovery, hooks
from django_backwave.backend import jobs_database
from django_backwave.instants import to_rim
from django_backwave.payload import check_queue, shown
from django_backwave.testing import clock
from django_backwave.testing.autocommit import as_in_autocommit
from django_backwave.testing.loop import Loop
from django_backwave.testing.runs import Run, RunError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def run_jobs(
    *,
    queue: str | Iterable[str] | None = None,
    limit: int | None = None,
    until: datetime | timedelta | None = None,
    raise_errors: bool = True,
) -> list[Run]:
    """Run the jobs that are due, in this thread and over its connections; return the attempts, in order.

    Jobs that these enqueue run, too, as far as they are due. ``queue``: only of this one, or of these.
    ``limit``: this many attempts at most. ``until``: from due time to due time, up to that instant or for
    that long; it moves the clock that ``virtual_clock`` has opened, else one for this call.

    What a handler raises is recorded as by a worker, and then raised here; the jobs behind it stay due.
    GiveUp, Retry and Snooze are a handler's own words, and are not raised. Without ``raise_errors`` nothing
    is: look at the outcomes. Raises RunError after 500 attempts without a limit; and, with
    ``raise_errors``, for a job that no handler serves, or that was timed out.
    """
    _refuse_event_loop()
    queues = _checked_queues(queue)
    _check_limit(limit)
    discovery.discover_once()
    hooks.around()  # a wrong path is no job's failure
    with ExitStack() as stack:
        stack.enter_context(_alone())
        end = None
        if until is not None:
            moving = clock.current() or stack.enter_context(clock.virtual_clock())
            end = _end(until, moving.tell(jobs_database()))
        stack.enter_context(as_in_autocommit())
        return Loop(queues, limit, end, raise_errors=raise_errors).run()


async def arun_jobs(
    *,
    queue: str | Iterable[str] | None = None,
    limit: int | None = None,
    until: datetime | timedelta | None = None,
    raise_errors: bool = True,
) -> list[Run]:
    """Do what ``run_jobs`` does, from a coroutine: in the thread in which Django runs its queries."""
    run = partial(run_jobs, queue=queue, limit=limit, until=until, raise_errors=raise_errors)
    return await sync_to_async(run, thread_sensitive=True)()


_running = False


@contextmanager
def _alone() -> Iterator[None]:
    global _running
    if _running:
        raise RunError("run_jobs() was called by what it runs. It runs what handlers enqueue anyway.")
    _running = True
    try:
        yield
    finally:
        _running = False


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunError("run_jobs() was called from a coroutine. Write: await arun_jobs().")


def _checked_queues(queue: str | Iterable[str] | None) -> list[str] | None:
    if queue is None:
        return None
    names: Sequence[Any] = [queue] if isinstance(queue, str) else list(queue)
    return [check_queue(name, "run_jobs()") for name in names]


def _check_limit(limit: object) -> None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        return
    raise ValueError(f"limit must be a number of attempts from 1, or None, got {shown(limit)}.")


def _end(until: datetime | timedelta, now: datetime) -> datetime:
    if not isinstance(until, datetime | timedelta):
        raise TypeError(
            f"until must be a datetime, or a timedelta from now on, got {shown(until)}. "
            "For example: until=timedelta(hours=1)."
        )
    end = now + until if isinstance(until, timedelta) else clock.checked_instant(until, "until")
    if end < now:
        raise ValueError(f"until must not be past: it is {to_rim(now)}, got {to_rim(end)}.")
    return end
