"""``context.once(name)``: a durable mark around an effect outside the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from asgiref.sync import sync_to_async

from django_backwave.context import Once
from django_backwave.core.protocol import StopReason
from django_backwave.exceptions import NotOnce, Stopped
from django_backwave.payload import check_mark, encode_result
from django_backwave.store import mark
from django_backwave.worker.connections import LONGEST_STATEMENT, second_connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from django_backwave.context import StopSwitch
    from django_backwave.core.protocol import Claimed


class OnceBlock:
    """The block around one effect, for ``with`` and for ``async with``.

    Each of its two writes opens a connection of its own and closes it again: the handler's may be anywhere,
    and one that stood idle during a slow effect might be gone when it is needed.
    """

    def __init__(
        self,
        name: str,
        *,
        job: Claimed,
        worker: str,
        using: str,
        switch: StopSwitch,
        refuse: Callable[[], None],
    ) -> None:
        """Take what the fence asks for. ``refuse`` raises NotOnce where a mark cannot be kept."""
        self._name = check_mark(name)
        self._job = job
        self._worker = worker
        self._using = using
        self._switch = switch
        self._refuse = refuse
        self._once: Once | None = None

    def __enter__(self) -> Once:
        """Mark the effect as begun."""
        _refuse_event_loop(self._name)
        self._refuse()
        with self._connection() as alias:
            marked = mark.begin(self._job.key, self._name, worker=self._worker, using=alias)
        if marked is None:
            self._stop()
        self._once = Once(first=marked.first, done=marked.done, result=marked.result)
        return self._once

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Mark the effect as done, after a clean end; after an exception it stays begun."""
        once = self._once
        if kind is not None or once is None or once.done:
            return
        result = encode_result(f"context.once({self._name!r})", once.result)
        self._refuse()
        with self._connection() as alias:
            done = mark.finish(self._job.key, self._name, result, worker=self._worker, using=alias)
        if not done:
            self._stop()

    async def __aenter__(self) -> Once:
        """Do what ``with`` does, in the slot's own thread."""
        return await sync_to_async(self.__enter__, thread_sensitive=True)()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do what ``with`` does, in the slot's own thread."""
        await sync_to_async(self.__exit__, thread_sensitive=True)(kind, error, trace)

    def _connection(self) -> AbstractContextManager[str]:
        lease = self._job.lease_seconds or 2 * LONGEST_STATEMENT
        return second_connection(self._using, lease=lease)

    def _stop(self) -> NoReturn:
        self._switch.tell(StopReason.LEASE_LOST)
        raise Stopped(StopReason.LEASE_LOST)


def _refuse_event_loop(name: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NotOnce(f"A coroutine writes `async with context.once({name!r})`: a mark takes a query.")
