"""Every exception that users can meet or raise.

::

    Exception
    ├── BackWaveError
    │   ├── InvalidJob (also ValueError)        a definition or an enqueue was refused; nothing was written
    │   │   ├── InvalidArguments (also TypeError)   the arguments do not fit, or are not JSON
    │   │   └── ForeignTransaction              a transaction is open on another database only (G1)
    │   ├── KeyConflict                         a key does not admit the enqueue; nothing was written
    │   │   ├── DuplicateKey                        it has a generation already, or is another job's
    │   │   └── KeyBusy                             it has a generation that is unfinished
    │   ├── EnqueueOutcomeUnknown               the connection was lost: it may have been applied, or not
    │   ├── OperationMismatch                   an operation's id was used for other work; nothing was written
    │   ├── OperationExpired                    a prepared enqueue came too late; nothing was written
    │   ├── CannotResolve (also RuntimeError)   resolve() inside a transaction
    │   ├── SchemaMismatch                      a stored job's schema is none that its reader takes
    │   ├── InvalidHandle (also ValueError)     a text is no handle of ours
    │   ├── CannotWait (also RuntimeError)      a wait would never end, or hold locks until it does
    │   ├── WaitError                           a wait has ended without an output
    │   │   ├── JobFailed                           the job is dead-lettered, or quarantined
    │   │   ├── JobCancelled                        the job was cancelled, or has expired
    │   │   ├── JobPruned                           there is no such job any more
    │   │   └── WaitTimeout (also TimeoutError)     the time is up, and the job goes on
    │   ├── DuplicateJobName                    two handlers claim one stored name
    │   ├── NotAtomic                           a wrong use of an atomic job, or of context.atomic()
    │   ├── NotOnce                             a wrong use of context.once()
    │   ├── AttemptAbandoned                    in a result's errors: an attempt whose lease lapsed
    │   └── TimedOut                            in a result's errors: an attempt whose time-out was over
    ├── Snooze                                  raised by a handler: run later, no failure counted
    ├── Retry                                   raised by a handler: a failure, tried again when it says
    └── GiveUp                                  raised by a handler: dead-letter now
    BaseException
    └── Stopped                                 raised in a handler that must stop
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_backwave.core.operation import Disposition
from django_backwave.core.policy import delay_seconds

if TYPE_CHECKING:
    from datetime import timedelta

    from django_backwave.core.protocol import StopReason
    from django_backwave.core.states import JobState
    from django_backwave.handles import JobHandle
    from django_backwave.prepared import PreparedEnqueue
    from django_backwave.results import JobResult


class BackWaveError(Exception):
    """Base of this package's errors."""


class InvalidJob(BackWaveError, ValueError):
    """A job's definition or its enqueue was refused before any SQL; nothing was written."""

    disposition = Disposition.KNOWN_NOT_APPLIED


class InvalidArguments(InvalidJob, TypeError):
    """The arguments do not fit the handler's signature, or are not JSON."""


class ForeignTransaction(InvalidJob):
    """The caller's open transaction is on another database than the jobs (G1)."""


class KeyConflict(BackWaveError):
    """A key does not admit an enqueue or a requeue; nothing was written.

    ``result``: the generation that is in the way; None where that was another call of the same
    ``enqueue_many``, of which nothing is left.
    """

    disposition = Disposition.KNOWN_NOT_APPLIED

    def __init__(self, message: str, result: JobResult | None) -> None:
        """Keep the generation that is in the way."""
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both arguments."""
        return type(self), (*self.args, self.result)


class DuplicateKey(KeyConflict):
    """The key has a generation already, or belongs to another job name."""


class KeyBusy(KeyConflict):
    """The key has a generation that is unfinished."""


class EnqueueOutcomeUnknown(BackWaveError):
    """The connection was lost before the database could say whether it had applied an enqueue.

    ``prepared``: what was being enqueued. ``resolve()`` of each says whether it was applied, and its
    ``enqueue()`` applies it, once. To enqueue it in any other way may do it twice. The cause is the driver's
    error.
    """

    disposition = Disposition.UNKNOWN

    def __init__(self, message: str, prepared: list[PreparedEnqueue]) -> None:
        """Keep what was being enqueued."""
        super().__init__(message)
        self.prepared = prepared

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both arguments."""
        return type(self), (*self.args, self.prepared)


class OperationMismatch(BackWaveError):
    """A prepared enqueue's id was recorded with other work; nothing was written."""

    disposition = Disposition.KNOWN_NOT_APPLIED


class OperationExpired(BackWaveError):
    """A prepared enqueue was asked for after its deadline, or after it was resolved; nothing was written.

    ``disposition``: whether an earlier call may have applied it nevertheless.
    """

    def __init__(self, message: str, disposition: Disposition) -> None:
        """Keep what is known of earlier calls."""
        super().__init__(message)
        self.disposition = disposition

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both arguments."""
        return type(self), (*self.args, self.disposition)


class CannotResolve(BackWaveError, RuntimeError):
    """``resolve()`` was called inside a transaction, whose rollback would take its answer back."""


class SchemaMismatch(BackWaveError):
    """A stored job's schema is none that its reader takes; nothing of the job was handed out.

    ``schema``: the job's own, None if it was stored without one. ``expected``: those that the reader takes.
    """

    def __init__(self, message: str, schema: str | None, expected: tuple[str | None, ...]) -> None:
        """Keep the job's schema and those that were expected."""
        super().__init__(message)
        self.schema = schema
        self.expected = expected

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all arguments."""
        return type(self), (*self.args, self.schema, self.expected)


class InvalidHandle(BackWaveError, ValueError):
    """A text is no handle of a job that this project has written, or one of a version unknown here."""


class CannotWait(BackWaveError, RuntimeError):
    """A wait was refused before it began, for it would never end, or hold locks until it does."""


class WaitError(BackWaveError):
    """A wait for a job has ended without an output.

    ``handle``: of the job that was waited for.
    """

    def __init__(self, message: str, handle: JobHandle, *more: Any) -> None:
        """Keep the handle, and what else there is to pickle."""
        super().__init__(message)
        self.handle = handle
        self._more = more

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all arguments."""
        return type(self), (*self.args, self.handle, *self._more)


class JobFailed(WaitError):
    """The job is dead-lettered or quarantined: only an operator's requeue can move it again.

    ``result``: the job with its state, cause and errors.
    """

    def __init__(self, message: str, handle: JobHandle, result: JobResult) -> None:
        """Keep the result."""
        super().__init__(message, handle, result)
        self.result = result


class JobCancelled(WaitError):
    """The job was cancelled, or had not started before it expired.

    ``result``: the job; its cause says which.
    """

    def __init__(self, message: str, handle: JobHandle, result: JobResult) -> None:
        """Keep the result."""
        super().__init__(message, handle, result)
        self.result = result


class JobPruned(WaitError):
    """There is no such job: it was pruned, or the transaction that enqueued it was rolled back.

    ``latest``: the latest generation of its key, None without a key, or if the key has been forgotten.
    ``settled_as``: the state in which the job ended, if that is still known.
    """

    def __init__(
        self, message: str, handle: JobHandle, latest: JobHandle | None, settled_as: JobState | None
    ) -> None:
        """Keep what is left of the job and its key."""
        super().__init__(message, handle, latest, settled_as)
        self.latest = latest
        self.settled_as = settled_as


class WaitTimeout(WaitError, TimeoutError):
    """The time to wait is up, and the job goes on.

    ``state``: how the job stood when it was last seen.
    """

    def __init__(self, message: str, handle: JobHandle, state: JobState) -> None:
        """Keep the state."""
        super().__init__(message, handle, state)
        self.state = state


class DuplicateJobName(BackWaveError, ValueError):
    """Two handlers claim the same stored name."""


class NotAtomic(BackWaveError, RuntimeError):
    """An atomic job or block cannot keep its promise as it is used; nothing was written."""


class NotOnce(BackWaveError, RuntimeError):
    """``context.once()`` was used where its mark could not be kept; nothing was written."""


class AttemptAbandoned(BackWaveError):
    """An attempt ended because its lease lapsed: its worker crashed, froze or lost the database."""


class TimedOut(BackWaveError):
    """An attempt ran for longer than its job's time-out, and was told to stop."""


class Snooze(Exception):
    """Raised by a handler to run again later, without a failure.

    ``delay``: seconds or a timedelta, at least 1 second.
    """

    def __init__(self, delay: float | timedelta) -> None:
        """Check the delay where it is given, inside the handler."""
        super().__init__(delay)
        self.seconds = delay_seconds("Snooze", delay)


class Retry(Exception):
    """Raised by a handler that failed and knows when to be tried again; the failure counts.

    ``after``: seconds or a timedelta, at least 1 second, instead of the job's backoff; chance takes nothing
    away. ``reason`` becomes the job's cause. Whatever ``retry_on`` and ``give_up_on`` say, only used up
    failures dead-letter the job.
    """

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        """Check the delay where it is given, inside the handler."""
        super().__init__(after, reason)
        self.seconds = delay_seconds("Retry", after)
        self.reason = reason

    def __str__(self) -> str:
        """Say why, or else when."""
        return self.reason or f"again in {self.seconds:g} s"


class GiveUp(Exception):
    """Raised by a handler to send its job to the dead letters, whatever is left of its tries."""

    def __init__(self, reason: str = "") -> None:
        """Keep the reason: it becomes the job's cause."""
        super().__init__(reason)
        self.reason = reason


class Stopped(BaseException):
    """Raised in a handler that must stop; ``reason`` says why.

    A BaseException, so that the handler's own ``except Exception`` does not swallow it.
    """

    def __init__(self, reason: StopReason) -> None:
        """Keep the reason."""
        super().__init__(reason.value)
        self.reason = reason
