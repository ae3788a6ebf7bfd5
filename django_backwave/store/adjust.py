"""What operators change of jobs that wait to run: when, how urgent, where. Recorded with its effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_backwave.core.protocol import ChangeResult, RescheduleResult
from django_backwave.core.states import PENDING, JobState
from django_backwave.instants import to_utc
from django_backwave.models import Job
from django_backwave.store import clock, notify
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import writing
from django_backwave.store.operate import locked_states, record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from enum import Enum
    from uuid import UUID


def reschedule(
    job_ids: Iterable[UUID], due_at: datetime, *, actor: str = "", using: str, now: datetime | None = None
) -> dict[UUID, RescheduleResult]:
    """Let READY and WAITING jobs come due at another time; return what that did to each that exists.

    A job that has been claimed keeps its time. Joins the caller's transaction. What was done is recorded
    under ``actor``, if that is given.
    """
    when = f"rescheduled to {to_utc(due_at):%Y-%m-%d %H:%M:%S} UTC"
    with writing(using):
        states = _adjust(job_ids, {"due_at": to_utc(due_at)}, using)
        results = {job_id: _result(RescheduleResult, "RESCHEDULED", states[job_id]) for job_id in states}
        _record("reschedule", results, when, actor=actor, using=using, now=now)
    return results


def run_now(
    job_ids: Iterable[UUID], *, actor: str = "", using: str, now: datetime | None = None
) -> dict[UUID, RescheduleResult]:
    """Let READY and WAITING jobs be due now; else as ``reschedule``."""
    with writing(using):
        states = _adjust(job_ids, {"due_at": clock.instant(using, now)}, using)
        results = {job_id: _result(RescheduleResult, "RESCHEDULED", states[job_id]) for job_id in states}
        _record("run_now", results, "due now", actor=actor, using=using, now=now)
    return results


def change(
    job_ids: Iterable[UUID],
    *,
    priority: int | None = None,
    queue: str | None = None,
    actor: str = "",
    using: str,
    now: datetime | None = None,
) -> dict[UUID, ChangeResult]:
    """Give READY and WAITING jobs another priority, another queue, or both; else as ``reschedule``.

    The queue of a job with a key stays, for the key names work of that queue: such a job is left as it is.
    """
    values = {name: value for name, value in (("priority", priority), ("queue", queue)) if value is not None}
    if not values:
        raise ValueError("change() takes a priority, a queue, or both.")
    with writing(using):
        ids = list(job_ids)
        keyed = set() if queue is None else _keyed(ids, queue, using)
        states = _adjust([job_id for job_id in ids if job_id not in keyed], values, using)
        results = {job_id: _result(ChangeResult, "CHANGED", states[job_id]) for job_id in states}
        results |= dict.fromkeys(keyed, ChangeResult.KEYED)
        told = "changed" if priority is None else f"changed to priority {priority}"
        _record("change", results, told, queue=queue or "", actor=actor, using=using, now=now)
    return results


def _adjust(job_ids: Iterable[UUID], values: dict[str, Any], using: str) -> dict[UUID, int]:
    """Write these values where a job waits to run; return the state in which each job was found."""
    states = locked_states(job_ids, using)
    Job.objects.using(using).filter(pk__in=states, state__in=PENDING).update(**values)
    passing("adjust: rows written")
    if any(state in PENDING for state in states.values()):
        notify.wake({notify.ANYWHERE}, using=using)
    return states


def _keyed(job_ids: list[UUID], queue: str, using: str) -> set[UUID]:
    """Return those of the jobs that have a key and are of another queue."""
    jobs = Job.objects.using(using).filter(pk__in=job_ids, key__isnull=False).exclude(queue=queue)
    return set(jobs.values_list("pk", flat=True))


def _result[Result: Enum](kind: type[Result], done: str, state: int) -> Result:
    if state in PENDING:
        return kind[done]
    return kind["RUNNING" if state == JobState.RUNNING else "ALREADY_FINISHED"]


def _record(
    verb: str,
    results: dict[UUID, Any],
    told: str,
    *,
    queue: str = "",
    actor: str,
    using: str,
    now: datetime | None,
) -> None:
    done = {
        job_id: told
        for job_id, result in results.items()
        if result in (RescheduleResult.RESCHEDULED, ChangeResult.CHANGED)
    }
    record(verb, done, queue=queue, actor=actor, at=clock.instant(using, now), using=using)
