"""Reads: what people and results ask about jobs. From the write alias, for a replica may lag behind."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from django.db import connections
from django.db.models import Prefetch, Q

from django_backwave.core.states import JobState
from django_backwave.models import Action, Attempt, Job, Pause, Tag, Worker
from django_backwave.store import clock
from django_backwave.store.overview import SILENCE
from django_backwave.store.retention import KEPT_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID

#: How many live workers a page asks about what they serve.
MOST_WORKERS = 200


def find(job_id: UUID, *, using: str) -> Job | None:
    """Return a job with its tags and its attempts, oldest first, or None if there is no such job."""
    attempts = Prefetch("attempts", Attempt.objects.using(using).order_by("number"))
    tags = Prefetch("tags", Tag.objects.using(using).all())
    return Job.objects.using(using).filter(pk=job_id).prefetch_related(attempts, tags).first()


def tables_missing(*, using: str) -> list[str]:
    """Return the names of this app's tables that the database lacks."""
    connection = connections[using]
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
    wanted = [model._meta.db_table for model in (Job, Attempt)]
    return [table for table in wanted if table not in there]


def history(job_id: UUID, *, secrets: bool, using: str) -> list[Attempt]:
    """Return the newest attempts of a job, newest first; without ``secrets``, without what errors said."""
    attempts = Attempt.objects.using(using).filter(job_id=job_id).order_by("-number")
    if not secrets:
        attempts = attempts.defer("message", "traceback")
    return list(attempts[:KEPT_ATTEMPTS])


def attempts_before(job_id: UUID, number: int, *, using: str) -> list[Attempt]:
    """Return the attempts of a job before this one, oldest first."""
    attempts = Attempt.objects.using(using).filter(job_id=job_id, number__lt=number)
    return list(attempts.order_by("number"))


def tags_of(job_id: UUID, *, using: str) -> list[Tag]:
    """Return the tags of a job."""
    return list(Tag.objects.using(using).filter(job_id=job_id))


def actions_on(job_id: UUID, *, limit: int = 100, using: str) -> list[Action]:
    """Return what operators did to a job, newest first."""
    # No order by the key alone: it would tempt the planner to walk the whole table by it.
    return list(Action.objects.using(using).filter(job_id=job_id).order_by("-at", "-pk")[:limit])


def pauses_of(queue: str, name: str, *, using: str) -> list[Pause]:
    """Return the pauses that hold jobs of a queue and a name."""
    either = Q(kind=Pause.Kind.QUEUE, target=queue) | Q(kind=Pause.Kind.NAME, target=name)
    return list(Pause.objects.using(using).filter(either).order_by("-kind"))


def actions_on_pauses(*, limit: int = 20, using: str) -> list[Action]:
    """Return what operators did to queues and job names, newest first."""
    return list(Action.objects.using(using).filter(job_id=None).order_by("-at", "-pk")[:limit])


def live_workers(*, using: str, now: datetime | None = None) -> list[Worker]:
    """Return the workers that were heard of lately, at most ``MOST_WORKERS``."""
    since = clock.after(clock.read(using, now), -SILENCE)
    return list(Worker.objects.using(using).filter(seen_at__gt=since).order_by("-seen_at")[:MOST_WORKERS])


def workers_named(names: Iterable[str], *, using: str) -> dict[str, Worker]:
    """Return those of these workers that have a row, by name."""
    rows = Worker.objects.using(using).filter(pk__in=set(names)).defer("names")
    return {worker.name: worker for worker in rows}


def ready_lanes(*, queue: str | None = None, limit: int, using: str) -> list[tuple[str, int]]:
    """Return pairs of queue and priority with ready jobs: of all queues, or of one; at most ``limit``.

    One statement, which goes through the claim's index from one pair to the next, whatever the number
    of jobs.
    """
    connection = connections[using]
    sql = _lanes_sql(connection.ops.quote_name(Job._meta.db_table), one=queue is not None)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"queue": queue, "limit": limit})
        return [(str(name), int(priority)) for name, priority in cursor.fetchall()]


@cache
def _lanes_sql(table: str, *, one: bool) -> str:
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
        SELECT queue, priority FROM lane WHERE priority IS NOT NULL LIMIT %(limit)s
    """
