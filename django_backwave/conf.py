"""The settings: one dict, ``BACKWAVE``, read lazily, so that ``override_settings`` works.

Every key, its default and its meaning stand in ``DEFAULTS`` and in docs/settings.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

#: Durations are seconds or timedeltas; sizes are bytes.
DEFAULTS: dict[str, Any] = {
    "DATABASE": None,  # alias of the jobs' database; None: where the router writes Job
    "MODULES": [],  # further modules with handlers, beside `jobs` and `tasks` of each app
    "ON_ENQUEUE": [],  # dotted paths of callables: task → dict of headers, kept with the job
    "AROUND": [],  # dotted paths of callables: context → context manager, entered around each handler
    "ALLOW_SEPARATE_TRANSACTION": False,  # give up G1 while a transaction is open elsewhere
    "MAX_PAYLOAD": 256 * 1024,  # bytes of JSON
    "MAX_OUTPUT": 64 * 1024,  # bytes of JSON
    "LEASE": 60.0,  # of a worker whose --lease is not given
    "POLL": 1.0,  # of a worker whose --poll is not given
    "NOTIFY": True,  # wake workers on PostgreSQL; False: only poll; an alias: listen through that one
    "UNROUTABLE_GRACE": 3600.0,  # until a job that no worker can route is quarantined
    "KEEP_DONE": timedelta(days=7),  # succeeded and cancelled jobs; None: for ever
    "KEEP_DEAD": timedelta(days=30),  # dead-lettered and quarantined jobs; None: for ever
}


def value(key: str) -> Any:
    """Return a setting, or its default.

    Raises ImproperlyConfigured if ``BACKWAVE`` is not a dict.
    """
    given = getattr(settings, "BACKWAVE", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(
            f"BACKWAVE must be a dict of settings, got {type(given).__name__}. "
            'For example: BACKWAVE = {"MODULES": ["shop.receipts"]}.'
        )
    return given.get(key, DEFAULTS[key])


def seconds(key: str) -> float:
    """Return a duration in seconds.

    Raises ImproperlyConfigured if it is neither a positive number nor a positive timedelta.
    """
    given = value(key)
    number = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise ImproperlyConfigured(
            f"BACKWAVE[{key!r}] must be a positive number of seconds or a timedelta, got {given!r}."
        )
    return float(number)


def seconds_or_none(key: str) -> float | None:
    """Return a duration in seconds, or None where the setting is None."""
    return None if value(key) is None else seconds(key)
