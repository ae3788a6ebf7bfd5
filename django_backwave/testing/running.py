"""``run_jobs()``: a worker for tests, in the current thread, over the test's own connections."""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import CancelledError
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, sync_to_async

from django_backwave import conf, discovery, hooks, results
from django_backwave.backend import backend_for, jobs_database
from django_backwave.compat import TaskResultDoesNotExist
from django_backwave.core.outcome import Failed, TimedOut, Unroutable, decide
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import AttemptOutcome
from django_backwave.exceptions import GiveUp, Retry, Stopped
from django_backwave.payload import check_queue, shown
from django_backwave.store.claim import Order, scan, take
from django_backwave.store.expire import SLICE, expire, expire_waiting
from django_backwave.store.pause import pauses
from django_backwave.store.settle import settle
from django_backwave.testing import clock
from django_backwave.testing.attempt import Attempt
from django_backwave.testing.autocommit import as_in_autocommit, roll_back_what_is_open
from django_backwave.worker.handlers import touch_shared
from django_backwave.worker.notifier import Notifier
from django_backwave.worker.signalling import Signaller
from django_backwave.worker.worker import new_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_backwave.core.protocol import Claimed, Report
    from django_backwave.results import JobResult

#: Attempts of one call without a limit: jobs that bring up jobs for ever end here.
MOST = 1000


class RunError(AssertionError):
    """Jobs could not be run to an end: they bring up each other for ever, or nothing can run them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt that ``run_jobs`` has made.

    ``result`` is the job as it stood afterwards. ``outcome``: what the attempt reported, and the store has
    written: "succeeded", "failed", "snoozed", "cancelled", "released", "timed_out" or "unroutable"; "stale"
    if the store has refused it. ``attempt`` is its number, ``error`` what the handler raised.
    """

    result: JobResult
    outcome: str
    attempt: int
    error: BaseException | None = None


def run_jobs(
    *,
    queue: str | Iterable[str] | None = None,
    limit: int | None = None,
    until: datetime | timedelta | None = None,
    raise_errors: bool = True,
) -> list[Run]:
    """Run the jobs that are due, in this thread and over its connections; return the attempts, in order.

    Jobs that these enqueue run, too, as far as they are due. ``queue``: only of this one, or of these.
    ``limit``: this many attempts at most. ``until``: from due time to due time up to that instant, or for that
    long; it moves the clock that ``virtual_clock`` has opened, else one for this call.

    What a handler raises is recorded as a worker does it, and then raised here; the jobs behind it stay due.
    GiveUp, Retry and Snooze are a handler's own words and are not raised. Without ``raise_errors`` nothing is:
    look at the outcomes. Raises RunError after 1,000 attempts without a limit, and, unless ``raise_errors`` is
    false, for a job that no handler serves or that was timed out.
    """
    _refuse_event_loop()
    queues = _checked_queues(queue)
    _check_limit(limit)
    discovery.discover_once()
    hooks.around()  # a wrong path is no job's failure
    with ExitStack() as stack:
        stack.enter_context(_alone())
        if until is not None and clock.current() is None:
            stack.enter_context(clock.virtual_clock())
        end = None if until is None else _end(until)
        stack.enter_context(as_in_autocommit())
        return _Worker(queues, limit, end, raise_errors=raise_errors).run()


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


class _AtOnce(Notifier):
    """Tells in the test's thread, once the attempt is over and written, what a worker tells."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[tuple[Callable[[Signaller], None], contextvars.Context]] = []
        self._signaller = _Here()

    def _put(self, tell: Callable[[Signaller], None], context: contextvars.Context | None = None) -> None:
        self._told.append((tell, contextvars.copy_context() if context is None else context))

    def flush(self) -> None:
        told, self._told = self._told, []
        for tell, context in told:
            context.run(tell, self._signaller)
        roll_back_what_is_open()


class _Here(Signaller):
    """Sends signals over the connections of the test, which are to stay as they are."""

    def _clean[Given](self, function: Callable[[], Given]) -> Given:
        return function()


class _Worker:
    """Runs jobs one by one, through the doors of the store that every worker passes."""

    def __init__(
        self, queues: list[str] | None, limit: int | None, end: datetime | None, *, raise_errors: bool
    ) -> None:
        self._queues = queues
        self._limit = limit
        self._end = end
        self._raise_errors = raise_errors
        self._name = new_name()
        self._using = jobs_database()
        self._lease = conf.seconds("LEASE")
        self._grace = conf.seconds("UNROUTABLE_GRACE")
        self._notifier = _AtOnce()
        self._base = contextvars.Context()
        self._base.run(touch_shared)
        self._runs: list[Run] = []

    def run(self) -> list[Run]:
        for job in self._jobs():
            run, report = self._attempt(job)
            self._runs.append(run)
            _raise_what_must_not_wait(run)
            if self._raise_errors:
                _raise_what_went_wrong(run, report)
        return self._runs

    @property
    def _now(self) -> datetime | None:
        """The virtual time, for the doors that are to be handed it; None: the database's."""
        moving = clock.current()
        return None if moving is None else moving.tell(self._using)

    # What comes next.

    def _jobs(self) -> Iterator[Claimed]:
        self._sweep()
        while self._limit is None or len(self._runs) < self._limit:
            due = self._due()
            ready = [queue for queue, seconds in due if seconds <= 0]
            job = next(filter(None, map(self._claim, ready)), None)
            if job is not None:
                yield job
            elif not self._move_on(min((seconds for _, seconds in due if seconds > 0), default=None)):
                return

    def _due(self) -> list[tuple[str, float]]:
        """Return the queues that are not paused, what has been due longest first, each with its seconds."""
        paused = pauses(using=self._using).queues
        due = scan(self._queues, using=self._using, now=self._now)
        return sorted(
            ((q, s) for q, s in due.items() if q not in paused), key=lambda pair: (pair[1], pair[0])
        )

    def _claim(self, queue: str) -> Claimed | None:
        if self._limit is None and len(self._runs) >= MOST:
            raise RunError(self._endless())
        order = Order(queue, 1, 1, self._lease, without=tuple(sorted(pauses(using=self._using).names)))
        while True:
            taken = take(order, worker=self._name, using=self._using, now=self._now)
            self._notifier.late(taken.late)
            if taken.jobs:
                return taken.jobs[0]
            if not taken.late and taken.past == order.past:
                return None
            order = order._replace(past=taken.past)

    def _endless(self) -> str:
        [(name, times)] = Counter(_name(run) for run in self._runs).most_common(1)
        return (
            f"run_jobs() has made {MOST:,} attempts, and still jobs are due; {times:,} of the attempts were of "
            f"{name}. A job that enqueues itself never ends, nor does one that snoozes up to a far `until`. "
            "If these are all wanted, say how many: run_jobs(limit=5000)."
        )

    def _move_on(self, seconds: float | None) -> bool:
        """Move the clock to when the next job is due; return whether anything can be due then."""
        moving = clock.current()
        if self._end is None or moving is None:
            return False
        now = moving.tell(self._using)
        if now >= self._end:
            return False
        step = self._end if seconds is None else min(self._end, now + timedelta(seconds=seconds))
        moving.move_to(step)
        self._sweep()
        return True

    def _sweep(self) -> None:
        """Dispose of lapsed leases and of jobs that start too late, as workers do every few seconds."""
        while True:
            leases = expire(jitter=lambda: 0.0, using=self._using, now=self._now)
            late = expire_waiting(using=self._using, now=self._now)
            self._notifier.expired(leases)
            self._notifier.late(late)
            self._notifier.flush()
            if SLICE not in (len(leases), len(late)):
                return

    # One attempt.

    def _attempt(self, job: Claimed) -> tuple[Run, Report]:
        attempt = Attempt(job, self._name, using=self._using, began=self._notifier.began)
        context = self._base.copy()
        with attempt.in_virtual_time():
            report: Report = context.run(_run_async if attempt.is_async else attempt.run, *_self(attempt))
        roll_back_what_is_open()
        report = attempt.final(report)
        verdict = Verdict.APPLIED if report.settled else self._settle(report)
        self._notifier.settled([(attempt, verdict)], grace=self._grace)
        self._notifier.flush()
        outcome = self._outcome(report, verdict)
        return Run(
            result=_result(job, self._name), outcome=outcome, attempt=job.attempt, error=attempt.error
        ), report

    def _settle(self, report: Report) -> Verdict:
        verdicts = settle(
            [report], worker=self._name, unroutable_grace=self._grace, using=self._using, now=self._now
        )
        verdict = verdicts[report.job.key]
        if verdict is Verdict.LOCKED:
            raise RunError(
                f"The row of {report.job.name} is locked by another connection, so its outcome cannot be "
                "written. End that transaction first."
            )
        return verdict

    def _outcome(self, report: Report, verdict: Verdict) -> str:
        match verdict:
            case Verdict.STALE:
                return "stale"
            case Verdict.CANCELLED:
                return AttemptOutcome.CANCELLED.value
            case Verdict.LANDED:
                return AttemptOutcome.SUCCEEDED.value
        decision = decide(report.outcome, report.job, jitter=report.jitter, unroutable_grace=self._grace)
        return decision.outcome.value


def _run_async(attempt: Attempt) -> Report:
    """Run an async handler to its end; the synchronous parts of it run in this very thread."""

    async def run() -> Report:
        loop = asyncio.get_running_loop()
        task = loop.create_task(attempt.arun())
        attempt.interrupt = partial(loop.call_soon_threadsafe, task.cancel)
        await asyncio.wait([task])
        attempt.interrupt = None
        return attempt.never_ran() if task.cancelled() else task.result()

    return async_to_sync(run)()


def _self(attempt: Attempt) -> tuple[Attempt, ...]:
    return (attempt,) if attempt.is_async else ()


def _result(job: Claimed, worker: str) -> JobResult:
    task = results.task_of(job.name)
    try:
        return backend_for(task).get_result(str(job.job_id))
    except TaskResultDoesNotExist:  # the handler has deleted the row
        return results.of_claim(job, task, worker)


def _name(run: Run) -> str:
    return run.result.task.module_path


def _raise_what_must_not_wait(run: Run) -> None:
    """Raise what is meant for whoever runs the tests: KeyboardInterrupt, or a test framework's own."""
    told = (Exception, BaseExceptionGroup, CancelledError, GeneratorExit, Stopped, SystemExit)
    if run.error is not None and not isinstance(run.error, told):
        raise run.error


def _raise_what_went_wrong(run: Run, report: Report) -> None:
    who = f"{_name(run)} (job {run.result.id}, attempt {run.attempt})"
    match report.outcome:
        case Unroutable(reason):
            raise RunError(f"Nothing here can run {who}: {reason}.")
        case TimedOut(info):
            raise RunError(f"{who} was timed out: {info.message}.") from run.error
        case Failed(info) if run.error is None:
            raise RunError(f"{who} failed: {info.class_path}: {info.message}")
    if run.error is None or isinstance(run.error, GiveUp | Retry):
        return
    run.error.add_note(f"Raised by {who}. With run_jobs(raise_errors=False) it is recorded only.")
    raise run.error


_running = False


@contextmanager
def _alone() -> Iterator[None]:
    global _running
    if _running:
        raise RunError(
            "run_jobs() was called while it runs, by a handler or a receiver: it runs what they enqueue."
        )
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


def _end(until: datetime | timedelta) -> datetime:
    moving = clock.current()
    assert moving is not None, "run_jobs() has opened one"
    now = moving.tell(jobs_database())
    end = now + until if isinstance(until, timedelta) else clock.checked_instant(until, "until")
    if end < now:
        raise ValueError(f"until must not be past: it is {now}, got {end}.")
    return end
