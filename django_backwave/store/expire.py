"""Expire: dispose of lapsed leases, whoever held them, each exactly once (G2, G6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django_backwave.core.outcome import CANCEL_CAUSE, Abandoned, Decision, Numbers, decide
from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import Key
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.models import Attempt, Lease
from django_backwave.store import clock
from django_backwave.store.locking import unlocked, writing
from django_backwave.store.retention import trim_attempts

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

#: How many leases one sweep disposes of at most.
SLICE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A lapsed lease that this sweep disposed of."""

    key: Key
    name: str
    worker: str
    state: JobState


def expire(
    *,
    jitter: Callable[[], float],
    limit: int = SLICE,
    using: str,
    now: datetime | None = None,
) -> list[Expired]:
    """Dispose of up to ``limit`` lapsed leases and return them.

    The attempt is recorded as abandoned and counts as a failure; the job becomes READY, DEAD_LETTERED when
    its failures are used up, or CANCELLED when that was requested. Needs no handler: the row says it all.
    ``jitter`` draws a random number in [0, 1).
    """
    with writing(using):
        at = clock.read(using, now)
        lapsed = Lease.objects.using(using).expired(at).order_by("lease_expires_at")[:limit]
        leases = list(unlocked(lapsed.defer("payload"), using=using))
        before = _abandoned_before([lease.pk for lease in leases], using)
        expired = []
        history = []
        for lease in leases:
            decision = _decide(lease, again=lease.pk in before, jitter=jitter())
            if _write(lease, decision, at=at, using=using):
                expired.append(_expired(lease, decision))
                history.append(_attempt(lease, at))
        # A row with that number can only be a leftover made by hand: it must not stop every sweep.
        Attempt.objects.using(using).bulk_create(history, ignore_conflicts=True)
        trim_attempts([row.key for row in expired], using=using)
    return expired


def _abandoned_before(job_ids: list[UUID], using: str) -> set[UUID]:
    attempts = Attempt.objects.using(using).filter(job_id__in=job_ids, outcome=AttemptOutcome.ABANDONED.value)
    return set(attempts.values_list("job_id", flat=True))


def _decide(lease: Lease, *, again: bool, jitter: float) -> Decision:
    numbers = Numbers(
        failures=lease.failures,
        max_attempts=lease.max_attempts,
        backoff=Backoff(base=lease.backoff_base, cap=lease.backoff_cap, jitter=lease.backoff_jitter),
    )
    decision = decide(Abandoned(again), numbers, jitter=jitter, unroutable_grace=0.0)
    if lease.cancel_requested_at is None:
        return decision
    # The attempt stays `abandoned` in the history: the worker that held it must never read there that
    # its own late report was applied.
    return replace(decision, state=JobState.CANCELLED, cause=CANCEL_CAUSE, due_in=None)


def _write(lease: Lease, decision: Decision, *, at: datetime, using: str) -> int:
    values: dict[str, Any] = {
        "failures": decision.failures,
        "lease_expires_at": None,
        "finished_at": at if decision.state.is_terminal else None,
        "cause": decision.cause,
        "unroutable_since": None,
        "worker": "",
        "state": decision.state.value,
    }
    if decision.due_in is not None:
        values["due_at"] = clock.after(at, decision.due_in)
    leases = Lease.objects.using(using).filter(pk=lease.pk)
    return int(leases.held_by(lease.worker, lease.attempt).expired(at).update(**values))


def _expired(lease: Lease, decision: Decision) -> Expired:
    return Expired(
        key=Key(lease.pk, lease.attempt),
        name=lease.name,
        worker=lease.worker,
        state=decision.state,
    )


def _attempt(lease: Lease, at: datetime) -> Attempt:
    return Attempt(
        job_id=lease.pk,
        number=lease.attempt,
        worker=lease.worker,
        started_at=lease.started_at,
        finished_at=at,
        outcome=AttemptOutcome.ABANDONED.value,
    )
