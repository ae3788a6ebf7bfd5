"""Every exception that users can meet or raise.

::

    Exception
    ├── BackWaveError
    │   ├── InvalidJob (also ValueError)        a definition or an enqueue was refused; nothing was written
    │   │   ├── InvalidArguments (also TypeError)   the arguments do not fit, or are not JSON
    │   │   └── ForeignTransaction              a transaction is open on another database only (G1)
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

from typing import TYPE_CHECKING

from django_backwave.core.policy import delay_seconds

if TYPE_CHECKING:
    from datetime import timedelta

    from django_backwave.core.protocol import StopReason


class BackWaveError(Exception):
    """Base of this package's errors."""


class InvalidJob(BackWaveError, ValueError):
    """A job's definition or its enqueue was refused before any SQL; nothing was written."""


class InvalidArguments(InvalidJob, TypeError):
    """The arguments do not fit the handler's signature, or are not JSON."""


class ForeignTransaction(InvalidJob):
    """The caller's open transaction is on another database than the jobs (G1)."""


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
