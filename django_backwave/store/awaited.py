"""Awaited: what a wait needs of the store.

It reads how a job stands, marks it as awaited, so that its end is told, and listens for that on PostgreSQL.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import InterfaceError, OperationalError, connections

from django_backwave.core.states import UNFINISHED, JobState
from django_backwave.models import Job, Key
from django_backwave.store import clock, notify
from django_backwave.store.committing import in_transaction
from django_backwave.store.locking import unlocked, writing

if TYPE_CHECKING:
    from uuid import UUID

    from django.db.backends.base.base import BaseDatabaseWrapper


#: Connections that the waits of one process listen on at most; the others look from time to time.
MOST_EARS = 8

#: Seconds to connect in.
CONNECT_TIMEOUT = 5


class Newest(NamedTuple):
    """The generation to which a key leads. ``settled_as``: how it ended, once its job has been pruned."""

    job_id: UUID
    name: str
    generation: int
    schema: str | None
    settled_as: JobState | None


def transaction_is_open(using: str) -> bool:
    """Whether the caller has a transaction open; one that a TestCase wraps around a test does not count."""
    return in_transaction(connections[using])


def is_hidden(using: str) -> bool:
    """Whether no worker can see what this connection writes: it is inside of a test's transaction."""
    return connections[using].in_atomic_block


def stand(job_id: UUID, *, using: str) -> JobState | None:
    """Return the state of a job, None if there is no such job: one read by primary key.

    A connection that was lost since it was last used is replaced once. Raises whatever the read does.
    """
    try:
        return _stand(job_id, using)
    except (OperationalError, InterfaceError):
        connection = connections[using]
        if connection.connection is None or connection.in_atomic_block or connection.is_usable():
            raise
        connection.close()
    return _stand(job_id, using)


def _stand(job_id: UUID, using: str) -> JobState | None:
    states = Job.objects.using(using).filter(pk=job_id).values_list("state", flat=True)
    return next(map(JobState, states), None)


def newest(queue: str, key: str, *, using: str) -> Newest | None:
    """Return the last generation of a key, None if the key has been forgotten, or never was."""
    row = Key.objects.using(using).filter(pk=Key.id_of(queue, key)).first()
    if row is None:
        return None
    schemas = Job.objects.using(using).filter(pk=row.job_id).values_list("schema", flat=True)
    settled_as = None if row.settled_as is None else JobState(row.settled_as)
    return Newest(row.job_id, row.name, row.generation, next(iter(schemas), None), settled_as)


def mark(job_id: UUID, *, using: str) -> bool:
    """Say that somebody waits for a job, so that its end is told; return whether it will be.

    False: it has ended, or somebody else has locked its row. Waits for nobody.
    """
    with writing(using):
        jobs = Job.objects.using(using).filter(pk=job_id, state__in=UNFINISHED)
        free = unlocked(jobs, using=using).values_list("awaited", flat=True)
        for awaited in free:
            if not awaited:
                jobs.update(awaited=True)
            return True
    return False


_free_ears = threading.BoundedSemaphore(MOST_EARS)


class Ear:
    """Hears of the ends of jobs that are marked as awaited, on a connection of its own."""

    @classmethod
    def lent(cls, alias: str) -> Ear | None:
        """Connect and listen, and return that; None if there are ``MOST_EARS`` already.

        Raises whatever the connection does.
        """
        if not _free_ears.acquire(blocking=False):
            return None
        connection = _own_connection(alias)
        try:
            return cls(connection, notify.Subscription(alias, channel=notify.ENDED, connection=connection))
        except BaseException:
            connection.close()
            _free_ears.release()
            raise

    def __init__(self, connection: BaseDatabaseWrapper, subscription: notify.Subscription) -> None:
        """Take a connection over."""
        self._raw, connection.connection = connection.connection, None
        self._subscription = subscription
        self._descriptor = subscription.fileno()  # which a lost connection forgets
        self._closing = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor of the socket, which is readable when there may be something to hear."""
        return self._descriptor

    def hears_of(self, job_id: UUID) -> bool:
        """Whether the end of a job has been told by now. Never waits; raises if the connection is lost."""
        return str(job_id) in self._subscription.heard()

    def wait_for(self, job_id: UUID, seconds: float) -> None:
        """Wait until the end of a job is told, but no longer than that. Raises if the connection is lost."""
        end = clock.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while (left := end - clock.monotonic()) > 0:
                if selector.select(left) and self.hears_of(job_id):
                    return

    def close(self) -> None:
        """Close the connection, from whatever thread, the first time that this is called."""
        if self._closing.acquire(blocking=False):
            with contextlib.suppress(Exception):
                self._raw.close()
            _free_ears.release()


def _own_connection(alias: str) -> BaseDatabaseWrapper:
    """Return a connection beside the thread's own, from no pool, and open for as long as it is wanted."""
    connection = connections[alias].copy()
    settings: dict[str, Any] = connection.settings_dict
    settings |= {"AUTOCOMMIT": True, "CONN_MAX_AGE": None}
    settings["OPTIONS"].pop("pool", None)
    settings["OPTIONS"].setdefault("connect_timeout", CONNECT_TIMEOUT)
    return connection
