"""Enqueue: plain inserts on the jobs' connection, in whatever transaction the caller has open (G1)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connections, transaction

from django_backwave import conf
from django_backwave.core.states import JobState
from django_backwave.exceptions import ForeignTransaction
from django_backwave.instants import to_utc
from django_backwave.models import Job
from django_backwave.models.fields import EncodedJSON
from django_backwave.store import clock
from django_backwave.store.failpoint import passing
from django_backwave.store.tags import insert_tags

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_backwave.core.policy import Backoff

#: Rows per INSERT of ``insert_many``.
BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be. Everything in it was checked; ``payload`` and ``headers`` are JSON text.

    ``run_after`` is aware; ``tags`` are pairs of key and value, each once. ``expires``: an aware instant,
    or so many seconds after the enqueue.
    """

    id: UUID
    name: str
    queue: str
    priority: int
    payload: str
    run_after: datetime | None
    max_attempts: int
    backoff: Backoff
    lease_seconds: float | None
    headers: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    timeout_seconds: float | None = None
    expires: datetime | float | None = None


def insert_one(job: NewJob, *, using: str, now: datetime | None = None) -> datetime:
    """Insert a job and return when it was enqueued, by the database's clock, in UTC.

    Raises ForeignTransaction before any SQL if the caller's transaction is on another alias only.
    Commits nothing of the caller's: the job exists if and only if the caller's transaction commits.
    """
    refuse_foreign_transaction(using)
    # Seconds from now on need to know what "now" is: that is one round trip more.
    known = isinstance(job.expires, float | int)
    row = _row(job, clock.read(using, now) if known else clock.instant(using, now))
    # With tags it is two statements: all of it, or nothing, and no claim in between.
    with transaction.atomic(using=using, savepoint=False) if job.tags else nullcontext():
        row.save(force_insert=True, using=using)
        if job.tags:
            passing("enqueue: row written")
            insert_tags({job.id: job.tags}, using=using)
    at = row.enqueued_at
    # Where INSERT has no RETURNING the expression is still there: the row is in, ask the clock. Without
    # USE_TZ what returns from PostgreSQL is local time, for RETURNING passes by the field's select_format.
    if hasattr(at, "resolve_expression") or not settings.USE_TZ:
        return clock.read(using, now)
    return to_utc(at)


def insert_many(jobs: Sequence[NewJob], *, using: str, now: datetime | None = None) -> datetime:
    """Insert jobs, all or none, and return when they were enqueued.

    The clock is read once, so that the jobs come due in the order given.
    """
    refuse_foreign_transaction(using)
    at = clock.read(using, now)
    with transaction.atomic(using=using, savepoint=False):
        Job.objects.using(using).bulk_create([_row(job, at) for job in jobs], batch_size=BATCH)
        passing("enqueue: row written")
        insert_tags({job.id: job.tags for job in jobs}, using=using)
    return at


def _row(job: NewJob, at: Any) -> Job:
    return Job(
        id=job.id,
        name=job.name,
        queue=job.queue,
        priority=job.priority,
        payload=EncodedJSON(job.payload),
        state=JobState.READY.value,
        enqueued_at=at,
        due_at=job.run_after or at,
        max_attempts=job.max_attempts,
        backoff_base=job.backoff.base,
        backoff_cap=job.backoff.cap,
        backoff_jitter=job.backoff.jitter,
        lease_seconds=job.lease_seconds,
        timeout_seconds=job.timeout_seconds,
        expires_at=clock.after(at, job.expires) if isinstance(job.expires, float | int) else job.expires,
        headers=None if job.headers is None else EncodedJSON(job.headers),
    )


def refuse_foreign_transaction(using: str) -> None:
    """Raise ForeignTransaction if a transaction is open on other aliases but not on the jobs'."""
    if _in_transaction(connections[using]) or conf.value("ALLOW_SEPARATE_TRANSACTION"):
        return
    known = connections.all(initialized_only=True)
    others = [connection.alias for connection in known if _in_transaction(connection)]
    if others:
        raise ForeignTransaction(
            f"A transaction is open on {others[0]!r}, but jobs are stored on {using!r}: the job would "
            f"be committed even if your transaction rolls back. Open transaction.atomic(using={using!r}) "
            'as well, store jobs in that database (BACKWAVE["DATABASE"] or a router), or set '
            'BACKWAVE["ALLOW_SEPARATE_TRANSACTION"] to give up the guarantee.'
        )


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether the caller has a transaction open: one that a TestCase wraps around a test does not count."""
    if connection.in_atomic_block:
        return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    return connection.connection is not None and not connection.autocommit
