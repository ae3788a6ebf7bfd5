"""One attempt in a handler's thread: route it, run the handler, and turn what happens into an outcome."""

from __future__ import annotations

import contextvars
import logging
import traceback
from asyncio import CancelledError
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django_backwave import hooks, identity, registry
from django_backwave.context import Completion, JobContext, StopSwitch
from django_backwave.core.jsontext import decode_json
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
    timed_out,
)
from django_backwave.core.protocol import Claimed, Report, StopReason
from django_backwave.exceptions import GiveUp, NotAtomic, NotOnce, Retry, Snooze, Stopped
from django_backwave.notes import Notes
from django_backwave.payload import encode_output
from django_backwave.store import clock as database_clock
from django_backwave.store.atomic import DatabaseBusy, Gate, LeaseGone, completing
from django_backwave.worker import clock
from django_backwave.worker.connections import in_transaction
from django_backwave.worker.once import OnceBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from django_backwave.jobs import BackWaveTask
    from django_backwave.notes import Progress

logger = logging.getLogger("django_backwave.worker")

#: Characters of a message and of a traceback that are kept; of a traceback the end says most.
MESSAGE_LENGTH, TRACEBACK_LENGTH = 4_000, 30_000

#: Seconds until a job is due again whose transaction could not begin.
BUSY_DELAY = 1.0


@dataclass(slots=True)
class Execution:
    """An attempt that this worker runs. Its instants are monotonic seconds.

    ``using``: the alias by which the handler knows the jobs' database; ``marks_using``: the one by which
    marks are written, if that is another. ``taken_at``: when it got its slot, ``started_at``: when its
    handler began.
    ``interrupt``: what cancels the handler while it runs, if it is async. ``completed``: told when an atomic
    block has recorded the success while the handler goes on. ``began``: told when the handler starts, in its
    context. ``overdue``: the report made for it when it had not stopped at its time-out. ``notes``: what the
    handler says meanwhile. ``around``: the project's context managers around the handler. ``recorded``: the
    report that an atomic completion has written. ``context``: a copy of the handler's context, made at its
    end.
    """

    job: Claimed
    worker: str
    switch: StopSwitch
    claimed_at: float
    using: str = field(kw_only=True)
    completed: Callable[[], None] = field(kw_only=True)
    marks_using: str | None = field(default=None, kw_only=True)
    overdue: Report | None = field(default=None, repr=False)
    taken_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    error: BaseException | None = field(default=None, repr=False)
    report: Report | None = field(default=None, repr=False)
    interrupt: Callable[[], object] | None = field(default=None, repr=False)
    gate: Gate | None = field(default=None, repr=False)
    landed: bool = False
    began: Callable[[Execution], object] | None = field(default=None, repr=False)
    notes: Notes = field(default_factory=Notes, repr=False)
    around: tuple[hooks.Hook, ...] = field(default=(), repr=False)
    recorded: Report | None = field(default=None, repr=False)
    context: contextvars.Context | None = field(default=None, repr=False)

    @property
    def started_after(self) -> float | None:
        """Seconds from the claim to the handler's start, None if it has not started."""
        return None if self.started_at is None else self.started_at - self.claimed_at

    @property
    def seconds(self) -> float:
        """Return how long the handler ran, or has been running by now."""
        if self.started_at is None:
            return 0.0
        return (clock.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function and belongs on the event loop."""
        task = registry.resolve(self.job.name)
        return task is not None and registry.is_async(task)

    @property
    def _doubtful(self) -> bool:
        """Whether a COMMIT with the success in it ended in an error."""
        return self.gate is not None and self.gate.written and not self.landed

    def tell(self, reason: StopReason) -> None:
        """Give the handler a reason to stop; an async one is cancelled, too."""
        interrupt = self.interrupt  # another thread may take it away
        if self.switch.tell(reason) and interrupt is not None:
            interrupt()

    def run(self) -> Report:
        """Run the handler, unless the attempt is to stop before it starts. Raises nothing."""
        self.taken_at = clock.monotonic()
        try:
            call = self._route()
            if isinstance(call, _Call):
                return self._ended(self._atomic(call) if call.task.atomic else self._outcome(call))
            return self._ended(call)
        except BaseException as error:  # of an exception that breaks whoever looks at it, say
            return self._ended(Failed(describe(error)))

    async def arun(self) -> Report:
        """Do what ``run`` does with an async handler."""
        self.taken_at = clock.monotonic()
        try:
            call = self._route()
            return self._ended(await self._aoutcome(call) if isinstance(call, _Call) else call)
        except BaseException as error:
            return self._ended(Failed(describe(error)))

    def never_ran(self) -> Report:
        """Report an attempt that was taken back, or a task cancelled by somebody, before its first step."""
        return self._ended(Released())

    def _route(self) -> _Call | Outcome:
        """Return the call to make; or the outcome, if the handler is not to start."""
        if self.switch.reason is not None:
            return self._stopped()
        task = registry.resolve(self.job.name)
        if task is None:
            return Unroutable(f"no handler here is named {self.job.name!r}")
        misread = identity.misread(task, self.job.schema)
        if misread is not None:
            return Unroutable(misread)
        try:
            args, kwargs = _arguments(self.job.payload)
        except (ValueError, RecursionError) as error:
            return Unroutable(f"the payload is not of the form this version reads: {error}")
        misfit = registry.binds(task, args, kwargs)
        if misfit is not None:
            return Unroutable(f"the arguments do not fit {task.module_path}: {misfit}")
        context = self._context(task) if task.takes_context or self.around else None
        given = (context, *args) if task.takes_context else args
        function: Callable[[], Any] = partial(task.func, *given, **kwargs)
        if context is not None and self.around:
            around = self._asurrounded if registry.is_async(task) else self._surrounded
            function = partial(around, function, context)
        if not task.atomic:
            self._begin()
        return _Call(task, function)

    def _begin(self) -> None:
        self.started_at = clock.monotonic()
        if self.began is not None:
            self.began(self)

    def _surrounded(self, function: Callable[[], Any], context: JobContext) -> Any:
        """Run a handler within the project's context managers, the first of them outermost."""
        raised: BaseException | None = None
        with ExitStack() as stack:
            try:
                for hook in self.around:
                    manager = hooks.made(hook, context)
                    hooks.refuse_asynchronous(manager, hook)
                    with _noting(hook):
                        stack.enter_context(manager)
                return function()
            except BaseException as error:
                raised = error
                raise
        # Only if one of them has swallowed it: none can turn a failure into a success.
        raise raised or AssertionError("nothing was raised, and nothing returned")

    async def _asurrounded(self, function: Callable[[], Any], context: JobContext) -> Any:
        """Do what ``_surrounded`` does with an async handler."""
        raised: BaseException | None = None
        async with AsyncExitStack() as stack:
            try:
                for hook in self.around:
                    manager = hooks.made(hook, context)
                    with _noting(hook):
                        if hasattr(manager, "__aenter__"):
                            await stack.enter_async_context(manager)
                        else:
                            stack.enter_context(manager)
                return await function()
            except BaseException as error:
                raised = error
                raise
        raise raised or AssertionError("nothing was raised, and nothing returned")

    def _outcome(self, call: _Call) -> Outcome:
        try:
            value = call.function()
            if self.landed and value is not None:
                self._log_after_completion("the value that it returned")
            return _succeeded(call.task, None if self.landed else value)
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
                if self.switch.reason is not None:  # while it waited for its turn
                    raise Stopped(self.switch.reason)
                self._begin()
                output = _succeeded(call.task, call.function())
        except LeaseGone:
            return Released()  # the fence refuses this, too
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
        if registry.is_async(task):
            raise NotAtomic(f"{task.module_path} is a coroutine function, which no transaction can span.")
        if self.gate is not None and self.gate.written:
            raise NotAtomic(f"{task.module_path} has completed its job already: context.atomic() works once.")
        if self._in_transaction():
            raise NotAtomic(
                f"{task.module_path} has a transaction open on {self.using!r}: context.atomic() must be the "
                "outermost. Leave that block first."
            )

    def _once(self, task: BackWaveTask, name: str) -> OnceBlock:
        """Be ``context.once(name)``."""
        return OnceBlock(
            name,
            job=self.job,
            worker=self.worker,
            using=self.marks_using or self.using,
            switch=self.switch,
            refuse=partial(self._refuse_mark, task, name),
        )

    def _refuse_mark(self, task: BackWaveTask, name: str) -> None:
        what = f"context.once({name!r}) in {task.module_path}"
        if task.atomic:
            raise NotOnce(
                f"{what}: an atomic job needs no mark for what it writes, and cannot keep one for other "
                "effects: its own success may yet be rolled back. Enqueue another job for them."
            )
        if self.gate is not None and self.gate.written:
            raise NotOnce(f"{what}: the job is completed already, so it never runs again.")
        if self._in_transaction():
            raise NotOnce(
                f"{what}: a transaction is open on {self.using!r}. The mark is written at once on another "
                "connection: it would stay when that transaction rolls back, or wait for its locks for "
                "ever. Leave the transaction first."
            )

    def _in_transaction(self) -> bool:
        """Whether the handler has a transaction open on the jobs' database."""
        return in_transaction(self.using)

    def _completing(self, gate: Gate, report: Callable[[], Report]) -> AbstractContextManager[None]:
        def kept() -> Report:
            self.recorded = report()
            return self.recorded

        return completing(gate, self.job, worker=self.worker, report=kept, using=self.using)

    def _in_doubt(self, task: BackWaveTask, error: BaseException) -> Outcome:
        self.error = error
        return InDoubt(describe(error), final=task.is_final(error))

    def _raised(self, task: BackWaveTask, error: BaseException) -> Outcome:
        if self._doubtful:
            return self._in_doubt(task, error)
        if isinstance(error, DatabaseBusy):
            logger.warning("action=atomic_put_off job=%s name=%s: %s", self.job.job_id, self.job.name, error)
            return Released(BUSY_DELAY)
        if isinstance(error, Snooze):
            return Snoozed(error.seconds)
        if _means_stop(error) and self.switch.reason is not None:
            return self._stopped(error)
        # Not an assignment: a frozen dataclass may be an exception, too.
        self.error = BaseException.with_traceback(error, _beyond_us(error.__traceback__))
        return Failed(
            describe(error),
            final=isinstance(error, GiveUp) or task.is_final(error),
            delay=error.seconds if isinstance(error, Retry) else None,
        )

    def _ended(self, outcome: Outcome) -> Report:
        self.ended_at = clock.monotonic()
        if self._doubtful and not isinstance(outcome, InDoubt):
            # The handler went on after its block had failed in COMMIT: what it made of that does not count.
            outcome = InDoubt(describe(self.error or NotAtomic("the commit of context.atomic() failed")))
        if self.landed and not isinstance(outcome, Succeeded):
            self._log_after_completion("how it ended")
        self.report = self._report(Succeeded("null") if self.landed else outcome, settled=self.landed)
        self.context = contextvars.copy_context()
        return self.report

    def _log_after_completion(self, what: str) -> None:
        logger.warning(
            "action=after_completion job=%s name=%s: the handler's atomic block has completed the job; %s "
            "after it changes nothing",
            self.job.job_id,
            self.job.name,
            what,
            exc_info=self.error,
        )

    def _report(self, outcome: Outcome, *, settled: bool = False) -> Report:
        return Report(
            job=self.job,
            outcome=outcome,
            jitter=clock.random(),
            started_after=self.started_after,
            settled=settled,
            tags=self.notes.tags,
            progress=self.last_progress(),
            took=None if self.taken_at is None else clock.monotonic() - self.taken_at,
        )

    def last_progress(self) -> str | None:
        """Return the progress that has not been written yet, as JSON text."""
        news = self.notes.news
        return None if news is None else self.encoded_progress(news)

    def encoded_progress(self, progress: Progress) -> str:
        """Return a progress as JSON text, with the database's time of now."""
        at = database_clock.after(self.job.claimed_at, clock.monotonic() - self.claimed_at)
        return progress.encoded(at)

    def _context(self, task: BackWaveTask) -> JobContext:
        return JobContext(
            claimed=self.job,
            task=task,
            worker=self.worker,
            switch=self.switch,
            atomic=partial(self._block, task),
            once=partial(self._once, task),
            notes=self.notes,
        )

    def _stopped(self, error: BaseException | None = None) -> Outcome:
        match self.switch.reason:
            case StopReason.CANCEL:
                return Cancelled()
            case StopReason.TIMEOUT:
                self.error = error
                where = "" if error is None else describe(error).traceback
                return timed_out(self.job.timeout_seconds or 0.0, traceback=where)
            case _:
                # A lost lease is reported as a hand-back: whatever is reported, only the fence refuses it.
                return Released()


@contextmanager
def _noting(hook: hooks.Hook) -> Iterator[None]:
    """Note on what a context manager raises when it is entered whose it is."""
    try:
        yield
    except BaseException as error:
        hooks.note(error, hook)
        raise


class _Call(NamedTuple):
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
