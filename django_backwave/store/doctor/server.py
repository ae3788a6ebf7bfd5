"""What the database itself is busy with: dead rows, old transactions, and its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from django_backwave.models import Job
from django_backwave.store import clock
from django_backwave.store.doctor.results import Limits, Result, Severity, Unavailable, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DEAD_ROWS = "SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relid = %s::regclass"

# Prepared transactions have no session. Other users' sessions hide their times from a user without rights.
_TRANSACTIONS = """
    SELECT extract(epoch FROM clock_timestamp() - min(began))::float8, count(*) FILTER (WHERE hidden)
      FROM (SELECT xact_start AS began, xact_start IS NULL AND state IS NULL AS hidden
              FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND coalesce(backend_type, 'client backend') = 'client backend'
             UNION ALL
            SELECT prepared, false FROM pg_prepared_xacts WHERE database = current_database()) open
"""

# The times are of the server's own zone, whatever this session's is.
_INNODB_TRANSACTIONS = """
    SELECT max(timestampdiff(SECOND, trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM')))
      FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> connection_id()
"""
_INNODB_HISTORY = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
_MARIADB_HISTORY = "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'"


def check_dead_rows(limits: Limits, *, using: str) -> Iterator[Result]:
    """Tell of a jobs' table that is not vacuumed, or of InnoDB's history that is not purged."""
    vendor = connections[using].vendor
    if vendor == "postgresql":
        yield from _dead_tuples(limits, using)
    elif vendor == "mysql":
        yield from _undo_history(limits, using)
    else:
        raise Unavailable("SQLite keeps no dead rows")


def _dead_tuples(limits: Limits, using: str) -> Iterator[Result]:
    table = connections[using].ops.quote_name(Job._meta.db_table)
    dead, live = _row(using, _DEAD_ROWS, [table]) or (0, 0)
    share = dead / max(1, dead + live)
    if dead >= limits.dead_rows and share > limits.dead_share:
        yield Result(
            check="dead-rows",
            severity=Severity.WARNING,
            text=f"{share:.0%} of the jobs' table are dead rows ({dead:,} of {dead + live:,}).",
            remedy="Look for an old transaction that keeps vacuum from its work; make autovacuum of this"
            f" table more eager, or run VACUUM {table}.",
        )


def _undo_history(limits: Limits, using: str) -> Iterator[Result]:
    is_mariadb = getattr(connections[using], "mysql_is_mariadb", False)
    row = _row(using, _MARIADB_HISTORY if is_mariadb else _INNODB_HISTORY)
    if row is None:
        raise Unavailable("the server does not count InnoDB's history list")
    length = int(row[-1])
    if length > limits.history_length:
        yield Result(
            check="dead-rows",
            severity=Severity.WARNING,
            text=f"InnoDB's history list is {length:,} records long.",
            remedy="Look for an old transaction that keeps the purge from its work.",
        )


def check_transactions(limits: Limits, *, using: str) -> Iterator[Result]:
    """Tell of a transaction that is open for so long that dead rows gather behind it."""
    vendor = connections[using].vendor
    if vendor == "sqlite":
        raise Unavailable("SQLite does not tell of other connections' transactions")
    row = _row(using, _TRANSACTIONS if vendor == "postgresql" else _INNODB_TRANSACTIONS)
    oldest, *hidden = row or (None,)
    if oldest is not None and oldest > limits.transaction_age:
        yield Result(
            check="open-transactions",
            severity=Severity.WARNING,
            text=f"A transaction has been open for {oldest:,.0f} s.",
            remedy="End it: while it lasts no dead row is removed, and claims slow down.",
        )
    elif any(hidden):
        raise Unavailable(
            f"{counted(hidden[0], 'session')} of other users cannot be seen; GRANT pg_read_all_stats"
        )


def check_clock(limits: Limits, *, using: str) -> Iterator[Result]:
    """Tell of a host whose clock differs from the database's."""
    if connections[using].vendor == "sqlite":
        raise Unavailable("SQLite has no clock but this host's")
    off = clock.ahead(using)
    side = "ahead of" if off > 0 else "behind"
    if abs(off) > limits.clock:
        yield Result(
            check="clock",
            severity=Severity.WARNING,
            text=f"This host's clock is {abs(off):,.1f} s {side} the database's.",
            remedy="Let both follow NTP: what this host enqueues for a certain time is due by the database's"
            " clock.",
        )


def _row(using: str, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        row: tuple[Any, ...] | None = cursor.fetchone()
        return row
