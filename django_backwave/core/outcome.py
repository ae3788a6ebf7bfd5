"""Decide first, write after: an outcome and a job's numbers give the one thing to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from django_backwave.core.limits import MOST_FAILURES
from django_backwave.core.policy import SHORTEST_DELAY, Backoff, routing_delay
from django_backwave.core.states import AttemptOutcome, JobState

#: The cause written on every job that a cancel request has ended.
CANCEL_CAUSE = "cancel requested"

#: The cause written on every job that had not started when its time for that was over.
EXPIRED_CAUSE = "expired"

#: What the history names as the error of a time-out.
TIMED_OUT_CLASS = "django_backwave.exceptions.TimedOut"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An exception as text, ready to be stored."""

    class_path: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned. ``output`` is its return value as JSON text."""

    output: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. ``final`` sends the job to the dead letters whatever is left of its tries.

    ``delay``: the seconds until the next try, if the handler named them; None for the job's backoff.
    """

    error: ErrorInfo
    final: bool = False
    delay: float | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The handler ran for longer than it may. Whatever it raised then, there is a next try if any is left."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The COMMIT of an atomic job ended in an error, so it may have landed: the history must be asked.

    If it did not, everything was rolled back and this is the failure.
    """

    error: ErrorInfo
    final: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler stopped, or never started, because a cancel was requested."""


@dataclass(frozen=True, slots=True)
class Released:
    """The worker hands the job back; no failure counts.

    ``delay``: seconds until it is due again; None leaves its due time as it is.
    """

    delay: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to run again after some seconds; no failure counts."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unroutable:
    """No handler here has the job's name, or it does not take its schema, or the arguments do not fit.

    No failure counts.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The lease lapsed. Found by the sweep; ``again`` when an earlier attempt was abandoned, too."""

    again: bool


Outcome = Succeeded | Failed | TimedOut | InDoubt | Cancelled | Released | Snoozed | Unroutable | Abandoned


class HasNumbers(Protocol):
    """What a decision needs to know of a job.

    ``unroutable_for`` is how many seconds ago the job was first found unroutable, None if it was not.
    """

    @property
    def failures(self) -> int: ...  # noqa: D102 - these three are named after the job's columns
    @property
    def max_attempts(self) -> int: ...  # noqa: D102
    @property
    def unroutable_for(self) -> float | None: ...  # noqa: D102
    @property
    def backoff(self) -> Backoff:
        """The job's backoff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers of a job that is nobody's claim."""

    failures: int
    max_attempts: int
    backoff: Backoff
    unroutable_for: float | None = None


class Decision(NamedTuple):
    """What to write for an outcome.

    ``due_in``: seconds until the job is due again; None leaves its due time as it is.
    ``unroutable``: whether the job counts as unroutable from now on (or still).
    ``recorded``: whether the attempt gets a row in the history even if its handler never started.
    """

    state: JobState
    outcome: AttemptOutcome
    failures: int
    due_in: float | None = None
    cause: str = ""
    output: str | None = None
    error: ErrorInfo | None = None
    unroutable: bool = False
    recorded: bool = False


def decide(  # noqa: C901 - a flat table of the outcomes
    outcome: Outcome, numbers: HasNumbers, *, jitter: float, unroutable_grace: float
) -> Decision:
    """Return what an outcome makes of a job, as long as nobody has requested its cancel.

    ``jitter`` is a random number in [0, 1). Once a cancel is requested every decision but a success
    is written as CANCELLED instead (G8); the store knows, for the flag stands on the locked row.
    """
    match outcome:
        case Succeeded(output):
            return Decision(
                state=JobState.SUCCEEDED,
                outcome=AttemptOutcome.SUCCEEDED,
                failures=numbers.failures,
                output=output,
                recorded=True,
            )
        case Failed(error, final, delay):
            return _failure(numbers, error, final=final, delay=delay, jitter=jitter)
        case InDoubt(error, final):
            return _failure(numbers, error, final=final, jitter=jitter)
        case TimedOut(error):
            return _failure(numbers, error, jitter=jitter, outcome=AttemptOutcome.TIMED_OUT)
        case Abandoned(again):
            return _abandonment(numbers, again=again, jitter=jitter)
        case Unroutable(reason):
            return _no_route(numbers, reason, jitter=jitter, grace=unroutable_grace)
        case Cancelled():
            return Decision(
                state=JobState.CANCELLED,
                outcome=AttemptOutcome.CANCELLED,
                failures=numbers.failures,
                cause=CANCEL_CAUSE,
            )
        case Snoozed(seconds):
            return Decision(
                state=JobState.READY,
                outcome=AttemptOutcome.SNOOZED,
                failures=numbers.failures,
                due_in=max(SHORTEST_DELAY, seconds),
                recorded=True,
            )
        case Released(delay):
            return Decision(
                state=JobState.READY,
                outcome=AttemptOutcome.RELEASED,
                failures=numbers.failures,
                due_in=delay,
            )


def timed_out(seconds: float, *, still_running: bool = False, traceback: str = "") -> TimedOut:
    """Return the outcome of a handler whose time-out of so many seconds is over.

    ``still_running``: it was told to stop, and its code runs all the same. ``traceback`` as text, if any.
    """
    message = f"it ran for longer than its time-out of {seconds:g} s"
    if still_running:
        message += ", and its code still runs: it does not stop when told to"
    return TimedOut(
        ErrorInfo(
            class_path=TIMED_OUT_CLASS,
            message=message,
            traceback=traceback or f"{TIMED_OUT_CLASS}: {message}\n",
        )
    )


def _failure(
    numbers: HasNumbers,
    error: ErrorInfo,
    *,
    jitter: float,
    final: bool = False,
    delay: float | None = None,
    outcome: AttemptOutcome = AttemptOutcome.FAILED,
) -> Decision:
    failures = _one_more(numbers)
    dead = final or failures >= numbers.max_attempts
    cause = error.message.strip().split("\n", 1)[0][:200]
    cause = f"{error.class_path.rsplit('.', 1)[-1]}: {cause}" if cause else error.class_path
    return Decision(
        state=JobState.DEAD_LETTERED if dead else JobState.READY,
        outcome=outcome,
        failures=failures,
        due_in=None if dead else _delay(numbers, failures, delay, jitter=jitter),
        cause=cause,
        error=error,
        recorded=True,
    )


def _one_more(numbers: HasNumbers) -> int:
    """Return the failures with this one, as far as the column can count: a row may be made by hand."""
    return min(numbers.failures + 1, MOST_FAILURES)


def _delay(numbers: HasNumbers, failures: int, own: float | None, *, jitter: float) -> float:
    if own is not None:
        return max(SHORTEST_DELAY, own)
    return numbers.backoff.delay(failures, jitter=jitter)


def _abandonment(numbers: HasNumbers, *, again: bool, jitter: float) -> Decision:
    failures = _one_more(numbers)
    dead = failures >= numbers.max_attempts
    return Decision(
        state=JobState.DEAD_LETTERED if dead else JobState.READY,
        outcome=AttemptOutcome.ABANDONED,
        failures=failures,
        # A crashed worker is nobody's fault the first time; a job that kills its workers backs off.
        due_in=None if dead else numbers.backoff.delay(failures, jitter=jitter) if again else 0.0,
        cause="lease lapsed",
        recorded=True,
    )


def _no_route(numbers: HasNumbers, reason: str, *, jitter: float, grace: float) -> Decision:
    waited = numbers.unroutable_for
    quarantined = waited is not None and waited >= grace
    return Decision(
        state=JobState.QUARANTINED if quarantined else JobState.READY,
        outcome=AttemptOutcome.UNROUTABLE,
        failures=numbers.failures,
        due_in=None if quarantined else routing_delay(waited or 0.0, jitter=jitter),
        cause=reason,
        unroutable=True,
        recorded=waited is None,  # the first of a series; a rolling deploy may bring hundreds
    )
