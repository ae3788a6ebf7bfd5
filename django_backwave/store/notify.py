"""Notifications on PostgreSQL: an enqueue wakes idle workers once it is committed, and never before.

A notification carries the name of a queue and only saves time: workers poll all the same, so one that is left
out, lost or late costs a wait, never a job. Inside the caller's transaction it is sent with the commit, and
with a rollback not at all (G1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Func

from django_backwave import conf
from django_backwave.models.fields import InstantField
from django_backwave.store import clock
from django_backwave.store.locking import is_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

#: What is listened to: one channel a database. The payload is a queue's name.
CHANNEL = "django_backwave"

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


class Subscription:
    """Listens on the connection that this thread has to an alias, which is to be used for nothing else."""

    def __init__(self, using: str) -> None:
        """Connect, if need be, and listen. Raises whatever the connection does."""
        connection: Any = connections[using]
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self._raw = connection.connection.pgconn
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


def cannot_listen(using: str) -> str | None:
    """Say why this process cannot listen on an alias, None if it can."""
    if not is_postgres(using):
        return "it is no PostgreSQL"
    from django.db.backends.postgresql.psycopg_any import is_psycopg3  # which needs a driver

    return None if is_psycopg3 else "listening needs psycopg 3, and this is psycopg2"
