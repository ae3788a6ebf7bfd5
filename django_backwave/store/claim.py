"""Claim: take due jobs of one queue and begin their leases and attempts (G3, G6).

The order within a queue is priority, due time, id. Both ways of claiming go from one distinct priority to the
next: an index on (queue, priority, due time) serves each of these steps, however many jobs of a higher
priority are due only later, and on MySQL a sort that no index serves would lock every row it reads.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from functools import cache, partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import connections
from django.db.models import ExpressionWrapper, F, TextField

from django_backwave.core.limits import LAST_ATTEMPT
from django_backwave.core.outcome import EXPIRED_CAUSE
from django_backwave.core.protocol import Claimed, Place
from django_backwave.core.states import PENDING, JobState
from django_backwave.instants import to_utc
from django_backwave.models import Job, Lease
from django_backwave.models.fields import by_instant
from django_backwave.store import arrays, aside, clock, notify, plans, postgres
from django_backwave.store.aside import Aside
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import is_postgres, unlocked, writing
from django_backwave.store.unreadable import past_unreadable, require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models import QuerySet

    from django_backwave.store.postgres import Answer

READY, RUNNING = JobState.READY.value, JobState.RUNNING.value
CANCELLED = JobState.CANCELLED.value


class Late(NamedTuple):
    """A job whose time to start was over: it is CANCELLED, and never ran in this attempt."""

    job_id: UUID
    name: str


class Order(NamedTuple):
    """What to claim: up to ``limit`` due jobs of a queue, and how.

    ``lease``: seconds, for jobs that have none of their own. ``slots``: how many of them may be jobs that
    may not wait for a free slot (``Claimed.may_wait``). ``without``: job names to leave alone. ``past``:
    places, one a priority at most, behind which to look; a hint that earlier claims give. ``among``: where to
    look past the names left alone, as ``look`` has found. ``also``: further queues, from which to take in
    turn what the first one does not have.
    """

    queue: str
    limit: int
    slots: int
    lease: float
    without: tuple[str, ...] = ()
    past: tuple[Place, ...] = ()
    among: Aside | None = None
    also: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues in the order in which they are taken from."""
        return (self.queue, *self.also)


class Taken(NamedTuple):
    """What a claim took: the jobs to run, and those that it found too late.

    ``passed``: so many more were due, and may not wait for a slot. ``past``: how far a claim that left names
    alone has looked, for the next one. If it did not come any further, either the limit or the end of the
    queue was reached.
    """

    jobs: list[Claimed]
    late: list[Late]
    passed: int = 0
    past: tuple[Place, ...] = ()


def take(order: Order, *, worker: str, using: str, now: datetime | None = None) -> Taken:
    """Claim due jobs of a queue for a worker, in queue order.

    Each becomes RUNNING with the next attempt number and a lease of its own seconds, or of the order's where
    it has none; or CANCELLED, without an attempt, if it has expired. Rows locked by others are passed over.
    No two claims ever return the same attempt. While names are left alone it looks at a bounded number of
    jobs.
    """
    return past_unreadable(
        partial(_take_any, order, worker=worker, using=using, now=now), using=using, now=now
    )


def _take_any(order: Order, *, worker: str, using: str, now: datetime | None) -> Taken:
    order = look(order, using=using, now=now)
    if is_postgres(using):
        return taken(order, postgres.run((), order, worker=worker, using=using, now=now))
    return in_order(order, _claim_portable(order, worker=worker, using=using, now=now))


def look(order: Order, *, using: str, now: datetime | None = None) -> Order:
    """Find where the claim looks past the names that it leaves alone, if there are any."""
    if not order.without:
        return order
    jobs, levels = _ready(using).filter(queue=order.queue), _priorities(order.queue, using)
    among = aside.look(jobs, levels, order.without, order.past, using=using, now=now)
    return order._replace(among=among)


def taken(order: Order, answer: Answer) -> Taken:
    """Return what a statement of PostgreSQL has brought for an order."""
    return in_order(order, Taken(answer.jobs, list(starmap(Late, answer.late)), answer.passed))


def in_order(order: Order, took: Taken) -> Taken:
    """Sort what was taken in queue order, and say how far the claim has looked."""
    turn = {queue: number for number, queue in enumerate(order.queues)}
    took.jobs.sort(key=lambda job: (turn[job.queue], -job.priority, job.due_at, job.job_id.int))
    full = len(took.jobs) + len(took.late) + took.passed == order.limit
    return took._replace(past=order.past if full or order.among is None else order.among.past())


def claim(
    queue: str, limit: int, *, worker: str, lease: float, using: str, now: datetime | None = None
) -> list[Claimed]:
    """Claim for free slots only, and return the jobs to run."""
    return take(Order(queue, limit, limit, lease), worker=worker, using=using, now=now).jobs


def scan(queues: Sequence[str] | None, *, using: str, now: datetime | None = None) -> dict[str, float]:
    """Return the queues with ready jobs, each with the seconds until its earliest comes due.

    Zero or less means due now. None asks for all queues. It reads only, one index step for each pair of
    queue and priority: this is the whole cost of an idle poll.
    """
    if is_postgres(using):
        return _scan_postgres(queues, using=using, now=now)
    return past_unreadable(partial(_scan_portable, queues, using=using, now=now), using=using, now=now)


# PostgreSQL.


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
    return dict(plans.fetch("scan", sql, {"queues": arrays.texts(queues or ()), "now": now}, using=using))


# Elsewhere: pick, then one guarded UPDATE. Right also where SKIP LOCKED is silently ignored.


def _claim_portable(order: Order, *, worker: str, using: str, now: datetime | None) -> Taken:
    with writing(using):
        at = clock.read(using, now)
        picked = _pick(order, at, using)
        if not picked:
            return Taken([], [])
        late = [pick.job_id for pick in picked if pick.expires_at and to_utc(pick.expires_at) <= at]
        in_time = [pick for pick in picked if pick.job_id not in late]
        soon = [pick.job_id for pick in in_time if not pick.may_wait]
        passed = set(soon[order.slots :])
        wanted = [pick.job_id for pick in in_time if pick.job_id not in passed]
        gone = cancel_late(late, at=at, using=using)
        return Taken(_take(wanted, worker=worker, lease=order.lease, at=at, using=using), gone, len(passed))


class _Pick(NamedTuple):
    """A row that a claim may take, with what decides about that."""

    job_id: UUID
    expires_at: datetime | None
    failures: int
    max_attempts: int

    @property
    def may_wait(self) -> bool:
        return may_wait(self.failures, self.max_attempts, self.expires_at)


def may_wait(failures: int, max_attempts: int, expires_at: datetime | None) -> bool:
    """Whether a job may be claimed ahead of a free slot, as ``Claimed.may_wait`` has it."""
    return failures == 0 and max_attempts > 1 and expires_at is None


def _pick(order: Order, at: datetime, using: str) -> list[_Pick]:
    picked: dict[UUID, _Pick] = {}
    for due in chain.from_iterable(_due(queue, at, using, order.among) for queue in order.queues):
        room = due.order_by("due_at", "pk")[: order.limit - len(picked)]
        rows = unlocked(room, using=using).values_list("pk", "expires_at", "failures", "max_attempts")
        picked |= {pick.job_id: pick for pick in starmap(_Pick, rows)}
        if len(picked) == order.limit:
            break
    return list(picked.values())


def _due(queue: str, at: datetime, using: str, among: Aside | None) -> Iterator[QuerySet[Job]]:
    """Yield a queue's due jobs, priority by priority, or in smaller parts while names are paused."""
    for priority in among.windows if among else _priorities(queue, using):
        due = _ready(using).filter(queue=queue, priority=priority, due_at__lte=at, attempt__lt=LAST_ATTEMPT)
        yield from among.parts(due, priority) if among else (due,)


def cancel_late(job_ids: Sequence[UUID], *, at: datetime, using: str) -> list[Late]:
    """Cancel jobs that were READY or WAITING just now, and late, and locked if they could be; return them."""
    if not job_ids:
        return []
    ended = {"state": CANCELLED, "finished_at": at, "cause": EXPIRED_CAUSE}
    jobs = Job.objects.using(using).filter(pk__in=job_ids, expires_at__lte=at)
    jobs.filter(state__in=PENDING).update(**ended, **notify.telling(using))
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

#: What is read of each job, and what it is unless somebody has written by hand what it cannot be.
_COLUMNS: dict[str, Any] = {
    "pk": UUID,
    "name": str,
    "queue": str,
    "priority": int,
    "payload_text": str,
    "attempt": int,
    "failures": int,
    "max_attempts": int,
    "backoff_base": float | int,
    "backoff_cap": float | int,
    "backoff_jitter": float | int,
    "lease_seconds": float | int | None,
    "timeout_seconds": float | int | None,
    "headers_text": str | None,
    "schema": str | None,
    "key": str | None,
    "generation": int | None,
    "due_at": datetime,
    "enqueued_at": datetime,
    "unroutable_since": datetime | None,
    "expires_at": datetime | None,
}


@cache
def _fit(*kinds: type) -> bool:
    """Whether these are types of the columns read. Almost all rows have the same, so the answer is kept."""
    return all(map(issubclass, kinds, _COLUMNS.values()))


def _claimed(row: tuple[Any, ...], at: datetime) -> Claimed:
    require(_fit(*map(type, row)))
    *plain, due_at, enqueued_at, unroutable_since, expires_at = row
    since = None if unroutable_since is None else (at - to_utc(unroutable_since)).total_seconds()
    job = Claimed._make((*plain, to_utc(due_at), to_utc(enqueued_at), at, since, True))
    return job._replace(may_wait=may_wait(job.failures, job.max_attempts, expires_at))


def _scan_portable(queues: Sequence[str] | None, *, using: str, now: datetime | None) -> dict[str, float]:
    at = clock.read(using, now)
    return {
        name: (to_utc(earliest) - at).total_seconds()
        for name in _ready_queues(queues, using)
        if (earliest := _earliest(name, using)) is not None
    }


def _ready(using: str) -> QuerySet[Job]:
    return Job.objects.using(using).filter(state=READY)


def _priorities(queue: str, using: str) -> Iterator[int]:
    """Yield the distinct priorities of a queue's ready jobs, highest first, one index step each."""
    jobs = _ready(using).filter(queue=queue).order_by("-priority").values_list("priority", flat=True)
    priority = jobs.first()
    while priority is not None:
        require(isinstance(priority, int))
        yield priority
        priority = jobs.filter(priority__lt=priority).first()


def _ready_queues(queues: Sequence[str] | None, using: str) -> Iterator[str]:
    if queues is not None:
        yield from queues
        return
    names = _ready(using).order_by("queue").values_list("queue", flat=True)
    name = names.first()
    while name is not None:
        require(isinstance(name, str))
        yield name
        name = names.filter(queue__gt=name).first()


def _earliest(queue: str, using: str) -> datetime | None:
    return min(
        chain.from_iterable(_first(queue, level, using) for level in _priorities(queue, using)), default=None
    )


def _first(queue: str, priority: int, using: str) -> list[datetime]:
    """Return when the first job of a queue and a priority comes due; nothing if the last is gone by now."""
    lane = _ready(using).filter(queue=queue, priority=priority).order_by(by_instant("due_at"))
    first = list(lane.values_list("due_at", flat=True)[:1])
    require(None not in first)
    return first
