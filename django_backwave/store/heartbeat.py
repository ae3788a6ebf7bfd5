"""Heartbeat: renew leases through the fence, learn of cancels, and say that the worker lives."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Value
from django.db.models.functions import Coalesce

from django_backwave.core.protocol import AttemptKey, Renewal
from django_backwave.models import Job, Lease, Worker
from django_backwave.models.fields import EncodedJSON, InstantField
from django_backwave.store import arrays, clock, fence, plans
from django_backwave.store.locking import is_postgres, unlocked, writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


def renew(
    held: Mapping[AttemptKey, datetime | None],
    *,
    worker: str,
    lease: float,
    using: str,
    progress: Mapping[AttemptKey, str] | None = None,
    now: datetime | None = None,
) -> dict[AttemptKey, Renewal]:
    """Extend the live leases among these attempts, and return what was learnt of each.

    ``held`` gives each attempt with the instant at which its handler started, None if it has not yet. A
    lease is extended to the job's own lease from now, or to ``lease`` seconds where it has none. What is
    expired or another's stays as it is. ``progress`` is JSON text for some of them, written along.
    """
    if not held:
        return {}
    renewing = _renew_postgres if is_postgres(using) else _renew_portable
    renewals = renewing(held, progress or {}, worker=worker, lease=lease, using=using, now=now)
    rest = held.keys() - renewals.keys()
    if rest:
        still = fence.still_held(rest, worker, using=using, now=now)
        renewals |= {key: Renewal.UNKNOWN if key in still else Renewal.LOST for key in rest}
    return renewals


def _renewal(*, cancel_requested: bool) -> Renewal:
    return Renewal.CANCEL_REQUESTED if cancel_requested else Renewal.RENEWED


@cache
def _renew_sql(jobs: str, instant: str, *, told: bool) -> str:
    progress = ", progress = COALESCE(m.progress, j.progress)" if told else ""
    return f"""
        WITH mine AS MATERIALIZED (
            SELECT v.*
              FROM unnest(%(ids)s::uuid[], %(numbers)s::int[], %(starts)s::timestamptz[],
                   %(progresses)s::text[])
                AS v(id, attempt, started_at, progress)
             CROSS JOIN LATERAL (
                SELECT 1 FROM {jobs} j
                 WHERE {fence.GUARD.format(instant=instant)}
                   FOR NO KEY UPDATE SKIP LOCKED) held
        )
        UPDATE {jobs} j
           SET lease_expires_at =
                   {instant} + make_interval(secs => {clock.LEASE}),
               started_at = COALESCE(j.started_at, m.started_at){progress}
          FROM mine m WHERE j.id = m.id
        RETURNING j.id, j.attempt, j.cancel_requested_at IS NOT NULL
    """


def _renew_postgres(
    held: Mapping[AttemptKey, datetime | None],
    progress: Mapping[AttemptKey, str],
    *,
    worker: str,
    lease: float,
    using: str,
    now: datetime | None,
) -> dict[AttemptKey, Renewal]:
    connection = connections[using]
    table = connection.ops.quote_name(Job._meta.db_table)
    sql = _renew_sql(table, clock.instant_sql(now), told=bool(progress))
    keys = sorted(held)
    values: dict[str, Any] = {
        "ids": arrays.uuids(key.job_id for key in keys),
        "numbers": arrays.numbers(key.attempt for key in keys),
        "starts": arrays.instants(held[key] for key in keys),
        "progresses": arrays.texts(progress.get(key) for key in keys),
        "worker": worker,
        "lease": lease,
        "now": now,
    }
    return {
        AttemptKey(job_id, attempt): _renewal(cancel_requested=cancel)
        for job_id, attempt, cancel in plans.fetch("renew", sql, values, using=using)
    }


def _renew_portable(
    held: Mapping[AttemptKey, datetime | None],
    progress: Mapping[AttemptKey, str],
    *,
    worker: str,
    lease: float,
    using: str,
    now: datetime | None,
) -> dict[AttemptKey, Renewal]:
    renewals = {}
    with writing(using):
        leases = Lease.objects.using(using).of([key.job_id for key in held]).order_by("pk")
        rows = unlocked(leases, using=using).values_list(
            "pk", "attempt", "lease_seconds", "cancel_requested_at"
        )
        for job_id, attempt, own_lease, cancel in list(rows):
            key = AttemptKey(job_id, attempt)
            if key not in held:
                continue
            seconds = lease if own_lease is None else own_lease
            values: dict[str, Any] = {"lease_expires_at": clock.after(clock.read(using, now), seconds)}
            if held[key] is not None:
                start = Value(held[key], output_field=InstantField())
                values["started_at"] = Coalesce("started_at", start)
            if key in progress:
                values["progress"] = EncodedJSON(progress[key])
            if fence.held([job_id], attempt, worker, using=using, now=now).update(**values):
                renewals[key] = _renewal(cancel_requested=cancel is not None)
    return renewals


def announce(
    *,
    name: str,
    host: str,
    pid: int,
    started_at: datetime,
    queues: Sequence[str] | None,
    names: Sequence[str],
    concurrency: int,
    version: str,
    using: str,
    now: datetime | None = None,
) -> None:
    """Write the worker's own row, which says that it lives and what it serves."""
    values: dict[str, Any] = {
        "seen_at": clock.read(using, now),
        "queues": None if queues is None else list(queues),
        "names": list(names),
        "concurrency": concurrency,
    }
    row = Worker(name=name, host=host, pid=pid, started_at=started_at, version=version, **values)
    features = connections[using].features
    target = ["name"] if features.supports_update_conflicts_with_target else None
    Worker.objects.using(using).bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=target,
        update_fields=list(values),
    )


def withdraw(name: str, *, using: str) -> None:
    """Delete the row of a worker that ends in order."""
    Worker.objects.using(using).filter(name=name).delete()


def is_one_database(using: str, other: str, *, name: str) -> bool:
    """Find out whether two aliases lead to one database: what is written over one is read over the other.

    ``name``: that of a worker which nobody else has. Its row is there for a moment only.
    """
    nothing: dict[str, Any] = {"host": "", "pid": 0, "queues": [], "names": [], "version": ""}
    announce(name=name, started_at=clock.read(using), concurrency=1, using=using, **nothing)
    try:
        return Worker.objects.using(other).filter(name=name).exists()
    finally:
        withdraw(name, using=using)
