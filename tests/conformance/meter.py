"""How much a database has to look at for a call: rows on a server, steps of its machine in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connection, transaction


def work(call: Callable[[], Any]) -> int:
    """Return how much a call had the database look at. Numbers of one database can be compared."""
    if connection.vendor == "sqlite":
        return _steps(call)
    with transaction.atomic():
        before = _rows()
        call()
        return _rows() - before


def gather_statistics() -> None:
    """Let the planner know how many rows there are, as a database at work does by itself."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("ANALYZE TABLE django_backwave_job, django_backwave_attempt")
            cursor.fetchall()
        elif connection.vendor == "postgresql":
            cursor.execute("ANALYZE django_backwave_job, django_backwave_attempt")


def _rows() -> int:
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in cursor.fetchall())
        cursor.execute(
            "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))"
            " FROM pg_stat_xact_user_tables WHERE relname LIKE 'django_backwave%'"
        )
        return int(cursor.fetchone()[0] or 0)


def _steps(call: Callable[[], Any]) -> int:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    connection.ensure_connection()
    connection.connection.set_progress_handler(step, 10)
    try:
        call()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return count
