"""Helpers for your own tests: run jobs in the test itself, look at what is enqueued, move the clock.

Nothing of the package imports this one. Names are loaded on first use: the pytest plugin lies in here, too,
and is imported before the settings are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_backwave.testing.clock import Clock, virtual_clock
    from django_backwave.testing.enqueued import assert_enqueued, assert_not_enqueued, enqueued_jobs
    from django_backwave.testing.running import arun_jobs, run_jobs
    from django_backwave.testing.runs import Run, RunError

_HOMES = {
    "Clock": "django_backwave.testing.clock",
    "Run": "django_backwave.testing.runs",
    "RunError": "django_backwave.testing.runs",
    "arun_jobs": "django_backwave.testing.running",
    "assert_enqueued": "django_backwave.testing.enqueued",
    "assert_not_enqueued": "django_backwave.testing.enqueued",
    "enqueued_jobs": "django_backwave.testing.enqueued",
    "run_jobs": "django_backwave.testing.running",
    "virtual_clock": "django_backwave.testing.clock",
}

__all__ = [
    "Clock",
    "Run",
    "RunError",
    "arun_jobs",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued_jobs",
    "run_jobs",
    "virtual_clock",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
