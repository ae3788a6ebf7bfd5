"""Notifications on PostgreSQL: an enqueue wakes idle workers, the end of a job who waits for it.

Each is sent with the commit of what it tells, and with a rollback not at all (G1). It only saves time:
workers and waiters poll all the same, so one that is left out, lost or late costs a wait, never a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import BooleanField, Case, F, Func, When

from django_backwave import conf
from django_backwave.models.fields import InstantField
from django_backwave.store import clock
from django_backwave.store.locking import is_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Q

#: What workers listen to: one channel a database. The payload is a queue's name.
CHANNEL = "django_backwave"

#: What is listened to for the ends of jobs that somebody waits for. The payload is a job's id.
ENDED = "django_backwave_ended"

#: The payload that names no queue: there is something due somewhere.
ANYWHERE = ""

#: Seconds between two notifications of one queue by one process, after so many without a pause.
SPACING, BURST = 0.025, 10

#: Queues whose notifications are counted at most.
MOST_QUEUES = 1000


class Throttle:
    """Says which notifications to leave out, for each takes a lock on the whole database at its commit.

    One that is counted may come late or never, because its transaction goes on or rolls back. So a burst goes
    through first, and one is left out only where many others were sent just before.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Begin with nothing sent; ``now`` returns a monotonic time in seconds."""
        self._now = now
        self._used_until: dict[tuple[str, str], float] = {}

    def permits(self, using: str, payload: str) -> bool:
        """Say whether one more may be sent now, and count it. From several threads it may permit one more."""
        now, key = self._now(), (using, payload)
        used_until = max(now, self._used_until.get(key, now))
        if used_until - now > SPACING * (BURST - 0.5):
            return False
        if len(self._used_until) >= MOST_QUEUES:
            self._used_until.clear()  # which permits a few more than it should
        self._used_until[key] = used_until + SPACING
        return True


_throttle = Throttle(clock.monotonic)


class NotifyingInstant(Func):
    """An instant whose statement sends a notification on the way: no round trip more."""

    output_field = InstantField()

    def __init__(self, payload: str, at: datetime | None = None) -> None:
        """Notify with this payload, and be this instant, or the real one when the statement runs."""
        super().__init__()
        self._at = ("CLOCK_TIMESTAMP()", []) if at is None else ("%s::timestamptz", [at])
        self._payload = payload

    def resolve_expression(self, *_: Any, **__: Any) -> Any:
        """Return itself: there is nothing in it to resolve."""
        return self

    def as_sql(self, *_: Any, **__: Any) -> Any:
        """Take the instant from a sub-select, which runs once."""
        sql, params = self._at
        return f"(SELECT {sql} FROM PG_NOTIFY(%s, %s))", [*params, CHANNEL, self._payload]


def permitted(payload: str, *, using: str) -> bool:
    """Whether to send a notification now: it is counted."""
    if not is_postgres(using) or clock.is_virtual():
        return False
    return bool(conf.value("NOTIFY")) and _throttle.permits(using, payload)


def wake(payloads: Iterable[str], *, using: str) -> None:
    """Send a notification for each of these queues, in the caller's transaction, unless there were enough."""
    permits = [payload for payload in payloads if permitted(payload, using=using)]
    if permits:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, name) FROM unnest(%s::text[]) AS name", [CHANNEL, permits])


class _Telling(Func):
    """A job's ``awaited`` once it has ended: nobody waits any more, for the statement tells whoever did.

    True becomes false, and NULL stays NULL: for a job that nobody waits for, nothing is sent.
    """

    output_field = BooleanField(null=True)

    def resolve_expression(self, *_: Any, **__: Any) -> Any:
        """Return itself: there is nothing in it to resolve."""
        return self

    def as_sql(self, *_: Any, **__: Any) -> Any:
        """Name the columns as an UPDATE of the job's own table may."""
        return telling_sql("%s", table="", ends="true"), [ENDED]


_TELLING = _Telling()


def tells() -> bool:
    """Whether ends are told here at all: switched off, no statement of ours asks for a notification."""
    return bool(conf.value("NOTIFY"))


def telling_sql(channel: str, *, table: str = "j.", ends: str) -> str:
    """Return what ``awaited`` becomes in an UPDATE, in PostgreSQL's words; ``ends``: whether the job ends.

    A function returns nothing that is NULL, and so the comparison is false.
    """
    told = f"pg_notify({channel}, CAST({table}id AS text)) IS NULL"
    return f"CASE WHEN {table}awaited AND ({ends}) THEN {told} ELSE {table}awaited END"


def telling(using: str, *, where: Q | None = None) -> dict[str, Any]:
    """Return what an UPDATE of jobs that end writes besides, so that whoever waits for them is told.

    ``where``: of the jobs that it writes to only these end.
    """
    if not is_postgres(using) or not tells():
        return {}
    if where is None:
        return {"awaited": _TELLING}
    field = _TELLING.output_field
    return {"awaited": Case(When(where, then=_TELLING), default=F("awaited"), output_field=field)}


class Subscription:
    """Listens on the connection that this thread has to an alias, which is to be used for nothing else."""

    def __init__(
        self, using: str, *, channel: str = CHANNEL, connection: BaseDatabaseWrapper | None = None
    ) -> None:
        """Connect, if need be, and listen. Raises whatever the connection does.

        ``connection``: this one, instead of the thread's own.
        """
        where: Any = connections[using] if connection is None else connection
        with where.cursor() as cursor:
            cursor.execute(f"LISTEN {channel}")
        self._raw = where.connection.pgconn
        self.asked = False  # for a sign of life that has not come yet

    def fileno(self) -> int:
        """Return the descriptor of the socket, which is readable when there may be something to hear."""
        return int(self._raw.socket)

    def heard(self) -> set[str]:
        """Return the payloads that have come in. Never waits; raises if the connection is lost."""
        self._raw.consume_input()
        while self.asked and not self._raw.is_busy():
            self.asked = self._raw.get_result() is not None  # what it is does not matter
        payloads = set()
        while (notification := self._raw.notifies()) is not None:
            payloads.add(notification.extra.decode())
        return payloads

    def ask(self) -> None:
        """Ask the server for a sign of life, without waiting for it: it may be out of reach."""
        self._raw.send_query(b"SELECT 1")
        self.asked = True


def alias_to_listen(using: str) -> str | None:
    """Return the alias over which to listen for news of another; None if there is none, or none wanted."""
    setting = conf.value("NOTIFY")
    if not setting or not is_postgres(using):
        return None
    return setting if isinstance(setting, str) else using


def cannot_listen(using: str) -> str | None:
    """Say why this process cannot listen on an alias, None if it can."""
    if not is_postgres(using):
        return "it is no PostgreSQL"
    from django.db.backends.postgresql.psycopg_any import is_psycopg3  # which needs a driver

    return None if is_psycopg3 else "listening needs psycopg 3, and this is psycopg2"
