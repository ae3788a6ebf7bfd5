"""Marks: whether an effect outside the database was begun, or done, by an earlier attempt of a job.

Both writes go through the fence, in a transaction that holds the job's row: so the lease is live when they
commit. They are durable at once, on a connection that is not the handler's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_backwave.models import Lease, Mark
from django_backwave.models.fields import EncodedJSON
from django_backwave.store import clock, fence
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import waiting, writing

if TYPE_CHECKING:
    from datetime import datetime

    from django_backwave.core.protocol import AttemptKey
    from django_backwave.models.lease import LeaseQuerySet


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """What a mark said before this attempt came to it. ``first``: there was none."""

    first: bool
    done: bool = False
    result: Any = None


def begin(
    key: AttemptKey, name: str, *, worker: str, using: str, now: datetime | None = None
) -> Marked | None:
    """Mark an effect as begun, and return what the mark said before; None: the fence refused."""
    with writing(using):
        if not _held(key, worker, using=using, now=now):
            return None
        passing("once: row locked")
        mark = Mark.objects.using(using).filter(job_id=key.job_id, name=name).first()
        if mark is not None:
            return Marked(first=False, done=mark.done_at is not None, result=mark.result)
        begun_at = clock.read(using, now)
        mark = Mark(job_id=key.job_id, name=name, attempt=key.attempt, begun_at=begun_at)
        mark.save(force_insert=True, using=using)
        passing("once: mark written")
    return Marked(first=True)


def finish(
    key: AttemptKey, name: str, result: str, *, worker: str, using: str, now: datetime | None = None
) -> bool:
    """Mark an effect as done, with its result as JSON text; return whether the fence let it through.

    A mark that is done already keeps the result that it has.
    """
    with writing(using):
        if not _held(key, worker, using=using, now=now):
            return False
        passing("once: row locked")
        open_marks = Mark.objects.using(using).filter(job_id=key.job_id, name=name, done_at=None)
        open_marks.update(attempt=key.attempt, done_at=clock.read(using, now), result=EncodedJSON(result))
        passing("once: mark written")
    return True


def _held(key: AttemptKey, worker: str, *, using: str, now: datetime | None) -> bool:
    """Hold the job's row until the end of the transaction, then ask the fence."""
    leases: LeaseQuerySet = Lease.objects.using(using)
    list(waiting(leases.of([key.job_id]), using=using).values_list("pk"))
    return fence.held([key.job_id], key.attempt, worker, using=using, now=now).exists()
