"""What the page of queues asks: numbers that end at a bound, and what is paused. Reads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_backwave.core.states import JobState
from django_backwave.models import Job, Lease, Pause
from django_backwave.store import clock, monitor
from django_backwave.store.unreadable import sound_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from django.db.models import QuerySet

#: Numbers end here, for each pair of queue and priority; so do the lists of such pairs and of pauses.
MOST, MOST_LANES, MOST_PAUSES = 1000, 100, 500

#: Running jobs that are looked at, of all queues together.
MOST_RUNNING = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A count, and whether it is more than that."""

    value: int = 0
    more: bool = False

    def __add__(self, other: Number) -> Number:
        """Add two counts."""
        return Number(value=self.value + other.value, more=self.more or other.more)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """One queue on the page."""

    queue: str
    ready: Number
    due: Number
    running: Number
    pause: Pause | None


def paused(kind: Pause.Kind, *, using: str) -> list[Pause]:
    """Return what is paused of a kind, in order, as far as a page shows it."""
    return sound_rows(Pause.objects.using(using).filter(kind=kind).order_by("target"), MOST_PAUSES)


def queue_lines(others: Iterable[str] = (), *, using: str, now: datetime | None = None) -> list[QueueLine]:
    """Return the queues that have ready or running jobs, those that are paused, and these others."""
    pauses = {pause.target: pause for pause in paused(Pause.Kind.QUEUE, using=using)}
    ready, due = _waiting(using, now)
    running = _running(using)
    queues = sorted({*ready, *running, *pauses, *others})
    return [
        QueueLine(
            queue=queue,
            ready=ready.get(queue, Number()),
            due=due.get(queue, Number()),
            running=running.get(queue, Number()),
            pause=pauses.get(queue),
        )
        for queue in queues
    ]


def _waiting(using: str, now: datetime | None) -> tuple[dict[str, Number], dict[str, Number]]:
    ready: dict[str, Number] = {}
    due: dict[str, Number] = {}
    lanes = monitor.ready_lanes(limit=MOST_LANES + 1, using=using)
    for queue, priority in lanes[:MOST_LANES]:
        jobs = Job.objects.using(using).filter(state=JobState.READY.value, queue=queue, priority=priority)
        ready[queue] = ready.get(queue, Number()) + _count(jobs)
        due_now = jobs.filter(due_at__lte=clock.statement(using, now))
        due[queue] = due.get(queue, Number()) + _count(due_now)
    for queue, _ in lanes[MOST_LANES:]:
        ready[queue] = ready.get(queue, Number()) + Number(more=True)
        due[queue] = due.get(queue, Number()) + Number(more=True)
    return ready, due


def _count(jobs: QuerySet[Job]) -> Number:
    number = jobs[: MOST + 1].count()
    return Number(value=min(number, MOST), more=number > MOST)


def _running(using: str) -> dict[str, Number]:
    leases = Lease.objects.using(using).order_by().values_list("queue", flat=True)
    queues = list(leases[: MOST_RUNNING + 1])
    more = len(queues) > MOST_RUNNING
    return {queue: Number(value=count, more=more) for queue, count in Counter(queues).items()}
