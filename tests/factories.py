"""Rows and values for tests, named for the situation that they are in.

Time is virtual: everything happens at `NOW` unless a test says otherwise. Rows that no sequence of
store calls leads to in one step are given their columns directly, as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from django.db import connections

from django_backwave.core.outcome import ErrorInfo, Failed, Outcome, Succeeded
from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import Claimed, Report, Verdict
from django_backwave.ids import new_id
from django_backwave.models import Attempt, Job
from django_backwave.store.claim import claim
from django_backwave.store.enqueue import NewJob, insert_one
from django_backwave.store.settle import settle

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORKER = "host:1:a"
STRANGER = "host:2:b"
LEASE = 60.0
GRACE = 3600.0

ERROR = ErrorInfo(class_path="builtins.ValueError", message="no stock", traceback="Traceback: …")
FAILED = Failed(ERROR)
SUCCEEDED = Succeeded("null")

SECOND = "second"

_queues = count(1)
_NEW_JOB = set(NewJob._fields)


def after(seconds: float) -> datetime:
    """Return the instant so many seconds after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def new_job(**changes: Any) -> NewJob:
    """Return a job that can be inserted."""
    values: dict[str, Any] = {
        "id": new_id(),
        "name": "shop.send_receipt",
        "queue": "default",
        "priority": 0,
        "payload": '{"args":[],"kwargs":{}}',
        "run_after": None,
        "max_attempts": 3,
        "backoff": Backoff(base=8, cap=100, jitter=0.5),
        "lease_seconds": None,
    }
    return NewJob(**values | changes)


def ready(*, now: datetime | None = NOW, using: str = "default", **changes: Any) -> Job:
    """Return a READY job's row, due at `now`; `changes` are of `NewJob` or of the row."""
    job = new_job(**{name: changes.pop(name) for name in _NEW_JOB & changes.keys()})
    insert_one(job, using=using, now=now)
    if changes:
        Job.objects.using(using).filter(pk=job.id).update(**changes)
    return Job.objects.using(using).get(pk=job.id)


def claimed(
    *,
    worker: str = WORKER,
    lease: float = LEASE,
    now: datetime | None = NOW,
    using: str = "default",
    **changes: Any,
) -> Claimed:
    """Return a new job as a claim handed it out; it has a queue of its own unless one is given."""
    queue = changes.pop("queue", f"queue-{next(_queues)}")
    job = ready(now=now, using=using, queue=queue, **changes)
    [taken] = claim(queue, 1, worker=worker, lease=lease, using=using, now=now)
    assert taken.job_id == job.pk, "another job of that queue was due before"
    return taken


def reclaimed(job: Claimed, *, worker: str = WORKER, now: datetime | None = NOW) -> Claimed:
    """Return a job as the next claim handed it out; it must be READY and due."""
    [taken] = claim(job.queue, 1, worker=worker, lease=LEASE, using="default", now=now)
    assert taken.job_id == job.job_id
    return taken


def lapsed(**changes: Any) -> Claimed:
    """Return a job whose lease reaches its end at `NOW`, unswept."""
    return claimed(now=after(-LEASE), **changes)


def report(job: Claimed, outcome: Outcome = SUCCEEDED, **changes: Any) -> Report:
    """Return the report of an attempt whose handler started one second after the claim."""
    values: dict[str, Any] = {"jitter": 0.0, "started_after": 1.0}
    return Report(job=job, outcome=outcome, **values | changes)


def send(
    *reports: Report, worker: str = WORKER, now: datetime | None = NOW, using: str = "default"
) -> list[Verdict]:
    """Settle reports in one batch, and return the verdict on each."""
    verdicts = settle(reports, worker=worker, unroutable_grace=GRACE, using=using, now=now)
    return [verdicts[each.job.key] for each in reports]


def row(job: Job | Claimed | NewJob, using: str = "default") -> Job:
    """Return a job's row as it stands now."""
    return Job.objects.using(using).get(pk=_id(job))


def attempts(job: Job | Claimed | NewJob) -> list[Attempt]:
    """Return a job's history, oldest first."""
    return list(Attempt.objects.filter(job_id=_id(job)).order_by("number"))


def outcomes(job: Job | Claimed | NewJob) -> list[tuple[int, str]]:
    """Return number and outcome of each attempt in a job's history."""
    return [(attempt.number, attempt.outcome) for attempt in attempts(job)]


def contents() -> list[list[dict[str, Any]]]:
    """Return every byte of jobs and history, to compare before with after."""
    tables = (Job.objects.order_by("pk"), Attempt.objects.order_by("pk"))
    return [list(rows.values()) for rows in tables]


@contextmanager
def second_connection(alias: str = SECOND) -> Iterator[str]:
    """Open a second connection to the database of the test, and give its alias.

    It sees what is committed, so the test must not run in a transaction that is rolled back.
    """
    connection = connections["default"].copy(alias)
    connections[alias] = connection
    try:
        yield alias
    finally:
        connection.close()
        del connections[alias]


def _id(job: Job | Claimed | NewJob) -> UUID:
    return job.job_id if isinstance(job, Claimed) else job.id
