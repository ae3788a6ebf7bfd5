"""Async handlers: one event loop in a thread, and a slot for each that runs.

asgiref runs the synchronous parts of a coroutine, database queries above all, in one thread for the whole
process, where one handler's transaction would take in another's writes. So each slot has a thread-sensitive
context, and with it a thread and connections, of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_backwave.worker import clock
from django_backwave.worker.connections import Hygiene
from django_backwave.worker.handlers import touch_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from django_backwave.core.protocol import Report
    from django_backwave.worker.execution import Execution

logger = logging.getLogger("django_backwave.worker")

#: Seconds for which one slot may go from handler to handler while the loop's other tasks wait.
YIELD_EVERY = 0.002


class _Offspring:
    """What the handler of a context has begun: tasks, and calls in other threads."""

    __slots__ = ("calls", "tasks")

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls: set[Future[Any]] = set()

    def __bool__(self) -> bool:
        return bool(self.tasks or self.calls)

    async def wait(self) -> None:
        """Wait until one of them has ended."""
        calls = [asyncio.wrap_future(call) for call in list(self.calls)]
        if left := [*self.tasks, *calls]:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)


_offspring: contextvars.ContextVar[_Offspring | None] = contextvars.ContextVar(
    "backwave_offspring", default=None
)


@contextmanager
def _alone() -> Iterator[None]:
    """Begin tasks that are nobody's offspring."""
    token = _offspring.set(None)
    try:
        yield
    finally:
        _offspring.reset(token)


class _Kept(threading.local):
    """What keeps the connections of each of the loop's threads fit."""

    def __init__(self) -> None:
        self.hygiene = Hygiene()


_kept = _Kept()


def _fit[**P, T](function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function with connections that work, and leave none to the next with a transaction open."""
    _kept.hygiene.before()
    try:
        return function(*args, **kwargs)
    finally:
        _kept.hygiene.after()


class _Threads(ThreadPoolExecutor):
    """The loop's threads for blocking calls (``asyncio.to_thread``), which no cancellation stops.

    Each call is noted with the handler that made it: that has stopped only when its calls have.
    """

    def submit[**P, T](self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(_fit, function, *args, **kwargs)
        offspring = _offspring.get()
        if offspring is not None:
            offspring.calls.add(future)
            future.add_done_callback(offspring.calls.discard)
        return future


class Coroutines:
    """Runs async handlers, as many at once as are submitted, each in a slot that is used again."""

    def __init__(self, *, ended: Callable[[Report], Execution | None]) -> None:
        """Take the callback for ended attempts; what it returns runs next in the same slot."""
        self._ended = ended
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(_task_factory)
        self._loop.set_default_executor(_Threads())
        self._idle: list[asyncio.Queue[Execution]] = []
        self._slots: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self._yield_at = 0.0
        self.thread = threading.Thread(target=self._run, name="backwave-loop", daemon=True)

    def start(self) -> None:
        """Start the loop's thread."""
        self.thread.start()

    def submit(self, execution: Execution) -> None:
        """Run an attempt. Safe from any thread."""
        self._loop.call_soon_threadsafe(self._place, execution)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while self._broken is None:
            try:
                self._loop.run_forever()
            except BaseException:
                # SystemExit in a task that a handler began, and left alone, ends `run_forever`.
                logger.exception("action=loop_interrupted: a handler's own task raised")
        logger.critical("action=slot_broken", exc_info=self._broken)

    def _place(self, execution: Execution) -> None:
        if self._idle:
            inbox = self._idle.pop()
        else:
            inbox = asyncio.Queue()
            slot = self._loop.create_task(self._serve(inbox), context=contextvars.Context())
            self._slots.add(slot)
            slot.add_done_callback(self._slot_broke)
        inbox.put_nowait(execution)

    def _slot_broke(self, slot: asyncio.Task[None]) -> None:
        """End the thread, and with it the worker: nobody would report the attempt in that slot."""
        self._broken = (None if slot.cancelled() else slot.exception()) or RuntimeError("a slot ended")
        self._loop.stop()

    async def _serve(self, inbox: asyncio.Queue[Execution]) -> None:
        async with ThreadSensitiveContext() as mine:
            hygiene = Hygiene()
            touch_shared()
            base = contextvars.copy_context()
            following: Execution | None = None
            has_thread = False
            while True:
                execution = following or await self._undisturbed(inbox.get())
                if execution is None:
                    continue
                if has_thread:
                    await self._undisturbed(_in_thread(hygiene.before))
                report = await self._attempt(execution, base.copy())
                has_thread = has_thread or _has_thread(mine)
                if has_thread:
                    # Runs behind whatever the handler left there: so it has really stopped now.
                    await self._undisturbed(_in_thread(hygiene.after))
                following = self._ended(report)
                if following is None:
                    self._idle.append(inbox)
                elif clock.monotonic() >= self._yield_at:
                    # Handlers that never wait would keep the others from going on.
                    await self._undisturbed(asyncio.sleep(0))
                    self._yield_at = clock.monotonic() + YIELD_EVERY

    async def _attempt(self, execution: Execution, context: contextvars.Context) -> Report:
        offspring = _Offspring()
        context.run(_offspring.set, offspring)
        # Begins at once: a handler that never waits costs no round of the loop.
        task = asyncio.Task(execution.arun(), loop=self._loop, context=context, eager_start=True)
        if task.done():  # it never waited
            report = None if task.cancelled() else task.result()
        else:
            execution.interrupt = partial(self._loop.call_soon_threadsafe, task.cancel)
            if execution.switch.reason is not None:  # told in its first step
                task.cancel()
            report = await self._undisturbed(task)
            execution.interrupt = None
        while offspring:
            for one in list(offspring.tasks):
                one.cancel()
            await self._undisturbed(offspring.wait())
        return report or execution.never_ran()

    async def _undisturbed[T](self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T | None:
        """Wait for something to end, whoever cancels this slot; None if it was itself cancelled.

        A handler may cancel every task of the loop. It must not take the slots of others with it.
        """
        if isinstance(work, asyncio.Task):
            task = work
        else:
            with _alone():
                task = self._loop.create_task(work)
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                slot = asyncio.current_task()
                if slot is not None:
                    slot.uncancel()
        return None if task.cancelled() else task.result()


def _has_thread(context: ThreadSensitiveContext) -> bool:
    """Whether a slot has a thread of its own: one whose handlers never left the loop has none."""
    return context in SyncToAsync.context_to_thread_executor


async def _in_thread(function: Callable[[], None]) -> None:
    """Run a function in the thread of the slot that this is called in."""
    await sync_to_async(function, thread_sensitive=True)()


def _task_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """Make tasks as asyncio does, and note those that a handler begins."""
    context = options.get("context")
    task = asyncio.Task(coroutine, loop=loop, **options)
    offspring = context.get(_offspring) if context is not None else _offspring.get()
    if offspring is not None:
        offspring.tasks.add(task)
        task.add_done_callback(offspring.tasks.discard)
    return task
