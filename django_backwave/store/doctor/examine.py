"""Make all checks, each group of them within its bounds, and answer for each."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError, connections, transaction

from django_backwave.core.states import TERMINAL
from django_backwave.store.doctor import backlog, rows, schema, server
from django_backwave.store.doctor.results import Limits, Result, Severity, Unavailable
from django_backwave.store.unreadable import is_unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import datetime

#: Steps of SQLite's machine that stand for one second there: it has no time-out for statements.
STEPS = 20_000_000

#: Codes of PostgreSQL, MySQL and MariaDB for a user who may not read something.
_NO_RIGHTS = {"42501", 1044, 1142, 1143, 1227}


class _Group(NamedTuple):
    """Checks that are made together, and their ids."""

    checks: tuple[str, ...]
    run: Callable[[], Iterator[Result]]


def examine(
    *,
    known: Collection[str] | None,
    limits: Limits | None = None,
    using: str,
    now: datetime | None = None,
) -> list[Result]:
    """Return the answer of every check, in a fixed order; writes nothing and holds no snapshot.

    ``known`` are the job names that this code defines, None if that cannot be said. Each statement has a
    time-out. Rows are sampled, ``limits.rows`` of each state, so the cost does not grow with the history. A
    check that cannot be made says so instead of ending the others.
    """
    groups = _groups(known, limits or Limits(), using, now)
    return [result for group in groups for result in _answers(group, limits or Limits(), using)]


def _groups(
    known: Collection[str] | None, limits: Limits, using: str, now: datetime | None
) -> Iterator[_Group]:
    at: dict[str, Any] = {"using": using, "now": now}

    # Read once, by the first check that needs it.
    @cache
    def ready() -> list[rows.Row]:
        return rows.ready_rows(limits, using=using)

    @cache
    def running() -> list[rows.Row]:
        return rows.running_rows(limits, using=using)

    @cache
    def sample() -> list[rows.Row]:
        finished = [rows.finished_rows(state, limits, using=using) for state in sorted(TERMINAL)]
        return running() + ready() + [row for each in finished for row in each]

    def ages() -> dict[str, float]:
        return backlog.oldest_due(ready(), **at)

    yield _Group(("migrations",), partial(schema.check_migrations, using=using))
    yield _Group(("schema",), partial(schema.check_schema, using=using))
    yield _Group(("unreadable-rows",), partial(rows.check_readable, limits, using=using))
    yield _Group(("lapsed-leases",), partial(rows.check_lapsed, limits, **at))
    yield _Group(rows.ROW_CHECKS, lambda: rows.check_rows(sample()))
    yield _Group(rows.HISTORY_CHECKS, lambda: rows.check_history(sample(), using=using))
    yield _Group(("late-jobs",), lambda: backlog.check_late(ages(), limits))
    yield _Group(("unserved-queues",), lambda: backlog.check_served(ages(), limits, **at))
    yield _Group(("unknown-names",), lambda: backlog.check_names(running() + ready(), known, **at))
    yield _Group(("pauses",), partial(backlog.check_pauses, limits, **at))
    yield _Group(("silent-workers",), partial(backlog.check_silent, limits, **at))
    yield _Group(("dead-rows",), partial(server.check_dead_rows, limits, using=using))
    yield _Group(("open-transactions",), partial(server.check_transactions, limits, using=using))
    yield _Group(("clock",), partial(server.check_clock, limits, using=using))


def _answers(group: _Group, limits: Limits, using: str) -> Iterator[Result]:
    try:
        with _bounded(using, limits.timeout):
            found = {result.check: result for result in group.run()}
    except Unavailable as reason:
        found = {check: _unanswered(check, Severity.UNAVAILABLE, str(reason)) for check in group.checks}
    except Exception as error:
        if is_unreadable(error):
            found = {check: _unreadable(check) for check in group.checks}
        elif isinstance(error, DatabaseError):
            found = {check: _failed(check, error) for check in group.checks}
        else:
            raise
    for check in group.checks:
        yield found.get(check) or Result(check=check, severity=Severity.OK, text="nothing found")


def _unanswered(check: str, severity: Severity, text: str, remedy: str = "") -> Result:
    line = text.strip().splitlines()[0].rstrip(".")
    return Result(check=check, severity=severity, text=f"{line}.", remedy=remedy)


def _unreadable(check: str) -> Result:
    return _unanswered(
        check,
        Severity.WARNING,
        "could not be made: rows that it reads hold what is no value of their columns",
        "Somebody has written them by hand; correct them there.",
    )


def _failed(check: str, error: DatabaseError) -> Result:
    code = getattr(error.__cause__, "sqlstate", None) or next(iter(error.args), None)
    if code in _NO_RIGHTS:
        return _unanswered(check, Severity.UNAVAILABLE, f"this user may not read it: {error}")
    return _unanswered(
        check,
        Severity.WARNING,
        f"could not be made: {error}",
        "Try again with a longer --timeout or fewer --rows, and when the database is less busy.",
    )


@contextmanager
def _bounded(using: str, seconds: float) -> Iterator[None]:
    """Give each statement a time-out, and refuse to write where the database can.

    Inside a transaction of the caller's, that one's bounds hold.
    """
    connection: Any = connections[using]
    connection.ensure_connection()
    if connection.in_atomic_block:
        yield
        return
    bounds = {"postgresql": _bounded_postgres, "mysql": _bounded_mysql, "sqlite": _bounded_sqlite}
    with bounds[connection.vendor](connection, seconds):
        yield


@contextmanager
def _bounded_postgres(connection: Any, seconds: float) -> Iterator[None]:
    with transaction.atomic(using=connection.alias):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            # Local to the transaction: a session may belong to a pooler.
            cursor.execute(f"SET LOCAL statement_timeout = {round(seconds * 1000):d}")
        yield


@contextmanager
def _bounded_mysql(connection: Any, seconds: float) -> Iterator[None]:
    setting = "max_statement_time" if connection.mysql_is_mariadb else "max_execution_time"
    value = seconds if connection.mysql_is_mariadb else round(seconds * 1000)
    with connection.cursor() as cursor:
        cursor.execute(f"SET @backwave_before = @@SESSION.{setting}")
        cursor.execute(f"SET SESSION {setting} = %s", [value])
        try:
            yield
        finally:
            cursor.execute(f"SET SESSION {setting} = @backwave_before")


@contextmanager
def _bounded_sqlite(connection: Any, seconds: float) -> Iterator[None]:
    # No transaction: it would take the one write lock, if it is set up as we advise.
    connection.connection.set_progress_handler(lambda: 1, max(1, round(seconds * STEPS)))
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)
