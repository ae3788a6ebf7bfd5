"""Enqueue: plain inserts on the jobs' connection, in whatever transaction the caller has open (G1)."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.db import connections, transaction

from django_backwave import conf
from django_backwave.core.states import JobState
from django_backwave.exceptions import ForeignTransaction
from django_backwave.instants import to_utc
from django_backwave.models import Job
from django_backwave.models.fields import EncodedJSON
from django_backwave.store import arrays, clock, notify
from django_backwave.store.committing import committing, dispose_statement, in_transaction
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import is_postgres
from django_backwave.store.tags import insert_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from uuid import UUID

    from django_backwave.core.identity import Intent
    from django_backwave.core.policy import Backoff

#: Rows per INSERT of ``insert_many``.
BATCH = 2000


class NewJob(NamedTuple):
    """A job to be. Everything in it was checked; ``payload`` and ``headers`` are JSON text.

    ``run_after`` is aware; ``tags`` are pairs of key and value, each once. ``expires``: an aware instant,
    or so many seconds after the enqueue. One with an ``intent`` is for ``store.keys``, which gives it its
    generation.
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
    intent: Intent | None = None
    generation: int | None = None
    schema: str | None = None

    @property
    def key(self) -> str | None:
        """The key, if the job has one."""
        return None if self.intent is None else self.intent.key


def insert_one(job: NewJob, *, using: str, now: datetime | None = None) -> datetime:
    """Insert a job and return when it was enqueued, by the database's clock, in UTC.

    Raises ForeignTransaction before any SQL if the caller's transaction is on another alias only.
    Commits nothing of the caller's: the job exists if and only if the caller's transaction commits.
    """
    refuse_foreign_transaction(using)
    # Seconds from now on need to know what "now" is: that is one round trip more.
    known = clock.read(using, now) if isinstance(job.expires, float | int) else None
    row = _row(job, known or clock.instant(using, now))
    # What is due at once wakes idle workers; what a virtual clock says concerns no real one.
    if job.run_after is None and now is None and notify.permitted(job.queue, using=using):
        row.enqueued_at = notify.NotifyingInstant(job.queue, known)
    # With tags it is two statements: all of it, or nothing, and no claim in between.
    with committing(using, savepoint=False) if job.tags else nullcontext():
        at = _insert(row, using)
        if job.tags:
            passing("enqueue: row written")
            insert_tags({job.id: job.tags}, using=using)
    return clock.read(using, now) if at is None else to_utc(at)


def _insert(row: Job, using: str) -> datetime | None:
    """Insert a row as ``save`` does, and return when it was enqueued if the database says so.

    ``save`` also writes each column that is NULL, and has each instant returned: a third more work in all.
    Like ``bulk_create``, this sends no signals of the model.
    """
    fields = [field for field in Job._meta.concrete_fields if getattr(row, field.attname) is not None]
    # Without USE_TZ PostgreSQL returns local time, for RETURNING passes by the field's select_format.
    returns = connections[using].features.can_return_columns_from_insert and settings.USE_TZ
    returning = [Job._meta.get_field("enqueued_at")] if returns else []
    try:
        with transaction.mark_for_rollback_on_error(using=using):
            returned = Job._base_manager._insert(  # type: ignore[attr-defined] # what save() itself calls
                [row], fields=fields, returning_fields=returning, using=using
            )
    except BaseException as error:
        dispose_statement(error, using)
        raise
    return returned[0][0] if returned else None


def insert_many(jobs: Sequence[NewJob], *, using: str, now: datetime | None = None) -> datetime:
    """Insert jobs, all or none, and return when they were enqueued.

    The clock is read once, so that the jobs come due in the order given.
    """
    refuse_foreign_transaction(using)
    at = clock.read(using, now)
    with committing(using, savepoint=False):
        write(jobs, at, using=using)
        if now is None:
            wake(jobs, using=using)
    return at


def write(jobs: Sequence[NewJob], at: datetime, *, using: str) -> None:
    """Insert jobs and their tags in the transaction that is open."""
    insert = _insert_postgres if is_postgres(using) else _insert_portable
    for batch in batched(jobs, BATCH):
        insert(batch, at, using)
    passing("enqueue: row written")
    insert_tags({job.id: job.tags for job in jobs if job.tags}, using=using)


def wake(jobs: Iterable[NewJob], *, using: str) -> None:
    """Wake idle workers for those jobs that are due at once."""
    notify.wake({job.queue for job in jobs if job.run_after is None}, using=using)


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
        expires_at=_expiry(job, at),
        headers=None if job.headers is None else EncodedJSON(job.headers),
        key=job.key,
        generation=job.generation,
        schema=job.schema,
    )


#: What of a job an enqueue writes, beside what says which job it is and that it waits.
_WORK = (
    "name",
    "priority",
    "payload",
    "due_at",
    "expires_at",
    "max_attempts",
    "backoff_base",
    "backoff_cap",
    "backoff_jitter",
    "lease_seconds",
    "timeout_seconds",
    "headers",
    "schema",
)


def work_of(job: NewJob, at: datetime) -> dict[str, Any]:
    """Return the columns that say what is to be done, when and how, for a job enqueued at this instant."""
    row = _row(job, at)
    return {name: getattr(row, name) for name in _WORK}


def _insert_portable(jobs: Sequence[NewJob], at: datetime, using: str) -> None:
    Job.objects.using(using).bulk_create(_row(job, at) for job in jobs)


def _insert_postgres(jobs: Sequence[NewJob], at: datetime, using: str) -> None:
    """Insert jobs with one statement and a few arrays: a model instance for each costs five times as much.

    What is the same in all of them is sent once; what an enqueue does not give is the model's default.
    """
    connection = connections[using]
    quoted = connection.ops.quote_name
    given = _given(jobs, at)
    selected: dict[str, str] = {}
    same: list[Any] = []
    differing: dict[str, str] = {}
    texts: list[str] = []
    for field in Job._meta.concrete_fields:
        # Without its length: a cast to that would cut a text off in silence.
        column, kind = quoted(str(field.column)), str(field.db_type(connection)).partition("(")[0]
        values = given.get(field.attname) or [field.get_default()]
        if field.primary_key or values.count(values[0]) < len(values):
            selected[column] = column
            differing[column] = f"%s::{kind}[]"
            texts.append(_ARRAYS.get(kind, arrays.numbers)(values))
        else:
            selected[column] = f"%s::{kind}"
            same.append(values[0])
    sql = (
        f"INSERT INTO {quoted(Job._meta.db_table)} ({', '.join(selected)})"
        f" SELECT {', '.join(selected.values())}"
        f" FROM unnest({', '.join(differing.values())}) AS given({', '.join(differing)})"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*same, *texts])


#: How a column's values are written as an array, by its type; all others are numbers.
_ARRAYS: dict[str, Callable[[Any], str]] = {
    "uuid": arrays.uuids,
    "varchar": arrays.texts,
    "text": arrays.texts,
    "timestamp with time zone": arrays.instants,
}


def _given(jobs: Sequence[NewJob], at: datetime) -> dict[str, list[Any]]:
    """Return the columns that an enqueue gives, each with the values of the jobs."""
    return {
        "id": [job.id for job in jobs],
        "name": [job.name for job in jobs],
        "queue": [job.queue for job in jobs],
        "priority": [job.priority for job in jobs],
        "payload": [job.payload for job in jobs],
        "state": [JobState.READY.value],
        "enqueued_at": [at],
        "due_at": [job.run_after or at for job in jobs],
        "expires_at": [_expiry(job, at) for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "backoff_base": [job.backoff.base for job in jobs],
        "backoff_cap": [job.backoff.cap for job in jobs],
        "backoff_jitter": [job.backoff.jitter for job in jobs],
        "lease_seconds": [job.lease_seconds for job in jobs],
        "timeout_seconds": [job.timeout_seconds for job in jobs],
        "headers": [job.headers for job in jobs],
        "key": [job.key for job in jobs],
        "generation": [job.generation for job in jobs],
        "schema": [job.schema for job in jobs],
    }


def _expiry(job: NewJob, at: Any) -> Any:
    return clock.after(at, job.expires) if isinstance(job.expires, float | int) else job.expires


def refuse_foreign_transaction(using: str) -> None:
    """Raise ForeignTransaction if a transaction is open on other aliases but not on the jobs'."""
    if in_transaction(connections[using]) or conf.value("ALLOW_SEPARATE_TRANSACTION"):
        return
    known = connections.all(initialized_only=True)
    others = [connection.alias for connection in known if in_transaction(connection)]
    if others:
        raise ForeignTransaction(
            f"A transaction is open on {others[0]!r}, but jobs are stored on {using!r}: the job would "
            f"be committed even if your transaction rolls back. Open transaction.atomic(using={using!r}) "
            'as well, store jobs in that database (BACKWAVE["DATABASE"] or a router), or set '
            'BACKWAVE["ALLOW_SEPARATE_TRANSACTION"] to give up the guarantee.'
        )
