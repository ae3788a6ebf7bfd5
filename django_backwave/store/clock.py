"""The one clock: the database's, as SQL expressions; or a virtual instant in its place (G10).

PostgreSQL's ``now()`` is frozen at BEGIN, so fences and new lease ends use ``clock_timestamp()``. That one
is volatile and can be no index condition, so range conditions use ``statement_timestamp()``. MySQL's clock
is fixed at the start of a statement: lock first, then write in the next one. SQLite runs inside this
process, so its clock is this machine's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Func, Value

from django_backwave.instants import to_utc
from django_backwave.models.fields import InstantField

if TYPE_CHECKING:
    from django.db.models import Expression


class _Instant(Func):
    """The instant at which the database evaluates it."""

    function = "CLOCK_TIMESTAMP"
    output_field = InstantField()

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


class _Statement(_Instant):
    """The instant at which the statement began."""

    function = "STATEMENT_TIMESTAMP"


def instant(using: str, now: datetime | None = None) -> Expression:
    """Return the real instant, for fences, new lease ends and records."""
    return _expression(_Instant, using, now)


def statement(using: str, now: datetime | None = None) -> Expression:
    """Return the instant for range conditions: what is due, lapsed or old."""
    return _expression(_Statement, using, now)


def _expression(kind: type[_Instant], using: str, now: datetime | None) -> Expression:
    if now is None and connections[using].vendor != "sqlite":
        return kind()
    return Value(now or _local(), output_field=InstantField())


def instant_sql(now: datetime | None) -> str:
    """Return the real instant in PostgreSQL's words; ``%(now)s`` stands for a virtual one."""
    return "clock_timestamp()" if now is None else "%(now)s::timestamptz"


def statement_sql(now: datetime | None) -> str:
    """Return the instant for range conditions in PostgreSQL's words."""
    return "statement_timestamp()" if now is None else "%(now)s::timestamptz"


def read(using: str, now: datetime | None = None) -> datetime:
    """Return the database's time as an aware datetime in UTC."""
    connection = connections[using]
    if now is not None or connection.vendor == "sqlite":
        return now or _local()
    if connection.vendor == "postgresql":
        sql = "SELECT extract(epoch FROM clock_timestamp())"
    else:
        sql = "SELECT UTC_TIMESTAMP(6)"
    with connection.cursor() as cursor:
        cursor.execute(sql)
        value = cursor.fetchone()[0]
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    return EPOCH + timedelta(microseconds=round(value * 1_000_000))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _local() -> datetime:
    return datetime.now(UTC)


def after(start: datetime, seconds: float) -> datetime:
    """Return the instant some seconds after another."""
    return to_utc(start) + timedelta(seconds=seconds)
