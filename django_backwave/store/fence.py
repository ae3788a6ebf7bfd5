"""The fence (G4): a write to a job applies only while (worker, attempt) holds its unexpired lease.

Every outcome, renewal and release of a worker starts from one of the two guards below, which say the same
thing: ``held`` through the ORM, ``GUARD`` for a batch in PostgreSQL's own words. All four
columns are columns of the very row that is updated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave.core.protocol import AttemptKey
from django_backwave.core.states import JobState
from django_backwave.models import Lease
from django_backwave.store import clock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from uuid import UUID

    from django_backwave.models.lease import LeaseQuerySet


def held(
    job_ids: Sequence[UUID], attempt: int, worker: str, *, using: str, now: datetime | None = None
) -> LeaseQuerySet:
    """Return the rows among these jobs that the fence lets this worker's attempt write.

    ``held(...).update(...)`` is the fenced write; the number of rows that it matched is the verdict.
    """
    leases: LeaseQuerySet = Lease.objects.using(using)
    return leases.of(job_ids).held_by(worker, attempt).live(clock.instant(using, now))


#: The same guard for a batch: ``j`` is the job's row, ``v`` the values given for it. It stands in a
#: sub-select that takes and holds the row's lock, and names the instant by ``{instant}``. ``+ 0`` keeps
#: PostgreSQL from the index of leases: by statistics from before the first claim that one is empty, and a
#: plan that leads over it is ten times slower than the primary key from then on.
GUARD = f"""
    j.id = v.id
    AND j.state + 0 = {JobState.RUNNING.value}
    AND j.worker = %(worker)s
    AND j.attempt = v.attempt
    AND j.lease_expires_at > {{instant}}
"""


def still_held(
    keys: Collection[AttemptKey], worker: str, *, using: str, now: datetime | None = None
) -> set[AttemptKey]:
    """Return which attempts still hold a live lease by the committed rows, without any lock.

    Asked about rows that a guarded write did not match: one that is still held was only locked by
    somebody else; for any other the fence has spoken.
    """
    leases: LeaseQuerySet = Lease.objects.using(using)
    rows = (
        leases.of([key.job_id for key in keys])
        .held_by(worker)
        .live(clock.instant(using, now))
        .values_list("pk", "attempt")
    )
    return {AttemptKey(*row) for row in rows} & set(keys)
