"""The loop of ``run_jobs()``: a worker's errands at the store, one job at a time, in the test's thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.core.cache import caches

from django_backwave import conf, results
from django_backwave.backend import backend_for, jobs_database
from django_backwave.compat import TaskResultDoesNotExist, task_backends
from django_backwave.core.outcome import decide
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import AttemptOutcome
from django_backwave.store.claim import Order, scan, take
from django_backwave.store.expire import SLICE, expire, expire_waiting
from django_backwave.store.pause import pauses
from django_backwave.store.settle import settle
from django_backwave.testing import clock
from django_backwave.testing.attempt import Attempt
from django_backwave.testing.autocommit import roll_back_what_is_open
from django_backwave.testing.runs import Run, RunError, raise_if_meant_for_others, raise_if_wrong
from django_backwave.worker.notifier import Notifier
from django_backwave.worker.signalling import Signaller
from django_backwave.worker.worker import new_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from django_backwave.core.outcome import Outcome
    from django_backwave.core.protocol import Claimed, Report
    from django_backwave.results import JobResult
    from django_backwave.store.pause import Pauses

#: Attempts of one call without a limit: jobs that bring up jobs for ever end here.
MOST = 500


class _AtOnce(Notifier):
    """Tells in the test's thread, once the attempt is over and written, what a worker tells."""

    def __init__(self) -> None:
        super().__init__()
        self._told: list[tuple[Callable[[Signaller], None], contextvars.Context]] = []
        self._signaller = _Here()

    def _put(
        self,
        tell: Callable[[Signaller], None],
        context: contextvars.Context | None = None,
        *,
        usual: bool = False,
    ) -> None:
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


class Loop:
    """Runs jobs one by one, through the doors of the store that every worker passes."""

    def __init__(
        self, queues: list[str] | None, limit: int | None, end: datetime | None, *, raise_errors: bool
    ) -> None:
        """Take what was checked: ``end`` is aware and in UTC."""
        self._queues = queues
        self._limit = limit
        self._end = end
        self._raise_errors = raise_errors
        self._name = new_name()
        self._using = jobs_database()
        self._lease = conf.seconds("LEASE")
        self._grace = conf.seconds("UNROUTABLE_GRACE")
        self._notifier = _AtOnce()
        self._base = _base_context()
        self._runs: list[Run] = []

    def run(self) -> list[Run]:
        """Run until nothing more is due, or the limit or the end is reached."""
        for job in self._jobs():
            run, reported = self._attempt(job)
            self._runs.append(run)
            raise_if_meant_for_others(run)
            if self._raise_errors:
                raise_if_wrong(run, reported)
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
            paused = pauses(using=self._using)
            due = self._due(paused)
            ready = (self._claim(queue, paused) for queue, seconds in due if seconds <= 0)
            job = next(filter(None, ready), None)
            if job is not None:
                yield job
            elif not self._move_on(min((seconds for _, seconds in due if seconds > 0), default=None)):
                return

    def _due(self, paused: Pauses) -> list[tuple[str, float]]:
        """Return the queues that are not paused, what has been due longest first, each with its seconds."""
        due = scan(self._queues, using=self._using, now=self._now)
        return sorted(
            ((queue, seconds) for queue, seconds in due.items() if queue not in paused.queues),
            key=lambda pair: (pair[1], pair[0]),
        )

    def _claim(self, queue: str, paused: Pauses) -> Claimed | None:
        if self._limit is None and len(self._runs) >= MOST:
            raise RunError(self._endless())
        order = Order(queue, 1, 1, self._lease, without=tuple(sorted(paused.names)))
        while True:
            taken = take(order, worker=self._name, using=self._using, now=self._now)
            self._notifier.late(taken.late)
            if taken.jobs:
                return taken.jobs[0]
            if not taken.late and taken.past == order.past:
                return None
            order = order._replace(past=taken.past)

    def _endless(self) -> str:
        [(name, times)] = Counter(run.name for run in self._runs).most_common(1)
        return (
            f"run_jobs() has made {MOST:,} attempts, and still jobs are due; {times:,} of the attempts were "
            f"of {name}. A job that enqueues itself never ends, and one that snoozes for seconds takes long "
            "to come to a far `until`. If all these are wanted, say how many: run_jobs(limit=5000)."
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

    def _attempt(self, job: Claimed) -> tuple[Run, Outcome]:
        attempt = Attempt(job, self._name, using=self._using, began=self._notifier.began)
        context = self._base.copy()
        with attempt.in_virtual_time():
            report = context.run(_run_async, attempt) if attempt.is_async else context.run(attempt.run)
        roll_back_what_is_open()
        report = attempt.final(report)
        verdict = Verdict.APPLIED if report.settled else self._settle(report)
        error = attempt.error  # which the notifier lets go
        self._notifier.settled([(attempt, verdict)], grace=self._grace)
        self._notifier.flush()
        run = Run(
            result=_result(job, self._name),
            outcome=self._outcome(report, verdict),
            attempt=job.attempt,
            error=error,
        )
        return run, report.outcome

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


def _base_context() -> contextvars.Context:
    """Return a context as handlers get it, with nothing of the test's but its caches and task backends."""

    def share() -> None:
        for handler, alias, shared in held:
            handler[alias] = shared

    handlers: tuple[Any, ...] = (caches, task_backends)
    held = [(handler, alias, handler[alias]) for handler in handlers for alias in handler.settings]
    context = contextvars.Context()
    context.run(share)
    return context


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


def _result(job: Claimed, worker: str) -> JobResult:
    task = results.task_of(job.name)
    try:
        return backend_for(task, job.queue).get_result(str(job.job_id))
    except TaskResultDoesNotExist:  # the handler has deleted the row
        return results.of_claim(job, task, worker)
