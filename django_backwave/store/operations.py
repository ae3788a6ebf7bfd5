"""Operations: that a prepared enqueue was carried out, once, or that it never will be.

A row under the operation's id is written in the transaction of what it enqueues. Whoever comes next finds it,
and waits for one that is still open elsewhere. Lock order: operation rows first, then keys, then jobs.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.models.constants import OnConflict as Collision
from django.db.models.sql import InsertQuery

from django_backwave.core.identity import OnConflict, Verdict
from django_backwave.core.limits import LAST_ATTEMPT
from django_backwave.core.operation import REMEMBERED, RESOLVED_CAUSE, Disposition, Resolution
from django_backwave.core.states import JobState
from django_backwave.exceptions import CannotResolve, OperationExpired, OperationMismatch
from django_backwave.instants import to_utc
from django_backwave.models import Job, Key, Operation
from django_backwave.store import clock, keys
from django_backwave.store.committing import committing, in_transaction
from django_backwave.store.enqueue import refuse_foreign_transaction, wake, work_of, write
from django_backwave.store.errors import lock_timed_out
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import is_postgres, unlocked, waiting, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from django.db.models import Model

    from django_backwave.store.enqueue import NewJob
    from django_backwave.store.keys import Landed

#: How many operations one slice of a prune deletes at most.
SLICE = 500


class Command(NamedTuple):
    """A prepared enqueue. Its id is the job's.

    ``digest`` says what is enqueued, however often that is asked for. ``plain``: that an enqueue without an
    operation may have written the job, under the same id. After ``deadline`` it is not carried out, and after
    ``known_until`` nothing is left to tell by.
    """

    job: NewJob
    digest: str
    deadline: datetime
    known_until: datetime
    plain: bool = False


class Carried(NamedTuple):
    """What carrying out a command came to. ``now``: whether it was done by this very call."""

    landed: Landed
    now: bool = False


def carry_out(command: Command, *, using: str, now: datetime | None = None) -> Carried:
    """Enqueue what was prepared, or find that this was done, and return what it came to.

    Joins the caller's transaction, and leaves it usable whatever happens: an insert under the same id that is
    still open elsewhere is waited for. Raises OperationMismatch, OperationExpired, keys.Refused, and
    ForeignTransaction before any SQL.
    """
    refuse_foreign_transaction(using)
    with writing(using):
        row = _rows(command, using).first()
        if row is None:
            at = clock.read(using, now)
            if at > command.deadline:
                return _too_late(command, using)
            if _insert_unless_there(_row(command, at), using):
                landed = _enqueue(command, at, using, now)
                _record(command, landed, using)
                passing("operation: recorded")
                return Carried(landed, now=True)
            row = _found(command, using)
        return Carried(_landed(command, _checked(command, row), using))


def enqueue_by_key(
    jobs: Sequence[NewJob],
    command_of: Callable[[NewJob], Command],
    *,
    using: str,
    now: datetime | None = None,
) -> list[Landed]:
    """Enqueue jobs with keys as ``keys.enqueue`` does, so that each can be resolved afterwards.

    A job tells by its id that it was enqueued. What replaces another's work leaves none: it is recorded, as
    the ``command_of`` it would be.
    """
    if not any(job.intent and job.intent.on_conflict is OnConflict.REPLACE for job in jobs):
        return keys.enqueue(jobs, using=using, now=now)
    with writing(using):
        landed = keys.enqueue(jobs, using=using, now=now)
        at = clock.read(using, now)
        # Not "unless it is there": who has been told that it was not applied must be right.
        Operation.objects.using(using).bulk_create(
            _row(command_of(job), at, end)
            for job, end in zip(jobs, landed, strict=True)
            if end.verdict is Verdict.REPLACE
        )
    return landed


def _too_late(command: Command, using: str) -> Carried:
    if (job := _job(command.job, using)) is not None:
        return Carried(_of_job(job))
    raise OperationExpired(
        f"Operation {command.job.id} was to be enqueued until {command.deadline:%Y-%m-%d %H:%M:%S} UTC, by "
        "the database's clock, and nothing is recorded of it. This call has enqueued nothing; resolve() says "
        "whether an earlier one did. To enqueue the work now, prepare it again.",
        Disposition.UNKNOWN,
    )


def _enqueue(command: Command, at: datetime, using: str, now: datetime | None) -> Landed:
    """Enqueue the job under its id, unless an enqueue without an operation has done so."""
    job = command.job
    if job.intent is not None and (there := _job(job, using)) is not None:
        return _of_job(there)  # else it could be taken for a generation of somebody else's
    try:
        return _enqueue_by_key(job, using, now) if job.intent else _enqueue_plainly(job, at, using, now)
    except IntegrityError:  # it was enqueued meanwhile
        if (there := _job(job, using)) is None:
            raise
        return _of_job(there)


def _enqueue_plainly(job: NewJob, at: datetime, using: str, now: datetime | None) -> Landed:
    with transaction.atomic(using=using):
        write([job], at, using=using)
    if now is None:
        wake([job], using=using)
    return keys.Landed(Verdict.NEW, job.id, None, job.name, at)


def _enqueue_by_key(job: NewJob, using: str, now: datetime | None) -> Landed:
    """Enqueue a job with a key; a generation that bears its id was begun by its own enqueue."""
    try:
        [landed] = keys.enqueue([job], using=using, now=now)
    except keys.Refused as refused:
        landed = refused.landed
        if landed.job_id != job.id:
            raise
    return landed._replace(verdict=Verdict.NEW) if landed.job_id == job.id else landed


def _record(command: Command, landed: Landed, using: str) -> None:
    """Write into the operation's row what it came to: none of this can be seen before it is committed."""
    created = landed.job_id == command.job.id
    _rows(command, using).update(job_id=landed.job_id, generation=landed.generation, created=created)


def _row(command: Command, at: datetime, landed: Landed | None = None) -> Operation:
    return Operation(
        id=command.job.id,
        digest=command.digest,
        recorded_at=at,
        deadline=command.deadline,
        job_id=None if landed is None else landed.job_id,
        generation=None if landed is None else landed.generation,
    )


def _rows(command: Command, using: str) -> Any:
    return Operation.objects.using(using).filter(pk=command.job.id)


def _found(command: Command, using: str) -> Operation:
    """Return the row that was there when this call's own was to be inserted.

    Not locked if that can be done without: on MySQL whoever has waited for it shares a lock with others who
    have, and no two of them could get one of their own.
    """
    row: Operation | None = _rows(command, using).first()
    # In a level stricter than READ COMMITTED a plain read may be of before the other's commit.
    return row or waiting(_rows(command, using), using=using).get()


def _checked(command: Command, row: Operation) -> Operation:
    if row.digest != command.digest:
        raise OperationMismatch(
            f"Operation {row.pk} was recorded with other work: arguments or options differ. An id stands for "
            "one enqueue; prepare another one, which has an id of its own."
        )
    return row


def _landed(command: Command, row: Operation, using: str) -> Landed:
    """Return what is recorded. Raises OperationExpired for a tombstone."""
    job = command.job
    if row.job_id is None:
        raise OperationExpired(
            f"Operation {row.pk} was resolved as not applied, and so it never will be. To enqueue the work "
            "now, prepare it again.",
            Disposition.KNOWN_NOT_APPLIED,
        )
    verdict = Verdict.NEW if row.created else Verdict.RETURN
    settled_as = None if job.key is None else _settled_as(row.job_id, job.queue, job.key, using)
    return keys.Landed(verdict, row.job_id, row.generation, job.name, to_utc(row.recorded_at), settled_as)


def _settled_as(job_id: UUID, queue: str, key: str, using: str) -> JobState | None:
    """Return how a job with a key has ended, as far as its key remembers."""
    last = Key.objects.using(using).filter(pk=Key.id_of(queue, key), job_id=job_id)
    state = last.values_list("settled_as", flat=True).first()
    return None if state is None else JobState(state)


def _job(job: NewJob, using: str) -> Job | None:
    """Return the job's row, if it was enqueued."""
    row = Job.objects.using(using).filter(pk=job.id).first()
    return None if row is None or _is_barrier(row) else row


def _of_job(job: Job) -> Landed:
    return keys.Landed(Verdict.NEW, job.pk, job.generation, job.name, to_utc(job.enqueued_at))


# Resolving.


def resolve(command: Command, *, timeout: float, using: str, now: datetime | None = None) -> Resolution:
    """Say whether a prepared enqueue was applied; if it was not, see to it that it never will be.

    Commits by itself, and waits up to ``timeout`` seconds for an insert that is still open elsewhere. Raises
    CannotResolve inside a transaction, and OperationMismatch.
    """
    if in_transaction(connections[using]):
        raise CannotResolve(
            f"Operation {command.job.id} cannot be resolved while a transaction is open on {using!r}: what "
            "resolve() writes, so that nothing is applied later, would go with its rollback. Call it after "
            "the block."
        )
    at = clock.read(using, now)
    if at > command.known_until:
        return _traces(command, using)
    try:
        with _hurried(timeout, using):
            return _settle(command, at, using)
    except OperationalError as error:
        if lock_timed_out(error):
            return Resolution.UNKNOWN
        raise


def _traces(command: Command, using: str) -> Resolution:
    """Return what can still be told: that nothing is there says nothing any more."""
    row = _rows(command, using).first()
    if row is not None:
        return _resolution(_checked(command, row))
    return Resolution.UNKNOWN if _job(command.job, using) is None else Resolution.APPLIED


def _settle(command: Command, at: datetime, using: str) -> Resolution:
    if not _insert_unless_there(_row(command, at), using):
        return _resolution(_checked(command, _found(command, using)))
    passing("resolve: tombstone written")
    if command.plain and not _insert_unless_there(_barrier(command.job, at), using):
        _record(command, _of_job(Job.objects.using(using).get(pk=command.job.id)), using)
        return Resolution.APPLIED
    return Resolution.NOT_APPLIED


def _resolution(row: Operation) -> Resolution:
    return Resolution.NOT_APPLIED if row.job_id is None else Resolution.APPLIED


def _barrier(job: NewJob, at: datetime) -> Job:
    """Return the row that makes an insert of the job fail which comes too late.

    It is cancelled, and its attempt is the last that there is: also sent back it would never run.
    """
    return Job(
        id=job.id,
        queue=job.queue,
        state=JobState.CANCELLED.value,
        attempt=LAST_ATTEMPT,
        enqueued_at=at,
        finished_at=at,
        cause=RESOLVED_CAUSE,
        **work_of(job, at),
    )


def _is_barrier(job: Job) -> bool:
    return job.attempt == LAST_ATTEMPT and job.cause == RESOLVED_CAUSE


def _insert_unless_there(row: Model, using: str) -> bool:
    """Insert a row, and return whether it was; wait for whoever inserts the same one at the same time.

    ``bulk_create(ignore_conflicts=True)`` does not say which of the two has happened.
    """
    model = type(row)
    query = InsertQuery(model, on_conflict=Collision.IGNORE)
    query.insert_values(model._meta.concrete_fields, [row])
    [(sql, params)] = query.get_compiler(using).as_sql()
    with transaction.mark_for_rollback_on_error(using=using), connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return bool(cursor.rowcount == 1)


@contextmanager
def _hurried(seconds: float, using: str) -> Iterator[None]:
    """Open a transaction in which nobody's lock is waited for longer than so many seconds."""
    if is_postgres(using):  # it is said of a transaction, and not of a session that a pooler may share
        with committing(using), _patience(seconds, using):
            yield
    else:  # on SQLite the wait is at the beginning
        with _patience(seconds, using), committing(using):
            yield


@contextmanager
def _patience(seconds: float, using: str) -> Iterator[None]:
    connection = connections[using]
    millis = max(1, round(seconds * 1000))
    ask, tell = _PATIENCE[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(ask)
        before = cursor.fetchone()[0]
        cursor.execute(tell.format(f"{millis:d}", f"{math.ceil(millis / 1000):d}"))
    try:
        yield
    finally:
        # A transaction that has failed takes it back by itself.
        with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
            cursor.execute(tell.format(before, before))


#: How each vendor is asked for how long a statement waits for a lock, and told. The first unit is
#: milliseconds, the second seconds.
_PATIENCE = {
    "postgresql": ("SHOW lock_timeout", "SET LOCAL lock_timeout = '{0}'"),
    "mysql": ("SELECT @@innodb_lock_wait_timeout", "SET innodb_lock_wait_timeout = {1}"),
    "sqlite": ("PRAGMA busy_timeout", "PRAGMA busy_timeout = {0}"),
}


# Forgetting.


def prune(*, limit: int = SLICE, using: str, now: datetime | None = None) -> int:
    """Delete up to ``limit`` operations whose deadline was over a day ago; return how many."""
    end = clock.after(clock.read(using, now), -REMEMBERED)
    old = Operation.objects.using(using).filter(deadline__lte=end)
    with writing(using):
        ids = list(unlocked(old.order_by("deadline")[:limit], using=using).values_list("pk", flat=True))
        count = Operation.objects.using(using).filter(pk__in=ids).delete()[0] if ids else 0
        passing("prune: operations deleted")
    return count
