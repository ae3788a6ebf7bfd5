"""Atomic completion (G7): a handler's own writes and its fenced success in one transaction.

The one case in which effects happen exactly once: the fenced UPDATE is the last statement before COMMIT, so
either both are there or neither is. A worker whose lease is lost commits nothing, the handler's writes too.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import InterfaceError, OperationalError, connections, transaction

from django_backwave.exceptions import NotAtomic
from django_backwave.models import Lease
from django_backwave.store import fence
from django_backwave.store.errors import lock_timed_out
from django_backwave.store.locking import is_postgres, waiting
from django_backwave.store.settle import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from django_backwave.core.protocol import Claimed, Report
    from django_backwave.models.lease import LeaseQuerySet

#: Milliseconds that the fenced UPDATE waits for a stranger's lock on the job's row.
LOCK_WAIT = 10_000

#: SQLite has one writer at a time. Atomic jobs of a process take turns here, where waiting costs nothing,
#: and not at BEGIN, where it would end in "database is locked".
_turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


class LeaseGone(Exception):
    """The fence refused: everything in the transaction is rolled back."""


class DatabaseBusy(Exception):
    """The transaction could not begin, or the job's row stayed locked: nothing was written."""


class Gate:
    """How far an atomic completion has come. ``written``: the fenced UPDATE matched, so COMMIT may land."""

    def __init__(self) -> None:
        """Begin outside of the transaction."""
        self.written = False


@contextmanager
def completing(
    gate: Gate,
    job: Claimed,
    *,
    worker: str,
    report: Callable[[], Report],
    using: str,
    now: datetime | None = None,
) -> Iterator[None]:
    """Run a block and the success of its job in one transaction, outermost and READ COMMITTED.

    ``report`` is asked for when the block has ended. Raises DatabaseBusy if the transaction cannot begin, or
    a stranger keeps the job's row locked; LeaseGone if the fence refuses; NotAtomic if the block has taken
    the transaction away; whatever the block raises rolls back, too. Any exception that leaves while
    ``gate.written`` holds says nothing of whether COMMIT landed: only the history knows.
    """
    with _own_turn(using), _begun(using):
        if not _may_begin(job, worker, using, now):
            raise LeaseGone
        connection: Any = connections[using]
        yield
        _check_still_open(connection)
        final = report()
        _last_checks(using)
        if not _complete(final, job, worker=worker, using=using, now=now):
            raise LeaseGone
        gate.written = True


@contextmanager
def _own_turn(using: str) -> Iterator[None]:
    connection: Any = connections[using]
    if connection.vendor != "sqlite":
        yield
        return
    with _turns[using]:
        with _busy_if_unreachable():
            connection.ensure_connection()  # which reads the mode from the settings
        mode = connection.transaction_mode
        # A lock that is taken only by the first write may be refused.
        connection.transaction_mode = "IMMEDIATE"
        try:
            yield
        finally:
            connection.transaction_mode = mode


@contextmanager
def _begun(using: str) -> Iterator[None]:
    connection = connections[using]
    with _busy_if_unreachable():
        if not connection.in_atomic_block and not connection.get_autocommit():
            raise NotAtomic(
                f"Autocommit is off on {using!r}, so there is no transaction to begin and to commit. "
                "Leave it on."
            )
        if connection.vendor == "mysql":
            _read_committed(using)  # it is said of the next transaction
    block = transaction.atomic(using=using, durable=True)
    with _busy_if_unreachable():
        block.__enter__()
    with _entered(block):
        if is_postgres(using):
            # In a stricter level the job's own heartbeat would make its completion fail, always.
            with _busy_if_unreachable():
                _read_committed(using)
        yield


@contextmanager
def _busy_if_unreachable() -> Iterator[None]:
    """Turn what goes wrong before anything was done into a wait: it is not the handler's failure."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise DatabaseBusy(str(error).strip()) from error


def _read_committed(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


class _entered:  # noqa: N801 - it reads as what it says
    """A context manager that was entered by hand: only its end is left."""

    def __init__(self, block: Any) -> None:
        self._block = block

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> bool | None:
        end: bool | None = self._block.__exit__(*error)
        return end


def _may_begin(job: Claimed, worker: str, using: str, now: datetime | None) -> bool:
    """Check the whole fence where nobody else can write until the end, the heartbeat included."""
    if connections[using].vendor != "sqlite":
        return True
    return fence.held([job.job_id], job.attempt, worker, using=using, now=now).exists()


def _check_still_open(connection: Any) -> None:
    """Refuse to record a success that would not commit together with the block's writes."""
    alias = connection.alias
    same = connections[alias] is connection and not connection.closed_in_transaction
    if not same or not connection.in_atomic_block:
        raise NotAtomic(
            f"The connection to {alias!r} was closed within the atomic job, so its writes are lost. "
            "Leave it open."
        )
    if connection.needs_rollback:
        raise NotAtomic(
            f"The transaction on {alias!r} was marked to be rolled back, by set_rollback(True) or by a "
            "database error that was caught within it, so its writes cannot be committed. Raise an "
            "exception to fail; catch a database error outside of an atomic() block of its own."
        ) from connection.rollback_exc


def _complete(report: Report, job: Claimed, *, worker: str, using: str, now: datetime | None) -> bool:
    try:
        return complete(report, _guarded(job, worker, using, now), worker=worker, using=using, now=now)
    except OperationalError as error:
        if lock_timed_out(error):
            raise DatabaseBusy(f"somebody else keeps the job's row locked: {error}".strip()) from error
        raise


def _guarded(job: Claimed, worker: str, using: str, now: datetime | None) -> LeaseQuerySet:
    leases: LeaseQuerySet = Lease.objects.using(using)
    if connections[using].vendor == "sqlite":
        # Since the check at the beginning nobody could write, so a lease that ran out is still ours.
        return leases.of([job.job_id]).held_by(worker, job.attempt)
    if connections[using].vendor == "mysql":
        # Its clock stands still from the start of a statement: wait for the lock in one of its own.
        list(waiting(leases.of([job.job_id]), using=using).values_list("pk"))
    return fence.held([job.job_id], job.attempt, worker, using=using, now=now)


def _last_checks(using: str) -> None:
    """Let deferred constraints speak now, and not in COMMIT; bound our own last statements."""
    if is_postgres(using):
        with connections[using].cursor() as cursor:
            # Two statements: a connection that prepares them takes one at a time.
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT:d}")
