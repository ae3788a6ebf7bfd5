"""The notifier: log lines about attempts, sent by a thread of its own after the write.

Whatever a log handler does, or however long it takes, no settle waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING

from django_backwave.core.outcome import Failed, InDoubt, Snoozed, Succeeded, Unroutable, decide
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import AttemptOutcome, JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_backwave.store.expire import Expired
    from django_backwave.worker.execution import Execution

logger = logging.getLogger("django_backwave.worker")


class Notifier:
    """Runs what it is given, in order, in its own thread."""

    def __init__(self) -> None:
        """Begin with nothing to say."""
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="backwave-notifier", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self, timeout: float) -> None:
        """Say what is left and end, within some seconds."""
        self._queue.put(None)
        self.thread.join(timeout)

    def settled(self, execution: Execution, verdict: Verdict, *, grace: float) -> None:
        """Tell of an attempt's end: one line, with the traceback of a failure."""
        self._queue.put(lambda: _log_end(execution, verdict, grace=grace))

    def expired(self, leases: list[Expired]) -> None:
        """Tell of lapsed leases."""
        self._queue.put(lambda: _log_expired(leases))

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                item()
            except Exception:
                logger.exception("action=notify_failed")


def _log_end(execution: Execution, verdict: Verdict, *, grace: float) -> None:
    report = execution.report
    if report is None:  # only ended attempts are settled; the type cannot say so
        return
    job, outcome = report.job, report.outcome
    decision = decide(outcome, job.numbers, jitter=report.jitter, unroutable_grace=grace)
    level, note = logging.INFO, ""
    word: str = decision.outcome.value
    error = None
    if verdict is Verdict.STALE:
        # The fence at work, no fault: another attempt holds the job, or it has ended.
        word, note = "stale", f" refused={decision.outcome.value}"
    elif execution.switch.cancel_requested and not isinstance(outcome, Succeeded):
        word = AttemptOutcome.CANCELLED.value
    elif verdict is Verdict.LANDED:
        # What failed came after COMMIT, in a callback of the handler's, or the reply was lost on its way.
        word, note, error = AttemptOutcome.SUCCEEDED.value, " note=error_after_commit", execution.error
        level = logging.WARNING
    elif isinstance(outcome, Failed | InDoubt):
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
