"""Signals about attempts, sent by the notifier's thread after the write; a broken receiver harms nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.cache import caches
from django.db import DatabaseError

from django_backwave import registry, results
from django_backwave.audience import end_is_heard, has_listeners
from django_backwave.backend import backend_for, first_of_ours
from django_backwave.compat import TaskResultDoesNotExist, task_finished, task_started
from django_backwave.core.outcome import Succeeded
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.signals import job_abandoned, job_retrying, job_stale
from django_backwave.store import clock as database_clock
from django_backwave.store import monitor
from django_backwave.worker.connections import Hygiene

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.dispatch import Signal

    from django_backwave.backend import BackWaveBackend
    from django_backwave.core.outcome import Decision
    from django_backwave.core.protocol import Report
    from django_backwave.models import Attempt
    from django_backwave.results import JobResult
    from django_backwave.store.expire import Expired
    from django_backwave.worker.execution import Execution


class Signaller:
    """Sends signals in the thread that made it.

    Receivers run in a copy of the handler's context. The handler's thread uses what lies there for the next
    job already, so receivers get cache clients of their own.
    """

    def __init__(self) -> None:
        """Open the caches of this thread."""
        self._caches = {alias: caches[alias] for alias in caches.settings}
        self._hygiene = Hygiene()

    def started(self, execution: Execution) -> None:
        """Tell of a handler's start."""
        job = execution.job
        task = results.task_of(job.name)
        earlier = self._earlier(task_started, execution)
        result = results.of_claim(job, task, execution.worker, earlier=earlier)
        self._send(task_started, backend_for(task, job.queue), task_result=result)

    def ended(self, execution: Execution, report: Report, verdict: Verdict, decision: Decision) -> None:
        """Tell of an attempt's end, by what the store made of it."""
        job, state = execution.job, decision.state
        if verdict is Verdict.STALE:
            self._tell(job_stale, execution, outcome=decision.outcome.value)
        elif verdict is Verdict.CANCELLED:
            self._finished(execution, report, JobState.CANCELLED, decision)
        elif verdict is Verdict.LANDED:
            self._finished(execution, report, JobState.SUCCEEDED, decision)
        elif state.is_terminal:
            self._finished(execution, report, state, decision)
        elif decision.failures > job.failures:
            self._tell(
                job_retrying,
                execution,
                error=execution.error,
                failures=decision.failures,
                max_attempts=job.max_attempts,
                due_in=decision.due_in,
            )

    def abandoned(self, lease: Expired) -> None:
        """Tell of a lapsed lease, and of the job's end if it was that."""
        backend = _backend_of(lease.name, lease.queue)
        if has_listeners(job_abandoned):
            self._send(
                job_abandoned,
                backend,
                job_id=lease.key.job_id,
                name=lease.name,
                queue=lease.queue,
                attempt=lease.key.attempt,
                worker=lease.worker,
                state=lease.state,
            )
        if lease.state.is_terminal and end_is_heard(lease.state):
            # Nobody here has ever seen the job itself.
            result = self._clean(partial(_read, backend, str(lease.key.job_id)))
            if result is not None and result.is_finished:
                self._send(task_finished, backend, task_result=result)

    def _tell(self, signal: Signal, execution: Execution, **more: Any) -> None:
        if has_listeners(signal):
            job = execution.job
            self._send(
                signal,
                _backend_of(job.name, job.queue),
                job_id=job.job_id,
                name=job.name,
                queue=job.queue,
                attempt=job.attempt,
                worker=execution.worker,
                **more,
            )

    def _finished(self, execution: Execution, report: Report, state: JobState, decision: Decision) -> None:
        if not end_is_heard(state):
            return
        job = execution.job
        task = results.task_of(job.name)
        # What an atomic job's own transaction wrote counts, whatever became of its commit.
        written = report if execution.recorded is None else execution.recorded
        failed = state not in (JobState.SUCCEEDED, JobState.CANCELLED)
        result = results.of_end(
            job,
            task,
            execution.worker,
            state=state,
            started_at=_after_claim(execution, execution.started_at),
            finished_at=_after_claim(execution, execution.ended_at) or job.claimed_at,
            error=decision.error if failed else None,
            cause="" if state is JobState.SUCCEEDED else decision.cause,
            output=written.outcome.output if isinstance(written.outcome, Succeeded) else None,
            earlier=self._earlier(task_finished, execution),
        )
        error = execution.error if failed else None
        self._send(task_finished, backend_for(task, job.queue), within=error, task_result=result)

    def _earlier(self, signal: Signal, execution: Execution) -> list[Attempt]:
        """Return a job's attempts before this one, if somebody listens who may count them."""
        if execution.job.attempt == 1 or not has_listeners(signal):
            return []
        return self._clean(partial(_read_earlier, execution))

    def _send(
        self, signal: Signal, backend: BackWaveBackend, *, within: BaseException | None = None, **given: Any
    ) -> None:
        send = partial(signal.send_robust, type(backend), **given)
        self._clean(send if within is None else partial(_within, within, send))

    def _clean[Given](self, function: Callable[[], Given]) -> Given:
        for alias, cache in self._caches.items():
            caches[alias] = cache  # in this context only
        self._hygiene.before()
        try:
            return function()
        finally:
            self._hygiene.after()


def _backend_of(name: str, queue: str) -> BackWaveBackend:
    task = registry.resolve(name)
    return first_of_ours() if task is None else backend_for(task, queue)


def _read_earlier(execution: Execution) -> list[Attempt]:
    key = execution.job.key
    try:
        return monitor.attempts_before(key.job_id, key.attempt, using=execution.using)
    except DatabaseError:  # an outage: then the signal knows of this attempt only
        return []


def _read(backend: BackWaveBackend, job_id: str) -> JobResult | None:
    try:
        return backend.get_result(job_id)
    except TaskResultDoesNotExist:  # pruned since
        return None


def _after_claim(execution: Execution, instant: float | None) -> Any:
    if instant is None:
        return None
    return database_clock.after(execution.job.claimed_at, instant - execution.claimed_at)


def _within(error: BaseException, function: Callable[[], Any]) -> None:
    """Call a function in the exception's context: there Django's own log line finds its traceback."""
    frames = error.__traceback__
    try:
        raise error
    except BaseException:
        function()
    finally:
        error.__traceback__ = frames
