"""The notifier: log lines and signals about attempts, sent by a thread of its own after the write.

Whatever a log handler or a receiver does, or however long it takes, no settle waits for it. Both run in a
copy of the handler's context.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING

from django.db import DatabaseError, connections

from django_backwave.audience import starts_are_heard, successes_are_heard
from django_backwave.core.outcome import (
    Failed,
    InDoubt,
    Snoozed,
    Succeeded,
    TimedOut,
    Unroutable,
    decide,
)
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.worker.signalling import Signaller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_backwave.core.protocol import Report
    from django_backwave.store.claim import Late
    from django_backwave.store.expire import Expired
    from django_backwave.worker.execution import Execution

    #: What to tell, and the context to tell it in; None for the thread's own.
    type Item = tuple[Callable[[Signaller], None], contextvars.Context | None]

logger = logging.getLogger("django_backwave.worker")

#: What may wait to be told of at most. Starts and successes, of which most is told, give way at half of it.
MOST_UNTOLD = 20_000


class Notifier:
    """Runs what it is given, in order, in its own thread."""

    def __init__(self) -> None:
        """Begin with nothing to say."""
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._untold = 0  # what was left out since the last time that this was told of
        self._starts_are_heard: bool | None = None  # not known: ask at each
        self.thread = threading.Thread(target=self._serve, name="backwave-notifier", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self, timeout: float) -> None:
        """Say what is left and end, within some seconds."""
        self._queue.put(None)
        self.thread.join(timeout)

    def settled(self, ends: Iterable[tuple[Execution, Verdict]], *, grace: float) -> None:
        """Tell of attempts' ends: each one line, with the traceback of a failure, and the signals."""
        silent = not (logger.isEnabledFor(logging.INFO) or successes_are_heard())
        for execution, verdict in ends:
            # An overdue handler may end with a report of its own at any time; that one does not count.
            report = execution.overdue or execution.report
            if report is None:
                continue  # only ended attempts are settled; the type cannot say so
            usual = verdict is Verdict.APPLIED and isinstance(report.outcome, Succeeded)
            if silent and usual:
                execution.error = None
                continue  # most ends are of this kind, and nobody would see or hear anything
            tell = partial(_tell_end, execution, report, verdict, grace)
            self._put(tell, execution.context, usual=usual)

    def listen(self) -> None:
        """Find out whether anybody hears of the starts to come: once for all jobs of a claim."""
        self._starts_are_heard = starts_are_heard()

    def began(self, execution: Execution) -> None:
        """Tell of a handler's start; called in the handler's context."""
        if starts_are_heard() if self._starts_are_heard is None else self._starts_are_heard:
            context = contextvars.copy_context()
            self._put(lambda signaller: signaller.started(execution), context, usual=True)

    def expired(self, leases: list[Expired]) -> None:
        """Tell of lapsed leases."""
        if leases:
            self._put(partial(_tell_expired, leases))

    def late(self, jobs: list[Late]) -> None:
        """Tell of jobs that have not started in time."""
        if jobs:
            self._put(lambda _: _log_late(jobs))

    def overdue(self, execution: Execution) -> None:
        """Tell of a handler that runs on although it was told of its time-out."""
        self._put(lambda _: _log_overdue(execution))

    def too_late(self, execution: Execution, report: Report) -> None:
        """Tell of a handler that has ended after it was reported as timed out."""
        self._put(lambda _: _log_too_late(execution, report))

    def _put(
        self,
        tell: Callable[[Signaller], None],
        context: contextvars.Context | None = None,
        *,
        usual: bool = False,
    ) -> None:
        """Have something told; unless so much waits already that memory would not last."""
        if self._queue.qsize() >= (MOST_UNTOLD // 2 if usual else MOST_UNTOLD):
            self._untold += 1
        else:
            self._queue.put((tell, context))

    def _serve(self) -> None:
        signaller = Signaller()
        base = contextvars.copy_context()
        try:
            while (item := self._queue.get()) is not None:
                tell, context = item
                try:
                    (base.copy() if context is None else context).run(tell, signaller)
                except DatabaseError as error:
                    logger.warning("action=notify_failed error=%s: a signal is lost", type(error).__name__)
                except BaseException:  # SystemExit would end the thread, and with it the worker
                    logger.exception("action=notify_failed")
                self._tell_of_untold()
        finally:
            connections.close_all()

    def _tell_of_untold(self) -> None:
        """Say how much was left out, once there is room again."""
        if self._untold and self._queue.qsize() < MOST_UNTOLD // 4:
            untold, self._untold = self._untold, 0
            logger.warning(
                "action=notify_behind untold=%s: log lines and signals are missing, for a receiver or a log "
                "handler is slower than the jobs",
                untold,
            )


def _tell_end(
    execution: Execution, report: Report, verdict: Verdict, grace: float, signaller: Signaller
) -> None:
    _log_end(execution, report, verdict, grace=grace)
    decision = decide(report.outcome, report.job, jitter=report.jitter, unroutable_grace=grace)
    try:
        signaller.ended(execution, report, verdict, decision)
    finally:
        execution.error = None  # its traceback holds all that the handler held


def _tell_expired(leases: list[Expired], signaller: Signaller) -> None:
    _log_expired(leases)
    for lease in leases:
        signaller.abandoned(lease)


def _log_end(execution: Execution, report: Report, verdict: Verdict, *, grace: float) -> None:
    job, outcome = report.job, report.outcome
    decision = decide(outcome, job, jitter=report.jitter, unroutable_grace=grace)
    level, note = logging.INFO, ""
    word: str = decision.outcome.value
    error = None
    if verdict is Verdict.STALE:
        # The fence at work, no fault: another attempt holds the job, or it has ended.
        word, note = "stale", f" refused={decision.outcome.value}"
    elif verdict is Verdict.CANCELLED:
        word = AttemptOutcome.CANCELLED.value
    elif verdict is Verdict.LANDED:
        # What failed came after COMMIT, in a callback of the handler's, or the reply was lost on its way.
        word, note, error = AttemptOutcome.SUCCEEDED.value, " note=error_after_commit", execution.error
        level = logging.WARNING
    elif isinstance(outcome, Failed | TimedOut | InDoubt):
        dead = decision.state is JobState.DEAD_LETTERED
        level = logging.ERROR if dead else logging.WARNING
        error = execution.error
        note = f" failures={decision.failures}/{job.max_attempts} next={_next(decision.due_in, dead)}"
    elif isinstance(outcome, Unroutable):
        quarantined = decision.state is JobState.QUARANTINED
        level = logging.ERROR if quarantined else logging.WARNING
        note = f" next={'quarantined' if quarantined else 'released'} cause={outcome.reason!r}"
    elif isinstance(outcome, Snoozed):
        note = f" next={_next(decision.due_in, dead=False)}"
    logger.log(
        level,
        "action=attempt_ended job=%s name=%s queue=%s attempt=%s outcome=%s seconds=%.3f%s",
        job.job_id,
        job.name,
        job.queue,
        job.attempt,
        word,
        execution.seconds,
        note,
        exc_info=error,
    )


def _log_overdue(execution: Execution) -> None:
    job = execution.job
    logger.error(
        "action=handler_overdue job=%s name=%s attempt=%s timeout=%s: it does not stop; it keeps its "
        "slot, and a retry may overlap it",
        job.job_id,
        job.name,
        job.attempt,
        job.timeout_seconds,
    )


def _log_too_late(execution: Execution, report: Report) -> None:
    logger.warning(
        "action=late_result_refused job=%s name=%s attempt=%s outcome=%s seconds=%.3f: it had been "
        "reported as timed out",
        report.job.job_id,
        report.job.name,
        report.job.attempt,
        decide(report.outcome, report.job, jitter=0.0, unroutable_grace=0.0).outcome.value,
        execution.seconds,
    )
    execution.error = None


def _log_late(jobs: list[Late]) -> None:
    for job in jobs:
        logger.warning("action=job_expired job=%s name=%s next=cancelled", job.job_id, job.name)


def _next(due_in: float | None, dead: bool) -> str:
    return "dead-lettered" if dead or due_in is None else f"in {due_in:.1f} s"


def _log_expired(leases: list[Expired]) -> None:
    for lease in leases:
        dead = lease.state is JobState.DEAD_LETTERED
        logger.log(
            logging.ERROR if dead else logging.WARNING,
            "action=lease_expired job=%s name=%s attempt=%s worker=%s next=%s",
            lease.key.job_id,
            lease.name,
            lease.key.attempt,
            lease.worker,
            lease.state.label,
        )
