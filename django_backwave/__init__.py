"""Background jobs in the application's own database: what users import.

Names are loaded on first use, so that importing the package needs neither settings nor apps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_backwave.backend import BackWaveBackend
    from django_backwave.context import JobContext
    from django_backwave.core.operation import Disposition, Resolution
    from django_backwave.core.policy import Backoff
    from django_backwave.core.protocol import CancelResult
    from django_backwave.core.states import JobState
    from django_backwave.exceptions import EnqueueOutcomeUnknown, GiveUp, Retry, Snooze, Stopped
    from django_backwave.handles import JobHandle
    from django_backwave.jobs import aenqueue_many, enqueue_many, job
    from django_backwave.outcome import Receipt, atomic
    from django_backwave.prepared import PreparedEnqueue
    from django_backwave.results import JobResult

__version__ = "0.1.0"

_HOMES = {
    "BackWaveBackend": "django_backwave.backend",
    "Backoff": "django_backwave.core.policy",
    "CancelResult": "django_backwave.core.protocol",
    "Disposition": "django_backwave.core.operation",
    "EnqueueOutcomeUnknown": "django_backwave.exceptions",
    "GiveUp": "django_backwave.exceptions",
    "JobContext": "django_backwave.context",
    "JobHandle": "django_backwave.handles",
    "JobResult": "django_backwave.results",
    "JobState": "django_backwave.core.states",
    "PreparedEnqueue": "django_backwave.prepared",
    "Receipt": "django_backwave.outcome",
    "Resolution": "django_backwave.core.operation",
    "Retry": "django_backwave.exceptions",
    "Snooze": "django_backwave.exceptions",
    "Stopped": "django_backwave.exceptions",
    "aenqueue_many": "django_backwave.jobs",
    "atomic": "django_backwave.outcome",
    "enqueue_many": "django_backwave.jobs",
    "job": "django_backwave.jobs",
}

__all__ = [
    "BackWaveBackend",
    "Backoff",
    "CancelResult",
    "Disposition",
    "EnqueueOutcomeUnknown",
    "GiveUp",
    "JobContext",
    "JobHandle",
    "JobResult",
    "JobState",
    "PreparedEnqueue",
    "Receipt",
    "Resolution",
    "Retry",
    "Snooze",
    "Stopped",
    "aenqueue_many",
    "atomic",
    "enqueue_many",
    "job",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
