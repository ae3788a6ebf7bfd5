"""Expire: dispose of leases that lapsed or whose worker died, each just once (G2, G6); cancel late jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db.models import Q

from django_backwave.core.outcome import CANCEL_CAUSE, Abandoned, Decision, Numbers, Released, decide
from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import AttemptKey
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.models import Attempt, Job, Lease
from django_backwave.store import clock, notify
from django_backwave.store.claim import cancel_late
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import unlocked, writing
from django_backwave.store.retention import trim_attempts
from django_backwave.store.unreadable import past_unreadable, require

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from django_backwave.models.lease import LeaseQuerySet
    from django_backwave.store.claim import Late

#: How many leases one sweep disposes of at most.
SLICE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A lease that was disposed of: it had lapsed, or its worker's process was gone."""

    key: AttemptKey
    name: str
    queue: str
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
    sweep = partial(_expire, jitter=jitter, limit=limit, using=using, now=now)
    return past_unreadable(sweep, using=using, now=now)


def _expire(*, jitter: Callable[[], float], limit: int, using: str, now: datetime | None) -> list[Expired]:
    # Most times there is none: no transaction is opened for that, and SQLite's one write lock is not taken.
    # In order, for that needs the index; without, PostgreSQL may read the whole table to find none.
    found = Lease.objects.using(using).expired(clock.statement(using, now)).order_by("lease_expires_at")
    if not found.values_list("pk", flat=True)[:1]:
        return []
    with writing(using):
        at = clock.read(using, now)
        lapsed = Lease.objects.using(using).expired(at).order_by("lease_expires_at")[:limit]
        return _dispose(lapsed, _End.LAPSED, at=at, jitter=jitter, using=using)


def expire_dead(
    worker: str,
    *,
    ordered: bool,
    jitter: Callable[[], float],
    limit: int = SLICE,
    using: str,
    now: datetime | None = None,
) -> list[Expired]:
    """Dispose of up to ``limit`` leases of a worker whose process has ended, lapsed or not; return them.

    Only for who knows that the process is gone: that proves that its code has stopped. An attempt is
    abandoned, as in ``expire``; if the process had ended in order (``ordered``) it is released, and no
    failure counts, for then the only code left was that of handlers which did not hear.

    Rows that somebody else has locked are passed over, and a statement that the worker had sent may commit
    after its death: so this is to be repeated for a while.
    """
    end = _End.STOPPED if ordered else _End.DIED

    def dispose() -> list[Expired]:
        with writing(using):
            held = Lease.objects.using(using).held_by(worker).order_by("pk")[:limit]
            return _dispose(held, end, at=clock.read(using, now), jitter=jitter, using=using)

    return past_unreadable(dispose, dead=worker, using=using, now=now)


#: What a sweep reads, and what it is: garbage in other columns, written by hand, does not concern a sweep.
_READ: dict[str, Any] = {
    **dict.fromkeys(("name", "queue", "worker"), str),
    **dict.fromkeys(("attempt", "failures", "max_attempts"), int),
    **dict.fromkeys(("backoff_base", "backoff_cap", "backoff_jitter"), float | int),
    "started_at": datetime | None,
}


class _End(Enum):
    LAPSED = "the lease is over"
    DIED = "its process died"
    STOPPED = "its process ended in order"


def _dispose(
    rows: LeaseQuerySet, end: _End, *, at: datetime, jitter: Callable[[], float], using: str
) -> list[Expired]:
    read = rows.only(*_READ).annotate(cancelled=Q(cancel_requested_at__isnull=False))
    leases: list[Any] = list(unlocked(read, using=using))
    require(all(isinstance(getattr(lease, name), kind) for lease in leases for name, kind in _READ.items()))
    before = _abandoned_before([lease.pk for lease in leases], using)
    expired = []
    history = []
    for lease in leases:
        outcome = Released() if end is _End.STOPPED else Abandoned(lease.pk in before)
        decision = _decide(lease, outcome, jitter=jitter())
        if _write(lease, decision, end, at=at, using=using):
            expired.append(_expired(lease, decision))
            if decision.recorded or lease.started_at is not None:
                history.append(_attempt(lease, decision, at))
    passing("expire: rows written")
    # A row with that number can only be a leftover made by hand: it must not stop every sweep.
    Attempt.objects.using(using).bulk_create(history, ignore_conflicts=True)
    passing("expire: history written")
    trim_attempts([row.key for row in expired], using=using)
    return expired


def expire_waiting(*, limit: int = SLICE, using: str, now: datetime | None = None) -> list[Late]:
    """Cancel up to ``limit`` jobs that have not started in time, READY or WAITING, and return them.

    Claims cancel what they come across; this is for jobs that no claim reaches yet, or ever.
    """
    return past_unreadable(partial(_expire_waiting, limit=limit, using=using, now=now), using=using, now=now)


def _expire_waiting(*, limit: int, using: str, now: datetime | None) -> list[Late]:
    late: list[Late] = []
    for state in (JobState.READY.value, JobState.WAITING.value):
        rows = Job.objects.using(using).filter(state=state, expires_at__lte=clock.statement(using, now))
        # In order, for that needs the index; without, PostgreSQL may read the whole table to find none.
        ids = list(rows.order_by("expires_at").values_list("pk", flat=True)[: limit - len(late)])
        if not ids:  # most times: no transaction is opened for nothing
            continue
        with writing(using):
            # By primary key alone: MySQL would lock all rows of the index range that it walks.
            free = unlocked(Job.objects.using(using).filter(pk__in=ids).order_by("pk"), using=using)
            still = [job_id for job_id, now_in in free.values_list("pk", "state") if now_in == state]
            late += cancel_late(still, at=clock.read(using, now), using=using)
    return late


def _abandoned_before(job_ids: list[UUID], using: str) -> set[UUID]:
    attempts = Attempt.objects.using(using).filter(job_id__in=job_ids, outcome=AttemptOutcome.ABANDONED.value)
    return set(attempts.values_list("job_id", flat=True))


def _decide(lease: Any, outcome: Abandoned | Released, *, jitter: float) -> Decision:
    numbers = Numbers(
        failures=lease.failures,
        max_attempts=lease.max_attempts,
        backoff=Backoff.of_row(lease.backoff_base, lease.backoff_cap, lease.backoff_jitter),
    )
    decision = decide(outcome, numbers, jitter=jitter, unroutable_grace=0.0)
    if not lease.cancelled:
        return decision
    # The attempt stays what it is in the history: the worker that held it must never read there that
    # its own late report was applied.
    return decision._replace(state=JobState.CANCELLED, cause=CANCEL_CAUSE, due_in=None)


def _write(lease: Lease, decision: Decision, end: _End, *, at: datetime, using: str) -> int:
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
    if decision.state.is_terminal:
        values |= notify.telling(using)
    leases = Lease.objects.using(using).filter(pk=lease.pk)
    if end is _End.LAPSED:
        return int(leases.held_by(lease.worker, lease.attempt).expired(at).update(**values))
    return int(leases.held_by(lease.worker, lease.attempt).update(**values))


def _expired(lease: Lease, decision: Decision) -> Expired:
    return Expired(
        key=AttemptKey(lease.pk, lease.attempt),
        name=lease.name,
        queue=lease.queue,
        worker=lease.worker,
        state=decision.state,
    )


def _attempt(lease: Any, decision: Decision, at: datetime) -> Attempt:
    return Attempt(
        job_id=lease.pk,
        number=lease.attempt,
        worker=lease.worker,
        started_at=lease.started_at,
        finished_at=at,
        outcome=decision.outcome.value,
    )
