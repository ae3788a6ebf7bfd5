"""What an operator asks at a glance: queues, workers, and what nobody serves. Reads only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Min, Q

from django_backwave.core.states import JobState
from django_backwave.instants import to_utc
from django_backwave.models import Job, Worker
from django_backwave.store import clock
from django_backwave.store.unreadable import sound_rows

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

#: Seconds of silence after which a worker no longer counts as alive: three of its announcements.
SILENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue's numbers. ``oldest_due_age`` is in seconds, None if nothing is due."""

    queue: str
    ready: int = 0
    due: int = 0
    oldest_due_age: float | None = None
    running: int = 0
    waiting: int = 0
    dead_lettered: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One live worker. ``queues`` None means all; ``seen_ago`` is in seconds."""

    name: str
    queues: list[str] | None
    names: list[str] = field(repr=False)
    concurrency: int
    seen_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The whole picture at one instant of the database's clock."""

    at: datetime
    queues: list[QueueStatus]
    workers: list[WorkerStatus]
    unserved_queues: list[str]
    unserved_names: list[str]


def overview(*, using: str, now: datetime | None = None) -> Overview:
    """Count what stands in each queue, and find the queues and job names that no live worker serves.

    Jobs that succeeded or were cancelled are not counted: there may be millions of them.
    """
    at = clock.read(using, now)
    workers = _workers(at, using)
    queues = _queues(at, using)
    pending = [status.queue for status in queues if status.ready or status.running]
    return Overview(
        at=at,
        queues=queues,
        workers=workers,
        unserved_queues=_unserved_queues(pending, workers),
        unserved_names=_unserved_names(workers, using),
    )


def _queues(at: datetime, using: str) -> list[QueueStatus]:
    numbers: dict[str, dict[str, Any]] = {}
    counted = (
        JobState.READY,
        JobState.RUNNING,
        JobState.WAITING,
        JobState.DEAD_LETTERED,
        JobState.QUARANTINED,
    )
    for state in counted:
        rows = Job.objects.using(using).filter(state=state.value).values("queue").order_by()
        for row in rows.annotate(count=Count("pk")):
            numbers.setdefault(row["queue"], {})[state.name.lower()] = row["count"]
    due = Q(state=JobState.READY.value, due_at__lte=at)
    rows = Job.objects.using(using).filter(due).values("queue").order_by()
    for row in rows.annotate(count=Count("pk"), oldest=Min("due_at")):
        # A queue that came up since the count above is shown with what is due in it.
        known = numbers.setdefault(row["queue"], {"ready": row["count"]})
        known["due"] = row["count"]
        if row["oldest"] is not None:  # else somebody has written by hand what is no instant
            known["oldest_due_age"] = (at - to_utc(row["oldest"])).total_seconds()
    return [QueueStatus(queue=queue, **numbers[queue]) for queue in sorted(numbers)]


def _workers(at: datetime, using: str) -> list[WorkerStatus]:
    alive = Worker.objects.using(using).filter(seen_at__gt=clock.after(at, -SILENCE)).order_by("name")
    return [
        WorkerStatus(
            name=worker.name,
            queues=worker.queues,
            names=worker.names,
            concurrency=worker.concurrency,
            seen_ago=max(0.0, (at - to_utc(worker.seen_at)).total_seconds()),
        )
        for worker in sound_rows(alive)
    ]


def _unserved_queues(pending: Collection[str], workers: list[WorkerStatus]) -> list[str]:
    if any(worker.queues is None for worker in workers):
        return []
    served = {queue for worker in workers for queue in worker.queues or ()}
    return sorted(set(pending) - served)


def _unserved_names(workers: list[WorkerStatus], using: str) -> list[str]:
    served = {name for worker in workers for name in worker.names}
    ready = Job.objects.using(using).filter(state=JobState.READY.value)
    return sorted(set(ready.order_by().values_list("name", flat=True).distinct()) - served)
