"""Every exception that users can meet or raise.

::

    Exception
    ├── BackWaveError
    │   ├── InvalidJob (also ValueError)        a definition or an enqueue was refused; nothing was written
    │   │   ├── InvalidArguments (also TypeError)   the arguments do not fit, or are not JSON
    │   │   └── ForeignTransaction              a transaction is open on another database only (G1)
    │   ├── DuplicateJobName                    two handlers claim one stored name
    │   ├── NotAtomic                           a wrong use of context.atomic()
    │   └── AttemptAbandoned                    in a result's errors: an attempt whose lease lapsed
    ├── Snooze                                  raised by a handler: run later, no failure counted
    └── GiveUp                                  raised by a handler: dead-letter now
    BaseException
    └── Stopped                                 raised in a handler that must stop
"""

from __future__ import annotations

from datetime import timedelta

from django_backwave.core.policy import SHORTEST_DELAY
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
    """``context.atomic()`` was used where it cannot keep its promise; nothing was written."""


class AttemptAbandoned(BackWaveError):
    """An attempt ended because its lease lapsed: its worker crashed, froze or lost the database."""


class Snooze(Exception):
    """Raised by a handler to run again later, without a failure.

    ``delay``: seconds or a timedelta, at least 1 second.
    """

    def __init__(self, delay: float | timedelta) -> None:
        """Check the delay where it is given, inside the handler."""
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"Snooze takes seconds or a timedelta, got {delay!r}.")
        if not SHORTEST_DELAY <= seconds < 10**9:
            raise ValueError(
                f"Snooze takes at least {SHORTEST_DELAY:g} second and less than 10**9, got {delay!r}."
            )
        super().__init__(delay)
        self.seconds = float(seconds)


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
