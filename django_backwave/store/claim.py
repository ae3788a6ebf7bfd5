"""Claim: take due jobs of one queue and begin their leases and attempts (G3, G6).

The order within a queue is priority, due time, id. Both ways of claiming go from one distinct priority to the
next: an index on (queue, priority, due time) serves each of these steps, however many jobs of a higher
priority are due only later, and on MySQL a sort that no index serves would lock every row it reads.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC
from functools import cache
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections
from django.db.models import ExpressionWrapper, F, Min, TextField

from django_backwave.core.outcome import EXPIRED_CAUSE
from django_backwave.core.protocol import Claimed
from django_backwave.core.states import JobState
from django_backwave.instants import to_utc
from django_backwave.models import Job, Lease
from django_backwave.store import aside, clock
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import is_postgres, unlocked, writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from django.db.models import QuerySet

    from django_backwave.core.protocol import Place
    from django_backwave.store.aside import Aside

READY, RUNNING = JobState.READY.value, JobState.RUNNING.value
CANCELLED = JobState.CANCELLED.value
PENDING = (JobState.WAITING.value, READY)


class Late(NamedTuple):
    """A job whose time to start was over: it is CANCELLED, and never ran in this attempt."""

    job_id: UUID
    name: str


class Taken(NamedTuple):
    """What a claim took: the jobs to run, and those that it found too late."""

    jobs: list[Claimed]
    late: list[Late]


def take(
    queue: str,
    limit: int,
    *,
    worker: str,
    lease: float,
    using: str,
    now: datetime | None = None,
    among: Aside | None = None,
) -> Taken:
    """Claim up to ``limit`` due jobs of a queue for a worker, in queue order.

    Each becomes RUNNING with the next attempt number and a lease of its own seconds, or of ``lease`` where
    it has none; or CANCELLED, without an attempt, if it has expired. Rows locked by others are passed over.
    No two claims ever return the same attempt. ``among``: while names are paused, where to look, and for
    what not.
    """
    claim_rows = _claim_postgres if is_postgres(using) else _claim_portable
    taken = claim_rows(queue, limit, worker=worker, lease=lease, using=using, now=now, among=among)
    taken.jobs.sort(key=lambda job: (-job.priority, job.due_at, job.job_id))
    return taken


def take_without(
    names: Sequence[str],
    queue: str,
    limit: int,
    *,
    past: tuple[Place, ...] = (),
    worker: str,
    lease: float,
    using: str,
    now: datetime | None = None,
) -> tuple[Taken, tuple[Place, ...]]:
    """Do what ``take`` does, but leave jobs of these names alone; look at a bounded number of jobs.

    Return also how far this has looked, to be handed in as ``past`` the next time. If it did not come any
    further, either the limit or the end of the queue was reached.
    """
    jobs, levels = _ready(using).filter(queue=queue), _priorities(queue, using)
    among = aside.look(jobs, levels, names, past, using=using, now=now)
    taken = take(queue, limit, worker=worker, lease=lease, using=using, now=now, among=among)
    full = len(taken.jobs) + len(taken.late) == limit
    return taken, past if full else among.past()


def claim(
    queue: str, limit: int, *, worker: str, lease: float, using: str, now: datetime | None = None
) -> list[Claimed]:
    """Do what ``take`` does, and return the jobs to run."""
    return take(queue, limit, worker=worker, lease=lease, using=using, now=now).jobs


def scan(queues: Sequence[str] | None, *, using: str, now: datetime | None = None) -> dict[str, float]:
    """Return the queues with ready jobs, each with the seconds until its earliest comes due.

    Zero or less means due now. None asks for all queues. It reads only, one index step for each pair of
    queue and priority: this is the whole cost of an idle poll.
    """
    if is_postgres(using):
        return _scan_postgres(queues, using=using, now=now)
    at = clock.read(using, now)
    return {
        name: (to_utc(earliest) - at).total_seconds()
        for name in _ready_queues(queues, using)
        if (earliest := _earliest(name, using)) is not None
    }


# PostgreSQL: one statement.


@cache
def _claim_sql(limit: int, table: str, instant: str, statement: str, *, among: bool) -> str:
    # MATERIALIZED: else the planner may run the LIMIT again and claim too many. There is no sort above the
    # LATERAL: it would lock `limit` rows of every priority and hide them from other workers.
    levels = f"""level(priority) AS (
            (SELECT j.priority FROM {table} j
              WHERE j.state = {READY} AND j.queue = %(queue)s
              ORDER BY j.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT j.priority FROM {table} j
                     WHERE j.state = {READY} AND j.queue = %(queue)s AND j.priority < level.priority
                     ORDER BY j.priority DESC LIMIT 1)
              FROM level WHERE level.priority IS NOT NULL
        )"""
    return f"""
        WITH RECURSIVE {aside.LEVELS if among else levels}, pick AS MATERIALIZED (
            SELECT due.id, due.late FROM level CROSS JOIN LATERAL (
                SELECT j.id, COALESCE(j.expires_at <= {statement}, false) AS late FROM {table} j
                 WHERE j.state = {READY} AND j.queue = %(queue)s AND j.priority = level.priority
                   AND j.due_at <= {statement}{aside.CONDITION if among else ""}
                 ORDER BY j.due_at, j.id LIMIT {limit:d}
                   FOR NO KEY UPDATE SKIP LOCKED) due
             LIMIT {limit:d}
        )
        UPDATE {table} j
           SET state = CASE WHEN pick.late THEN {CANCELLED} ELSE {RUNNING} END,
               attempt = CASE WHEN pick.late THEN j.attempt ELSE j.attempt + 1 END,
               worker = CASE WHEN pick.late THEN '' ELSE %(worker)s END,
               started_at = CASE WHEN pick.late THEN j.started_at END,
               progress = CASE WHEN pick.late THEN j.progress END,
               lease_expires_at = CASE WHEN NOT pick.late THEN
                   {instant} + make_interval(secs => COALESCE(j.lease_seconds, %(lease)s)) END,
               finished_at = CASE WHEN pick.late THEN {instant} ELSE j.finished_at END,
               cause = CASE WHEN pick.late THEN %(expired)s ELSE j.cause END
          FROM pick
         WHERE j.id = pick.id
        RETURNING pick.late, j.id, j.name, j.queue, j.priority, j.payload, j.attempt, j.failures,
               j.max_attempts,
               j.backoff_base, j.backoff_cap, j.backoff_jitter, j.lease_seconds, j.timeout_seconds,
               j.headers,
               j.due_at AT TIME ZONE 'UTC', j.enqueued_at AT TIME ZONE 'UTC',
               {instant} AT TIME ZONE 'UTC',
               extract(epoch FROM {instant} - j.unroutable_since)::float8
    """


def _claim_postgres(
    queue: str,
    limit: int,
    *,
    worker: str,
    lease: float,
    using: str,
    now: datetime | None,
    among: Aside | None,
) -> Taken:
    connection = connections[using]
    sql = _claim_sql(
        limit,
        connection.ops.quote_name(Job._meta.db_table),
        clock.instant_sql(now),
        clock.statement_sql(now),
        among=among is not None,
    )
    values: dict[str, Any] = {"queue": queue, "worker": worker, "lease": lease, "now": now}
    values["expired"] = EXPIRED_CAUSE
    if among:
        values |= among.values()
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    jobs = [
        Claimed._make((*plain, *(at.replace(tzinfo=UTC) for at in instants), unroutable_for))
        for late, *plain, due_at, enqueued_at, claimed_at, unroutable_for in rows
        for instants in [(due_at, enqueued_at, claimed_at)]
        if not late
    ]
    return Taken(jobs, [Late(job_id, name) for late, job_id, name, *_ in rows if late])


@cache
def _scan_sql(table: str, instant: str, *, every: bool) -> str:
    if every:
        level = f"""
            (SELECT j.queue, j.priority FROM {table} j WHERE j.state = {READY}
              ORDER BY j.queue, j.priority LIMIT 1)
            UNION ALL
            SELECT next.queue, next.priority FROM level CROSS JOIN LATERAL (
                SELECT j.queue, j.priority FROM {table} j
                 WHERE j.state = {READY} AND (j.queue, j.priority) > (level.queue, level.priority)
                 ORDER BY j.queue, j.priority LIMIT 1) next"""
    else:
        level = f"""
            SELECT given.queue, first.priority
              FROM unnest(%(queues)s::varchar[]) AS given(queue) CROSS JOIN LATERAL (
                SELECT j.priority FROM {table} j WHERE j.state = {READY} AND j.queue = given.queue
                 ORDER BY j.priority LIMIT 1) first
            UNION ALL
            SELECT level.queue, next.priority FROM level CROSS JOIN LATERAL (
                SELECT j.priority FROM {table} j
                 WHERE j.state = {READY} AND j.queue = level.queue AND j.priority > level.priority
                 ORDER BY j.priority LIMIT 1) next"""
    return f"""
        WITH RECURSIVE level(queue, priority) AS ({level})
        SELECT level.queue, extract(epoch FROM min(first.due_at) - {instant})::float8
          FROM level CROSS JOIN LATERAL (
            SELECT j.due_at FROM {table} j
             WHERE j.state = {READY} AND j.queue = level.queue AND j.priority = level.priority
             ORDER BY j.due_at LIMIT 1) first
         GROUP BY level.queue
    """


def _scan_postgres(queues: Sequence[str] | None, *, using: str, now: datetime | None) -> dict[str, float]:
    connection = connections[using]
    table = connection.ops.quote_name(Job._meta.db_table)
    sql = _scan_sql(table, clock.instant_sql(now), every=queues is None)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"queues": list(queues or ()), "now": now})
        return dict(cursor.fetchall())


# Elsewhere: pick, then one guarded UPDATE. Right also where SKIP LOCKED is silently ignored.


def _claim_portable(
    queue: str,
    limit: int,
    *,
    worker: str,
    lease: float,
    using: str,
    now: datetime | None,
    among: Aside | None,
) -> Taken:
    with writing(using):
        at = clock.read(using, now)
        picked: dict[UUID, datetime | None] = {}
        for due in _due(queue, at, using, among):
            room = due.order_by("due_at", "pk")[: limit - len(picked)]
            picked |= dict(unlocked(room, using=using).values_list("pk", "expires_at"))
            if len(picked) == limit:
                break
        if not picked:
            return Taken([], [])
        too_late = [job_id for job_id, end in picked.items() if end is not None and to_utc(end) <= at]
        late = cancel_late(too_late, at=at, using=using)
        in_time = list(picked.keys() - set(too_late))
        return Taken(_take(in_time, worker=worker, lease=lease, at=at, using=using), late)


def _due(queue: str, at: datetime, using: str, among: Aside | None) -> Iterator[QuerySet[Job]]:
    """Yield a queue's due jobs, priority by priority, or in smaller parts while names are paused."""
    for priority in among.windows if among else _priorities(queue, using):
        due = _ready(using).filter(queue=queue, priority=priority, due_at__lte=at)
        yield from among.parts(due, priority) if among else (due,)


def cancel_late(job_ids: Sequence[UUID], *, at: datetime, using: str) -> list[Late]:
    """Cancel jobs that were READY or WAITING just now, and late, and locked if they could be; return them."""
    if not job_ids:
        return []
    ended = {"state": CANCELLED, "finished_at": at, "cause": EXPIRED_CAUSE}
    jobs = Job.objects.using(using).filter(pk__in=job_ids, expires_at__lte=at)
    jobs.filter(state__in=PENDING).update(**ended)
    # Read back: where they could not be locked, somebody else may have been quicker.
    return list(starmap(Late, jobs.filter(**ended).values_list("pk", "name")))


def _take(picked: list[UUID], *, worker: str, lease: float, at: datetime, using: str) -> list[Claimed]:
    """Take the jobs picked, but for those that somebody else took where they could not be locked."""
    rows = _ready(using).filter(pk__in=picked).annotate(**_TEXTS).values_list(*_COLUMNS)
    groups: defaultdict[tuple[int, float], list[Claimed]] = defaultdict(list)
    for row in rows:
        job = _claimed(row, at)
        groups[job.attempt, lease if job.lease_seconds is None else job.lease_seconds].append(job)
    taken = []
    for (attempt, seconds), jobs in groups.items():
        ids = [job.job_id for job in jobs]
        changed = (
            _ready(using)
            .filter(pk__in=ids, attempt=attempt)
            .update(
                attempt=attempt + 1,
                worker=worker,
                started_at=None,
                progress=None,
                lease_expires_at=clock.after(at, seconds),
                state=RUNNING,
            )
        )
        if changed < len(ids):
            mine = Lease.objects.using(using).of(ids).held_by(worker, attempt + 1)
            ids = list(mine.values_list("pk", flat=True))
        passing("claim: group taken")
        taken += [job._replace(attempt=attempt + 1) for job in jobs if job.job_id in ids]
    return taken


#: JSON as it is stored: handlers' threads decode it.
_TEXTS = {
    f"{name}_text": ExpressionWrapper(F(name), output_field=TextField()) for name in ("payload", "headers")
}

_COLUMNS = (
    "pk",
    "name",
    "queue",
    "priority",
    "payload_text",
    "attempt",
    "failures",
    "max_attempts",
    "backoff_base",
    "backoff_cap",
    "backoff_jitter",
    "lease_seconds",
    "timeout_seconds",
    "headers_text",
    "due_at",
    "enqueued_at",
    "unroutable_since",
)


def _claimed(row: tuple[Any, ...], at: datetime) -> Claimed:
    *plain, due_at, enqueued_at, unroutable_since = row
    since = None if unroutable_since is None else (at - to_utc(unroutable_since)).total_seconds()
    return Claimed._make((*plain, to_utc(due_at), to_utc(enqueued_at), at, since))


def _ready(using: str) -> QuerySet[Job]:
    return Job.objects.using(using).filter(state=READY)


def _priorities(queue: str, using: str) -> Iterator[int]:
    """Yield the distinct priorities of a queue's ready jobs, highest first, one index step each."""
    jobs = _ready(using).filter(queue=queue).order_by("-priority").values_list("priority", flat=True)
    priority = jobs.first()
    while priority is not None:
        yield priority
        priority = jobs.filter(priority__lt=priority).first()


def _ready_queues(queues: Sequence[str] | None, using: str) -> Iterator[str]:
    if queues is not None:
        yield from queues
        return
    names = _ready(using).order_by("queue").values_list("queue", flat=True)
    name = names.first()
    while name is not None:
        yield name
        name = names.filter(queue__gt=name).first()


def _earliest(queue: str, using: str) -> datetime | None:
    firsts = [
        _ready(using).filter(queue=queue, priority=priority).aggregate(at=Min("due_at"))["at"]
        for priority in _priorities(queue, using)
    ]
    return min((at for at in firsts if at is not None), default=None)
