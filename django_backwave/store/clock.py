"""The one clock: the database's, as SQL expressions; or a virtual instant in its place (G10).

PostgreSQL's ``now()`` is frozen at BEGIN, so fences and new lease ends use ``clock_timestamp()``. That one
is volatile and can be no index condition, so range conditions use ``statement_timestamp()``. MySQL's clock
is fixed at the start of a statement: lock first, then write in the next one. SQLite runs inside this
process, so its clock is this machine's.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Func, Value

from django_backwave.instants import to_utc
from django_backwave.models.fields import InstantField

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import Expression

#: Who tells the time of each alias where no instant is given, in the place of its database: for tests only.
_told_by: Callable[[str], datetime] | None = None


class _Instant(Func):
    """The instant at which the database evaluates it."""

    function = "CLOCK_TIMESTAMP"
    output_field = InstantField()

    def resolve_expression(self, *_: Any, **__: Any) -> Any:
        """Return itself: there is nothing in it to resolve, and each enqueue would pay for trying."""
        return self

    def as_sql(self, *_: Any, **__: Any) -> Any:
        return f"{self.function}()", []

    def as_mysql(self, *_: Any, **__: Any) -> Any:
        return "UTC_TIMESTAMP(6)", []


class _Statement(_Instant):
    """The instant at which the statement began."""

    function = "STATEMENT_TIMESTAMP"


def instant(using: str, now: datetime | None = None) -> Expression:
    """Return the real instant, for fences, new lease ends and records."""
    return _expression(_INSTANT, using, now)


def statement(using: str, now: datetime | None = None) -> Expression:
    """Return the instant for range conditions: what is due, lapsed or old."""
    return _expression(_STATEMENT, using, now)


_INSTANT, _STATEMENT = _Instant(), _Statement()


def _expression(real: Expression, using: str, now: datetime | None) -> Expression:
    if now is None and _told_by is not None:
        now = _told_by(using)
    if now is None and connections[using].vendor != "sqlite":
        return real
    return Value(now or _local(), output_field=InstantField())


def instant_sql(now: datetime | None) -> str:
    """Return the real instant in PostgreSQL's words; ``%(now)s`` stands for a virtual one."""
    return "clock_timestamp()" if now is None else "%(now)s::timestamptz"


def moment_sql(now: datetime | None) -> str:
    """Return the real instant in PostgreSQL's words, read once for all rows where it stands.

    For statements that wait for nobody, so that their rows are written at one moment.
    """
    return "(SELECT clock_timestamp())" if now is None else instant_sql(now)


def statement_sql(now: datetime | None) -> str:
    """Return the instant for range conditions in PostgreSQL's words."""
    return "statement_timestamp()" if now is None else "%(now)s::timestamptz"


def read(using: str, now: datetime | None = None) -> datetime:
    """Return the database's time as an aware datetime in UTC."""
    if now is None and _told_by is not None:
        return _told_by(using)
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


@contextmanager
def told_by(tell: Callable[[str], datetime] | None) -> Iterator[None]:
    """Let a function tell the time in this process for a while, or the databases again: for tests.

    The doors for workers write PostgreSQL's own words, and are to be handed the instant all the same.
    """
    global _told_by
    before, _told_by = _told_by, tell
    try:
        yield
    finally:
        _told_by = before


def is_virtual() -> bool:
    """Whether the time is told by a function, and so concerns no worker."""
    return _told_by is not None


def ahead(using: str) -> float:
    """Return by how many seconds this host's clock is ahead of the database's, by no more than is sure."""
    before, there, after_ = _local(), read(using), _local()
    if before > there:
        return (before - there).total_seconds()
    return min(0.0, (after_ - there).total_seconds())


#: The most seconds that are reckoned with. Only a row written by hand can say more, and must stop nobody.
LONGEST = 1e9

#: A job's lease in PostgreSQL's words, within those bounds. NaN is more than any number there.
LEASE = f"LEAST(GREATEST(COALESCE(j.lease_seconds, %(lease)s), 0), {LONGEST:f})"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _local() -> datetime:
    return datetime.now(UTC)


def after(start: datetime, seconds: float) -> datetime:
    """Return the instant some seconds after another; of NaN, and of what is out of range, the longest."""
    return to_utc(start) + timedelta(seconds=max(-LONGEST, min(LONGEST, seconds)))


def monotonic() -> float:
    """Return this process's own clock, in seconds: for spacing things out, never for what is due."""
    return time.monotonic()


def chance() -> float:
    """Return a number in [0, 1): for spacing things out, and for no secret."""
    return random.random()  # noqa: S311
