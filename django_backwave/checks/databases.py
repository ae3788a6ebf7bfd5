"""Checks of the databases: whether jobs in them can be claimed, renewed and settled as promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections, router

from django_backwave import conf
from django_backwave.backend import jobs_database

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

#: A lease that is shorter, in seconds, does not survive a busy moment of the machine.
SHORT_LEASE = 3.0


@register()
def check_databases(**_: Any) -> list[CheckMessage]:
    """Report what the settings of the jobs' database do to jobs, without connecting to it."""
    alias = _jobs_database()
    if alias is None:
        return []  # check_settings says so
    connection = connections[alias]
    return [
        *_lease(),
        *_migrations(alias),
        *_sqlite(connection),
        *_isolation(connection),
    ]


@register(Tags.database)
def check_row_locks(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Report a server that cannot pass over locked rows (E007); asks it for its version."""
    alias = _jobs_database()
    if alias is None or alias not in (databases or ()):
        return []
    features = connections[alias].features
    if not features.has_select_for_update or features.has_select_for_update_skip_locked:
        return []
    return [
        Error(
            f"The database {alias!r} does not know SKIP LOCKED, and workers would wait for each other.",
            hint="Use MariaDB 10.6, MySQL 8.0.1, PostgreSQL, or newer.",
            id="django_backwave.E007",
        )
    ]


def _jobs_database() -> str | None:
    try:
        alias = jobs_database()
    except (AttributeError, TypeError):
        return None
    return alias if alias in connections.settings else None


def _lease() -> Iterator[CheckMessage]:
    seconds = conf.seconds("LEASE")
    if seconds < SHORT_LEASE:
        yield Warning(
            f"BACKWAVE['LEASE'] is {seconds:g} s, and a heartbeat is sent every {seconds / 3:g} s: a short "
            "pause of a worker loses its jobs to another one.",
            hint=f"Use {SHORT_LEASE:g} s or more; the default is 60.",
            id="django_backwave.W002",
        )


def _migrations(alias: str) -> Iterator[CheckMessage]:
    if not router.allow_migrate(alias, "django_backwave", model_name="job"):
        yield Error(
            f"Jobs are stored in the database {alias!r}, but the routers allow no migration of "
            "django_backwave there.",
            hint='Let a router\'s allow_migrate() return True for it, or change BACKWAVE["DATABASE"].',
            id="django_backwave.E006",
        )


def _sqlite(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    options = connection.settings_dict["OPTIONS"]
    if connection.vendor == "sqlite" and str(options.get("transaction_mode")).upper() != "IMMEDIATE":
        yield Warning(
            f"The SQLite database {connection.alias!r} begins its transactions without a lock: one that "
            'reads before it writes fails with "database is locked" while a worker is busy.',
            hint='Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, '
            '"init_command": "PRAGMA journal_mode=WAL"}.',
            id="django_backwave.W003",
        )


def _isolation(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    level = connection.settings_dict["OPTIONS"].get("isolation_level")
    if connection.vendor == "mysql":
        default = "read committed"
        strict = str(level or default).lower() != default
    else:
        strict = connection.vendor == "postgresql" and level is not None and int(level) > 2
    if strict:
        yield Warning(
            f"The database {connection.alias!r} has a stricter isolation level than READ COMMITTED: an "
            "enqueue, a cancel or a handler's own writes may fail where they meet a worker's.",
            hint="Remove isolation_level from its OPTIONS, or be ready to run such transactions again. "
            "Workers' own connections use READ COMMITTED in any case.",
            id="django_backwave.W004",
        )
