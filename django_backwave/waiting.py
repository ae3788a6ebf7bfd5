"""Waiting for the end of one generation of a job; ``JobHandle`` is what users call.

On PostgreSQL the end is told by a notification, everywhere else it is found by looking, less and less often.
How the time is spent is decided by ``core.patience``; here is what looks, listens and pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID

from asgiref.sync import sync_to_async

from django_backwave.backend import jobs_database
from django_backwave.compat import TaskResultDoesNotExist
from django_backwave.core.patience import Patience
from django_backwave.core.states import JobState
from django_backwave.exceptions import CannotWait, JobCancelled, JobFailed, JobPruned, WaitTimeout
from django_backwave.handles import JobHandle
from django_backwave.payload import shown
from django_backwave.store import awaited, clock
from django_backwave.store.notify import alias_to_listen, cannot_listen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django_backwave.results import JobResult

logger = logging.getLogger("django_backwave.waiting")


class Shell(NamedTuple):
    """What a wait takes from outside: its own clock in seconds, two ways to sleep, and chance in [0, 1)."""

    monotonic: Callable[[], float] = clock.monotonic
    sleep: Callable[[float], object] = time.sleep
    asleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = clock.chance


def wait(handle: JobHandle, timeout: float | timedelta | None, *, shell: Shell | None = None) -> Any:
    """Do what ``JobHandle.wait`` says."""
    with _Wait(handle, _seconds(timeout), shell or Shell()) as one:
        one.begin()
        while (result := one.look()) is None:
            if one.tries_to_listen():
                one.listen()
            else:
                one.pause()
        return result.output


async def await_(handle: JobHandle, timeout: Any, *, shell: Shell | None = None) -> Any:
    """Do what ``JobHandle.await_`` says: queries run where Django runs them, and pauses in the event loop."""
    with _Wait(handle, _seconds(timeout), shell or Shell()) as one:
        begin, look, listen = (sync_to_async(step) for step in (one.begin, one.look, one.listen))
        await begin()
        while (result := await look()) is None:
            if one.tries_to_listen():
                await listen()
            else:
                await one.apause()
        return result.output


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(
            f"timeout must be seconds from 0 or a timedelta, or None to wait for ever, got {shown(timeout)}."
        )
    return float(seconds)


class _Wait:
    """One wait: what it looks at, and what it listens with."""

    def __init__(self, handle: JobHandle, timeout: float | None, shell: Shell) -> None:
        self._handle, self._timeout, self._shell = handle, timeout, shell
        self._id = UUID(handle.id)
        self._using = jobs_database()
        self._state = JobState.READY
        self._ear: awaited.Ear | None = None
        self._listening = False
        self._over = False
        self._lock = threading.Lock()  # a listener that was begun in a thread may come when all is over
        self._began = shell.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            self._hang_up()

    def begin(self) -> None:
        """Raise CannotWait where a wait would be in vain. Else the first look is next."""
        if awaited.transaction_is_open(self._using):
            raise CannotWait(
                f"A transaction is open on {self._using!r}: a job that it has enqueued cannot start before "
                "it commits, and all that it has locked would stay locked meanwhile. Wait after the atomic() "
                "block; under ATOMIC_REQUESTS, in a view with @transaction.non_atomic_requests."
            )
        hidden = awaited.is_hidden(self._using)
        if hidden and self._timeout is None and self.look() is None:
            raise CannotWait(
                f"Job {self._handle} is {self._state.label} inside of a test's transaction, where no worker "
                "sees it, and so it would never end. Call run_jobs() before you wait."
            )
        self._alias = None if hidden else _listening_alias(self._using)
        self._patience = Patience(self._began, self._timeout, may_listen=self._alias is not None)

    def look(self) -> JobResult | None:
        """Return the result of a job that has ended well, None if it has not ended.

        Raises JobFailed, JobCancelled or JobPruned.
        """
        state = awaited.stand(self._id, using=self._using)
        if state is None:
            raise self._pruned()
        self._state = state
        return self._ended() if state.is_terminal else None

    def _ended(self) -> JobResult | None:
        try:
            result = self._handle.get_result()
        except TaskResultDoesNotExist:
            raise self._pruned() from None
        told = f"Job {self._handle} is {result.state.label}: {result.cause}"
        match result.state:
            case JobState.SUCCEEDED:
                return result
            case JobState.CANCELLED:
                raise JobCancelled(told, self._handle, result)
            case JobState.DEAD_LETTERED | JobState.QUARANTINED:
                raise JobFailed(told, self._handle, result)
        return None  # somebody has sent it back just now

    def _pruned(self) -> JobPruned:
        latest, settled_as = _latest(self._handle, self._using)
        told = f"There is no job {self._handle} any more: it was pruned, or its enqueue was rolled back."
        if settled_as is not None:
            told = f"There is no job {self._handle} any more: it ended {settled_as.label}, and was pruned."
        elif latest is not None:
            told += f" The latest generation of its key is {latest.generation}: job {latest.id}."
        return JobPruned(told, self._handle, latest, settled_as)

    def tries_to_listen(self) -> bool:
        """Whether to listen now, and not to pause. Raises WaitTimeout if the time is up."""
        now = self._shell.monotonic()
        if self._patience.is_over(now):
            raise WaitTimeout(
                f"Job {self._handle} has not ended within {self._timeout:g} seconds: it was "
                f"{self._state.label} when last seen, and goes on. Wait again with the same handle, or "
                "cancel it.",
                self._handle,
                self._state,
            )
        return not self._listening and self._patience.tries_to_listen(now)

    def listen(self) -> None:
        """Try to listen for the end; to be followed by a look, for it may just have come."""
        try:
            if self._ear is None:
                self._take(awaited.Ear.lent(self._alias or self._using))
            self._listening = self._ear is not None and awaited.mark(self._id, using=self._using)
        except Exception:
            self._lost()

    def _take(self, ear: awaited.Ear | None) -> None:
        with self._lock:
            if ear is not None and self._over:
                ear.close()
            else:
                self._ear = ear

    def pause(self) -> None:
        """Pause until the next look."""
        seconds = self._next_pause()
        if self._ear is None or not self._listening:
            self._shell.sleep(seconds)
            return
        try:
            self._ear.wait_for(self._id, seconds)
        except Exception:
            self._lost()

    async def apause(self) -> None:
        """Pause until the next look, from a coroutine."""
        seconds, ear = self._next_pause(), self._ear
        if ear is None or not self._listening:
            await self._shell.asleep(seconds)
            return
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(ear, self._hear, ear, loop, heard)
        except NotImplementedError:  # not every event loop watches sockets
            self._lost()
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await heard.wait()
        finally:
            if self._listening:
                loop.remove_reader(ear)

    def _hear(self, ear: awaited.Ear, loop: asyncio.AbstractEventLoop, heard: asyncio.Event) -> None:
        """Set the event once there is something to look at."""
        try:
            if ear.hears_of(self._id):
                heard.set()
        except Exception:
            # At once: the descriptor of a lost connection is free, and may soon be somebody else's.
            loop.remove_reader(ear)
            self._lost()
            heard.set()

    def _next_pause(self) -> float:
        now, chance = self._shell.monotonic(), self._shell.chance()
        return self._patience.pause(now, listening=self._listening, chance=chance)

    def _lost(self) -> None:
        logger.debug("action=notify_failed job=%s: the wait goes on by polling", self._id, exc_info=True)
        self._hang_up()

    def _hang_up(self) -> None:
        self._listening = False
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.close()


def _listening_alias(using: str) -> str | None:
    """Return the alias over which to hear of ends, None where there is nothing to hear."""
    alias = alias_to_listen(using)
    return None if alias is None or cannot_listen(alias) else alias


def _latest(handle: JobHandle, using: str) -> tuple[JobHandle | None, JobState | None]:
    """Return the latest generation of a pruned job's key, and how the job itself ended, if that is known."""
    found = None if handle.key is None else awaited.newest(handle.queue, handle.key, using=using)
    if found is None:
        return None, None
    latest = JobHandle(
        id=str(found.job_id),
        queue=handle.queue,
        key=handle.key,
        generation=found.generation,
        name=found.name,
        schema=found.schema,
    )
    return latest, found.settled_as if latest == handle else None
