"""Reads: what people and results ask about jobs. From the write alias, for a replica may lag behind."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from itertools import batched
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Prefetch, Q

from django_backwave.core.states import JobState
from django_backwave.models import Action, Attempt, Job, Pause, Tag, Worker
from django_backwave.store import clock
from django_backwave.store.overview import SILENCE
from django_backwave.store.retention import KEPT_ATTEMPTS
from django_backwave.store.unreadable import only_sound, sound_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime
    from uuid import UUID

    from django.db.models import QuerySet

#: How many live workers a page asks about what they serve.
MOST_WORKERS = 200


def find(job_id: UUID, *, using: str) -> Job | None:
    """Return a job with its tags and its attempts, oldest first, or None if there is no such job."""
    return find_all([job_id], using=using).get(job_id)


def find_all(job_ids: Iterable[UUID], *, using: str) -> dict[UUID, Job]:
    """Return those of the jobs that exist, as ``find`` does."""
    ids = tuple(job_ids)
    every_tag = Tag.objects.using(using).all()

    def read(attempts: QuerySet[Attempt], tags: QuerySet[Tag]) -> dict[UUID, Job]:
        jobs = Job.objects.using(using)
        jobs = jobs.prefetch_related(Prefetch("attempts", attempts), Prefetch("tags", tags))
        return {job.pk: job for batch in batched(ids, 500) for job in jobs.filter(pk__in=batch)}

    def with_sound_tags(attempts: QuerySet[Attempt]) -> dict[UUID, Job]:
        return only_sound(every_tag, partial(read, attempts), lambda jobs: _hanging("tags", jobs))

    every_attempt = Attempt.objects.using(using).order_by("number")
    return only_sound(every_attempt, with_sound_tags, lambda jobs: _hanging("attempts", jobs))


def _hanging(name: str, jobs: dict[UUID, Job]) -> Iterator[Any]:
    for job in jobs.values():
        yield from getattr(job, name).all()


def history(job_id: UUID, *, secrets: bool, using: str) -> list[Attempt]:
    """Return the newest attempts of a job, newest first; without ``secrets``, without what errors said."""
    attempts = Attempt.objects.using(using).filter(job_id=job_id).order_by("-number")
    if not secrets:
        attempts = attempts.defer("message", "traceback")
    return sound_rows(attempts, KEPT_ATTEMPTS)


def attempts_before(job_id: UUID, number: int, *, using: str) -> list[Attempt]:
    """Return the attempts of a job before this one, oldest first."""
    attempts = Attempt.objects.using(using).filter(job_id=job_id, number__lt=number)
    return sound_rows(attempts.order_by("number"))


def tags_of(job_id: UUID, *, using: str) -> list[Tag]:
    """Return the tags of a job."""
    return sound_rows(Tag.objects.using(using).filter(job_id=job_id))


def actions_on(job_id: UUID, *, limit: int = 100, using: str) -> list[Action]:
    """Return what operators did to a job, newest first."""
    # No order by the key alone: it would tempt the planner to walk the whole table by it.
    return sound_rows(Action.objects.using(using).filter(job_id=job_id).order_by("-at", "-pk"), limit)


def pauses_of(queue: str, name: str, *, using: str) -> list[Pause]:
    """Return the pauses that hold jobs of a queue and a name."""
    either = Q(kind=Pause.Kind.QUEUE, target=queue) | Q(kind=Pause.Kind.NAME, target=name)
    return sound_rows(Pause.objects.using(using).filter(either).order_by("-kind"))


def actions_on_pauses(*, limit: int = 20, using: str) -> list[Action]:
    """Return what operators did to queues and job names, newest first."""
    return sound_rows(Action.objects.using(using).filter(job_id=None).order_by("-at", "-pk"), limit)


def live_workers(*, using: str, now: datetime | None = None) -> list[Worker]:
    """Return the workers that were heard of lately, at most ``MOST_WORKERS``."""
    since = clock.after(clock.read(using, now), -SILENCE)
    alive = Worker.objects.using(using).filter(seen_at__gt=since)
    return sound_rows(alive.order_by("-seen_at"), MOST_WORKERS)


def workers_named(names: Iterable[str], *, using: str) -> dict[str, Worker]:
    """Return those of these workers that have a row, by name."""
    rows = Worker.objects.using(using).filter(pk__in=set(names)).defer("names")
    return {worker.name: worker for worker in sound_rows(rows)}


def ready_lanes(*, queue: str | None = None, limit: int, using: str) -> list[tuple[str, int]]:
    """Return pairs of queue and priority with ready jobs: of all queues, or of one; at most ``limit``.

    One statement, which goes through the claim's index from one pair to the next, whatever the number
    of jobs.
    """
    connection = connections[using]
    # As bytes where text may be none: one word that is no UTF-8 would fail the whole statement.
    word = "CAST(queue AS BLOB)" if connection.vendor == "sqlite" else "queue"
    sql = _lanes_sql(connection.ops.quote_name(Job._meta.db_table), word, one=queue is not None)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"queue": queue, "limit": limit})
        return list(_sound_lanes(cursor.fetchall()))


def _sound_lanes(rows: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, int]]:
    """Leave out what somebody has written by hand in the place of a queue or a priority."""
    for name, priority in rows:
        with suppress(UnicodeDecodeError):
            queue = name.decode() if isinstance(name, bytes) else name
            if isinstance(priority, int):
                yield queue, priority


@cache
def _lanes_sql(table: str, word: str, *, one: bool) -> str:
    ready = f"FROM {table} j WHERE j.state = {JobState.READY.value}"
    queues = (
        f"SELECT (SELECT j.queue {ready} AND j.queue = %(queue)s ORDER BY j.queue LIMIT 1) AS queue, 1 AS n"
        if one
        else f"""
            SELECT (SELECT j.queue {ready} ORDER BY j.queue LIMIT 1) AS queue, 1 AS n
             UNION ALL
            SELECT (SELECT j.queue {ready} AND j.queue > held.queue ORDER BY j.queue LIMIT 1), held.n + 1
              FROM held WHERE held.queue IS NOT NULL AND held.n < %(limit)s"""
    )
    # Scalar sub-selects, for all of our databases take them in a recursion.
    return f"""
        WITH RECURSIVE held AS ({queues}), lane AS (
            SELECT held.queue,
                   (SELECT j.priority {ready} AND j.queue = held.queue ORDER BY j.priority LIMIT 1)
                       AS priority
              FROM held WHERE held.queue IS NOT NULL
             UNION ALL
            SELECT lane.queue,
                   (SELECT j.priority {ready} AND j.queue = lane.queue AND j.priority > lane.priority
                     ORDER BY j.priority LIMIT 1)
              FROM lane WHERE lane.priority IS NOT NULL
        )
        SELECT {word}, priority FROM lane WHERE priority IS NOT NULL LIMIT %(limit)s
    """
