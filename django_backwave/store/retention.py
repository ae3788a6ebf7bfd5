"""Retention: delete what ended long ago, in bounded slices."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import ProtectedError, Q, RestrictedError

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job, Worker
from django_backwave.store import clock
from django_backwave.store.failpoint import passing
from django_backwave.store.keys import farewell
from django_backwave.store.locking import unlocked, writing
from django_backwave.store.unreadable import past_unreadable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime
    from uuid import UUID

    from django.db.models import QuerySet

    from django_backwave.core.protocol import AttemptKey

#: How many attempts of a job are kept.
KEPT_ATTEMPTS = 100

#: How many jobs one slice of a prune deletes at most.
SLICE = 500

#: Seconds of silence after which a worker's row is dropped.
WORKER_SILENCE = 24 * 3600.0

#: No job is kept longer than this many seconds, a thousand years: the calendar has a beginning.
LONGEST_KEEP = 1000 * 365 * 24 * 3600.0

#: Slices of jobs that somebody's rows protect which one prune steps over.
STEPS = 10

_DONE = (JobState.SUCCEEDED, JobState.CANCELLED)
_DEAD = (JobState.DEAD_LETTERED, JobState.QUARANTINED)


def prune(
    *,
    keep_done: float | None,
    keep_dead: float | None,
    limit: int = SLICE,
    using: str,
    now: datetime | None = None,
) -> int:
    """Delete up to ``limit`` jobs that ended longer ago than they are kept; return how many.

    ``keep_done`` is for succeeded and cancelled jobs, ``keep_dead`` for dead-lettered and quarantined ones,
    in seconds; None keeps them for ever. Their attempts go in the same transaction, and so does whatever
    another app's models hang on Job, by its own ``on_delete``; a job that it protects stays. Keys remember
    how their last job ended.
    """
    return past_unreadable(
        partial(_prune, keep_done, keep_dead, limit, using=using, now=now), using=using, now=now
    )


def _prune(
    keep_done: float | None, keep_dead: float | None, limit: int, *, using: str, now: datetime | None
) -> int:
    count = 0
    for old in _old(keep_done, keep_dead, clock.read(using, now)):
        if count < limit:
            count += _delete_slice(old, limit - count, using=using)
    return count


def prunable(
    *, keep_done: float | None, keep_dead: float | None, using: str, now: datetime | None = None
) -> int:
    """Return how many jobs ``prune`` would delete by and by."""
    jobs = Job.objects.using(using)
    return sum(jobs.filter(old).count() for old in _old(keep_done, keep_dead, clock.read(using, now)))


def _old(keep_done: float | None, keep_dead: float | None, at: datetime) -> Iterator[Q]:
    """Yield what is old, one state at a time: so the index gives the oldest without a sort."""
    for states, keep in ((_DONE, keep_done), (_DEAD, keep_dead)):
        for state in states if keep is not None else ():
            yield Q(state=state.value, finished_at__lt=clock.after(at, -min(keep or 0.0, LONGEST_KEEP)))


def _delete_slice(old: Q, limit: int, *, using: str) -> int:
    """Delete the oldest that can be: those which another app's rows protect are stepped over."""
    kept: list[UUID] = []
    for _ in range(STEPS):
        with writing(using):
            ended = Job.objects.using(using).filter(old).exclude(pk__in=kept).order_by("finished_at")[:limit]
            ids = list(unlocked(ended, using=using).values_list("pk", flat=True))
            staying = farewell(ids, using=using)
            leaving = [pk for pk in ids if pk not in staying]
            count = _delete_these(old, leaving, using) if leaving else 0
        if count or len(ids) < limit:
            return count
        kept += ids
    return 0


def _delete_these(old: Q, ids: list[UUID], using: str) -> int:
    # State and age again: where rows cannot be locked, one may have been requeued meanwhile.
    jobs = Job.objects.using(using).filter(old, pk__in=ids).only("pk")
    try:
        with transaction.atomic(using=using):
            return _delete(jobs)
    except (ProtectedError, RestrictedError):
        return sum(_delete_unless_kept(jobs.filter(pk=pk), using) for pk in ids)


def _delete(jobs: QuerySet[Job]) -> int:
    count = jobs.delete()[1].get(Job._meta.label, 0)  # what hangs on them first
    passing("prune: jobs deleted")
    return count


def _delete_unless_kept(job: QuerySet[Job], using: str) -> int:
    with suppress(ProtectedError, RestrictedError), transaction.atomic(using=using):
        return _delete(job)
    return 0


def prune_workers(*, using: str, now: datetime | None = None) -> int:
    """Delete the rows of workers that have been silent for a day; return how many."""
    silent = clock.after(clock.read(using, now), -WORKER_SILENCE)
    return Worker.objects.using(using).filter(seen_at__lt=silent).delete()[0]


def trim_attempts(keys: Collection[AttemptKey], *, using: str) -> None:
    """Keep the newest ``KEPT_ATTEMPTS`` attempts of jobs that have had more claims than that."""
    for key in keys:
        if key.attempt > KEPT_ATTEMPTS:
            attempts = Attempt.objects.using(using).filter(job_id=key.job_id)
            numbers = attempts.order_by("-number").values_list("number", flat=True)
            oldest_kept = numbers[KEPT_ATTEMPTS - 1 : KEPT_ATTEMPTS].first()
            if oldest_kept is not None:
                attempts.filter(number__lt=oldest_kept).delete()
