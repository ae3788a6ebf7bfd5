"""One attempt in a handler's thread: route it, run the handler, and turn what happens into an outcome."""

from __future__ import annotations

import logging
import traceback
from asyncio import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_backwave import registry
from django_backwave.context import Completion, JobContext, StopSwitch
from django_backwave.core.outcome import (
    Cancelled,
    ErrorInfo,
    Failed,
    InDoubt,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Unroutable,
)
from django_backwave.core.protocol import Claimed, Report, StopReason
from django_backwave.exceptions import GiveUp, NotAtomic, Snooze, Stopped
from django_backwave.models.fields import decode_json
from django_backwave.payload import encode_output
from django_backwave.store.atomic import DatabaseBusy, Gate, LeaseGone, completing
from django_backwave.worker import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from django_backwave.jobs import BackWaveTask

logger = logging.getLogger("django_backwave.worker")

#: Characters of a message and of a traceback that are kept; of a traceback the end says most.
MESSAGE_LENGTH, TRACEBACK_LENGTH = 4_000, 30_000


@dataclass(slots=True)
class Execution:
    """An attempt that this worker runs. Its instants are monotonic seconds.

    ``interrupt``: what cancels the handler while it runs, if it is async. ``completed``: told when an atomic
    block has recorded the success while the handler goes on.
    """

    job: Claimed
    worker: str
    switch: StopSwitch
    claimed_at: float
    using: str = field(kw_only=True)
    completed: Callable[[], None] = field(kw_only=True)
    started_at: float | None = None
    ended_at: float | None = None
    error: BaseException | None = field(default=None, repr=False)
    report: Report | None = field(default=None, repr=False)
    interrupt: Callable[[], object] | None = field(default=None, repr=False)
    gate: Gate | None = field(default=None, repr=False)
    landed: bool = False

    @property
    def started_after(self) -> float | None:
        """Seconds from the claim to the handler's start, None if it has not started."""
        return None if self.started_at is None else self.started_at - self.claimed_at

    @property
    def seconds(self) -> float:
        """Return how long the handler ran."""
        if self.started_at is None or self.ended_at is None:
            return 0.0
        return self.ended_at - self.started_at

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function and belongs on the event loop."""
        task = registry.resolve(self.job.name)
        return task is not None and iscoroutinefunction(task.func)

    @property
    def _doubtful(self) -> bool:
        """Whether a COMMIT with the success in it ended in an error."""
        return self.gate is not None and self.gate.written and not self.landed

    def tell(self, reason: StopReason) -> None:
        """Give the handler a reason to stop; an async one is cancelled, too."""
        self.switch.tell(reason)
        if self.interrupt is not None:
            self.interrupt()

    def run(self) -> Report:
        """Run the handler, unless the attempt is to stop before it starts. Raises nothing."""
        call = self._route()
        if not isinstance(call, _Call):
            return self._ended(call)
        return self._ended(self._atomic(call) if call.task.atomic else self._outcome(call))

    async def arun(self) -> Report:
        """Do what ``run`` does with an async handler."""
        call = self._route()
        return self._ended(await self._aoutcome(call) if isinstance(call, _Call) else call)

    def _route(self) -> _Call | Outcome:
        """Return the call to make; or the outcome, if the handler is not to start."""
        if self.switch.reason is not None:
            return self._stopped()
        task = registry.resolve(self.job.name)
        if task is None:
            return Unroutable(f"no handler here is named {self.job.name!r}")
        try:
            args, kwargs = _arguments(self.job.payload)
        except (ValueError, RecursionError) as error:
            return Unroutable(f"the payload is not of the form this version reads: {error}")
        misfit = registry.binds(task, args, kwargs)
        if misfit is not None:
            return Unroutable(f"the arguments do not fit {task.module_path}: {misfit}")
        context = [self._context(task)] if task.takes_context else []
        if not task.atomic:
            self.started_at = clock.monotonic()
        return _Call(task, partial(task.func, *context, *args, **kwargs))

    def _outcome(self, call: _Call) -> Outcome:
        try:
            return _succeeded(call.task, call.function())
        except BaseException as error:
            return self._raised(call.task, error)

    async def _aoutcome(self, call: _Call) -> Outcome:
        try:
            return _succeeded(call.task, await call.function())
        except BaseException as error:
            return self._raised(call.task, error)

    def _atomic(self, call: _Call) -> Outcome:
        """Run a handler whose writes and whose success are one transaction."""
        self.gate = Gate()
        output = Succeeded("null")

        def report() -> Report:
            return self._report(output)

        try:
            with self._completing(self.gate, report):
                self.started_at = clock.monotonic()
                output = _succeeded(call.task, call.function())
        except (DatabaseBusy, LeaseGone):
            return Released()  # after a lost lease the fence refuses this, too
        except BaseException as error:
            return self._raised(call.task, error)
        self.landed = True
        return output

    @contextmanager
    def _block(self, task: BackWaveTask) -> Iterator[Completion]:
        """Be ``context.atomic()``."""
        self._refuse_block(task)
        done, self.gate = Completion(), Gate()
        try:
            with self._completing(self.gate, lambda: self._report(_succeeded(task, done.output))):
                yield done
        except LeaseGone:
            self.switch.tell(StopReason.LEASE_LOST)
            raise Stopped(StopReason.LEASE_LOST) from None
        self.landed = True
        self.completed()

    def _refuse_block(self, task: BackWaveTask) -> None:
        if task.atomic:
            raise NotAtomic(f"{task.module_path} is atomic as a whole: write without context.atomic().")
        if iscoroutinefunction(task.func):
            raise NotAtomic(f"{task.module_path} is a coroutine function, which no transaction can span.")
        if self.gate is not None and self.gate.written:
            raise NotAtomic(f"{task.module_path} has completed its job already: context.atomic() works once.")
        if connections[self.using].in_atomic_block:
            raise NotAtomic(
                f"{task.module_path} has a transaction open on {self.using!r}: context.atomic() must be the "
                "outermost. Leave that block first."
            )

    def _completing(self, gate: Gate, report: Callable[[], Report]) -> AbstractContextManager[None]:
        return completing(gate, self.job, worker=self.worker, report=report, using=self.using)

    def _in_doubt(self, task: BackWaveTask, error: BaseException) -> Outcome:
        self.error = error
        return InDoubt(describe(error), final=task.is_final(error))

    def _raised(self, task: BackWaveTask, error: BaseException) -> Outcome:
        if self._doubtful:
            return self._in_doubt(task, error)
        if isinstance(error, Snooze):
            return Snoozed(error.seconds)
        if _means_stop(error) and self.switch.reason is not None:
            return self._stopped()
        error.__traceback__ = _beyond_us(error.__traceback__)
        self.error = error
        return Failed(describe(error), final=isinstance(error, GiveUp) or task.is_final(error))

    def _ended(self, outcome: Outcome) -> Report:
        self.ended_at = clock.monotonic()
        if self._doubtful and not isinstance(outcome, InDoubt):
            # The handler went on after its block had failed in COMMIT: what it made of that does not count.
            outcome = InDoubt(describe(self.error or NotAtomic("the commit of context.atomic() failed")))
        if self.landed and not isinstance(outcome, Succeeded):
            logger.warning(
                "action=after_completion job=%s name=%s: what the handler did after its atomic block changes "
                "nothing of the job",
                self.job.job_id,
                self.job.name,
                exc_info=self.error,
            )
        self.report = self._report(Succeeded("null") if self.landed else outcome, settled=self.landed)
        return self.report

    def _report(self, outcome: Outcome, *, settled: bool = False) -> Report:
        return Report(
            job=self.job,
            outcome=outcome,
            jitter=clock.random(),
            started_after=self.started_after,
            settled=settled,
        )

    def _context(self, task: BackWaveTask) -> JobContext:
        return JobContext(
            claimed=self.job,
            task=task,
            worker=self.worker,
            switch=self.switch,
            atomic=partial(self._block, task),
        )

    def _stopped(self) -> Outcome:
        # A lost lease is reported as a hand-back: whatever is reported, only the fence refuses it.
        return Cancelled() if self.switch.reason is StopReason.CANCEL else Released()


@dataclass(frozen=True, slots=True)
class _Call:
    """A handler with its arguments."""

    task: BackWaveTask
    function: Callable[[], Any]


def _succeeded(task: BackWaveTask, value: Any) -> Succeeded:
    return Succeeded(encode_output(task.module_path, value))


def _arguments(payload: str) -> tuple[list[Any], dict[str, Any]]:
    value = decode_json(payload)
    args = value.get("args") if isinstance(value, dict) else None
    kwargs = value.get("kwargs") if isinstance(value, dict) else None
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError('it is not {"args": [...], "kwargs": {...}}')
    return args, kwargs


def _means_stop(error: BaseException) -> bool:
    """Whether an exception, or each leaf of a group, says that the handler stopped as it was told."""
    if isinstance(error, BaseExceptionGroup):
        return all(_means_stop(leaf) for leaf in error.exceptions)
    return isinstance(error, Stopped | CancelledError)


def _beyond_us(frames: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the handler: our own frames say nothing."""
    theirs = frames
    while theirs is not None and theirs.tb_frame.f_code.co_filename == __file__:
        theirs = theirs.tb_next
    return theirs or frames


def describe(error: BaseException) -> ErrorInfo:
    """Return an exception as text that every database takes."""
    kind = type(error)
    try:
        message = str(error)
    except BaseException as broken:  # SystemExit would end the thread
        message = f"<its __str__ raised {type(broken).__name__}>"
    try:
        told = "".join(traceback.format_exception(error))
    except BaseException as broken:
        told = f"<formatting the traceback raised {type(broken).__name__}>"
    return ErrorInfo(
        class_path=storable(f"{kind.__module__}.{kind.__qualname__}"),
        message=storable(message)[:MESSAGE_LENGTH],
        traceback=storable(told)[-TRACEBACK_LENGTH:],
    )


def storable(text: str) -> str:
    """Replace what no database stores: NUL and lone surrogates."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
