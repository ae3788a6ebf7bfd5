"""Release of what a worker holds without knowing it: claims whose reply was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db.models import Case, F, Q, SmallIntegerField, Value, When

from django_backwave.core.outcome import CANCEL_CAUSE
from django_backwave.core.protocol import AttemptKey
from django_backwave.core.states import JobState
from django_backwave.models import Lease
from django_backwave.models.fields import ExactTextField
from django_backwave.store import clock, fence, notify
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import unlocked, writing

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from django_backwave.models.lease import LeaseQuerySet


def release_unknown(
    known: Collection[AttemptKey], *, worker: str, using: str, now: datetime | None = None
) -> list[AttemptKey]:
    """Hand back every job that this worker holds but for the known attempts; return those handed back.

    Rows that somebody else has locked are passed over: ``holds_unknown`` tells of them.
    Costs no failure and leaves no attempt row: their handlers never started. Only to be called while none
    of the worker's claims is under way. A job whose cancel was requested becomes CANCELLED.
    """
    with writing(using):
        leases = Lease.objects.using(using).held_by(worker).order_by("pk")
        rows = unlocked(leases, using=using).values_list("pk", "attempt")
        unknown = [key for key in (AttemptKey(*row) for row in rows) if key not in known]
        return [key for key in unknown if _hand_back(key, worker, using=using, now=now)]


def holds_unknown(
    known: Collection[AttemptKey], *, worker: str, using: str, now: datetime | None = None
) -> bool:
    """Whether this worker holds a live lease of an attempt that it does not know."""
    leases: LeaseQuerySet = Lease.objects.using(using)
    held = leases.held_by(worker).live(clock.instant(using, now)).values_list("pk", "attempt")
    return any(AttemptKey(*row) not in known for row in held)


def _hand_back(key: AttemptKey, worker: str, *, using: str, now: datetime | None) -> int:
    at = clock.instant(using, now)
    asked = Q(cancel_requested_at__isnull=False)
    count = int(
        fence.held([key.job_id], key.attempt, worker, using=using, now=now).update(
            lease_expires_at=None,
            finished_at=Case(When(asked, then=at), default=F("finished_at")),
            cause=Case(
                When(asked, then=Value(CANCEL_CAUSE)),
                default=F("cause"),
                output_field=ExactTextField(),
            ),
            worker="",
            **notify.telling(using, where=asked),
            # Last: MySQL evaluates assignments from left to right.
            state=Case(
                When(asked, then=Value(JobState.CANCELLED.value)),
                default=Value(JobState.READY.value),
                output_field=SmallIntegerField(),
            ),
        )
    )
    passing("release: row written")
    return count
