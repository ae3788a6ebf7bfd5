"""What is known of keys and their generations, for people who look. Reads only, each along an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave.core.states import UNFINISHED
from django_backwave.models import Job, Key, Operation
from django_backwave.store.unreadable import sound_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from django.db.models import QuerySet

#: Nothing that a job carries, nor what its errors said.
_SHOWN = (
    "name",
    "queue",
    "key",
    "generation",
    "state",
    "enqueued_at",
    "due_at",
    "finished_at",
    "attempt",
    "failures",
    "max_attempts",
    "cancel_requested_at",
)


#: How many jobs with a key are asked for their queue, at most.
MOST_LOOKED_AT = 1000


def listed(queue: str, key: str, *, limit: int, using: str) -> list[Job]:
    """Return the jobs of a key, newest generation first."""
    return sound_rows(_jobs(queue, key, using), limit)


def unfinished(queue: str, key: str, *, using: str) -> Job | None:
    """Return the newest unfinished generation of a key."""
    found = sound_rows(_jobs(queue, key, using).filter(state__in=UNFINISHED), 1)
    return next(iter(found), None)


def _jobs(queue: str, key: str, using: str) -> QuerySet[Job]:
    jobs = Job.objects.using(using).filter(key=key, queue=queue)
    return jobs.only(*_SHOWN).order_by("-generation")


def with_key(key: str, queue: str | None = None, *, limit: int, using: str) -> list[UUID]:
    """Return the jobs with a key in one queue, the newest generations first; or in all queues, in turn."""
    jobs = Job.objects.using(using).filter(key=key)
    jobs = jobs if queue is None else jobs.filter(queue=queue)
    return [job.pk for job in sound_rows(jobs.only("pk").order_by("-queue", "-generation"), limit)]


def states_of(job_ids: Iterable[UUID], *, using: str) -> dict[UUID, Job]:
    """Return those of the jobs that exist, with what their state reads of."""
    jobs = Job.objects.using(using).filter(pk__in=set(job_ids)).only(*_SHOWN)
    return {job.pk: job for job in sound_rows(jobs)}


def row(queue: str, key: str, *, using: str) -> Key | None:
    """Return what is remembered of a key."""
    return next(iter(sound_rows(Key.objects.using(using).filter(pk=Key.id_of(queue, key)))), None)


def operation_of(job_id: UUID, *, using: str) -> Operation | None:
    """Return the prepared enqueue that fixed a job's id, if there was one and it is remembered."""
    return next(iter(sound_rows(Operation.objects.using(using).filter(pk=job_id))), None)


def queues_of(key: str, *, using: str) -> set[str]:
    """Return the queues in which there are jobs with a key, as far as a few of these tell."""
    jobs = Job.objects.using(using).filter(key=key).order_by("-queue", "-generation")
    return {job.queue for job in sound_rows(jobs.only("queue"), MOST_LOOKED_AT)}
