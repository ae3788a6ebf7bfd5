"""What operators do to jobs: cancel and requeue, each recorded with its effect.

``adjust`` has what they change of jobs that wait, ``pause`` queues and names, ``matching`` many jobs at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import Case, F, Q, SmallIntegerField, Value, When
from django.db.models.functions import Coalesce

from django_backwave.core.limits import ACTOR_LENGTH, LAST_ATTEMPT
from django_backwave.core.outcome import CANCEL_CAUSE
from django_backwave.core.protocol import CancelResult, RequeueResult
from django_backwave.core.states import PENDING, REQUEUEABLE, UNFINISHED, JobState
from django_backwave.models import Action, Job
from django_backwave.models.fields import ExactTextField
from django_backwave.store import clock, keys, notify
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import waiting, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from uuid import UUID

_REQUEUEABLE = tuple(state.value for state in REQUEUEABLE)


def cancel(
    job_ids: Iterable[UUID],
    *,
    matching: Q | None = None,
    actor: str = "",
    using: str,
    now: datetime | None = None,
) -> dict[UUID, CancelResult]:
    """Cancel jobs (G8), and return what that did to each one that exists.

    READY and WAITING jobs are CANCELLED at once. A RUNNING job's row is flagged: its handler learns of it
    at its next heartbeat, and unless it succeeds first the job ends CANCELLED. Finished jobs stay as they
    are, and so do those that are not ``matching`` any more. Joins the caller's transaction. What was done is
    recorded under ``actor``, if that is given.
    """
    with writing(using):
        states = locked_states(job_ids, using, matching)
        pending = Q(state__in=PENDING)
        at = clock.instant(using, now)
        # One UPDATE that decides for each row: two would miss a job that moves between them.
        Job.objects.using(using).filter(pk__in=states, state__in=UNFINISHED).update(
            cancel_requested_at=Coalesce("cancel_requested_at", at),
            finished_at=Case(When(pending, then=at), default=F("finished_at")),
            cause=Case(
                When(pending, then=Value(CANCEL_CAUSE)),
                default=F("cause"),
                output_field=ExactTextField(),
            ),
            **notify.telling(using, where=pending),
            # Last: MySQL evaluates assignments from left to right.
            state=Case(
                When(pending, then=Value(JobState.CANCELLED.value)),
                default=F("state"),
                output_field=SmallIntegerField(),
            ),
        )
        passing("cancel: rows written")
        results = {job_id: _cancel_result(state) for job_id, state in states.items()}
        done = {job_id: results[job_id].value for job_id in states if states[job_id] in UNFINISHED}
        record("cancel", done, actor=actor, at=at, using=using)
    return results


def _cancel_result(state: int) -> CancelResult:
    if state in PENDING:
        return CancelResult.CANCELLED
    if state == JobState.RUNNING:
        return CancelResult.ASKED_TO_STOP
    return CancelResult.ALREADY_FINISHED


def requeue(
    job_ids: Iterable[UUID],
    *,
    reset_failures: bool = True,
    matching: Q | None = None,
    actor: str = "",
    using: str,
    now: datetime | None = None,
) -> dict[UUID, RequeueResult]:
    """Send dead-lettered, quarantined and cancelled jobs back, due now; return what that did to each.

    A job with a key stays as it is while another generation of that key is unfinished.
    ``failures`` becomes 0 unless ``reset_failures`` is false; ``attempt`` stays as it is, for it is the
    fence's epoch and never falls. What is not ``matching`` any more stays as it is. Joins the caller's
    transaction. What was done is recorded under ``actor``, if that is given.
    """
    with writing(using):
        ids = list(job_ids)
        busy = keys.hold(ids, among=_REQUEUEABLE, using=using, now=now)
        states = locked_states(ids, using, matching)
        # The row that keeps an enqueue from being applied too late is no job, and no claim would take it.
        spent = Job.objects.using(using).filter(pk__in=states, attempt=LAST_ATTEMPT)
        never = set(spent.values_list("pk", flat=True))
        at = clock.instant(using, now)
        going = states.keys() - busy - never
        Job.objects.using(using).filter(pk__in=going, state__in=_REQUEUEABLE).update(
            **({"failures": 0} if reset_failures else {}),
            cancel_requested_at=None,
            unroutable_since=None,
            expires_at=None,
            started_at=None,
            finished_at=None,
            cause="",
            output=None,
            due_at=at,
            state=JobState.READY.value,
        )
        passing("requeue: rows written")
        results = {job_id: _requeue_result(state, job_id in busy) for job_id, state in states.items()}
        results |= dict.fromkeys(never, RequeueResult.NOT_REQUEUEABLE)
        done = {
            job_id: result.value for job_id, result in results.items() if result is RequeueResult.REQUEUED
        }
        record("requeue", done, actor=actor, at=at, using=using)
        if done:
            notify.wake({notify.ANYWHERE}, using=using)
    return results


def _requeue_result(state: int, busy: bool) -> RequeueResult:
    if state not in _REQUEUEABLE:
        return RequeueResult.NOT_REQUEUEABLE
    return RequeueResult.KEY_BUSY if busy else RequeueResult.REQUEUED


def record(verb: str, done: Mapping[UUID, str], *, queue: str = "", actor: str, at: Any, using: str) -> None:
    """Write one Action for each job that changed, with what came of it."""
    if actor:
        Action.objects.using(using).bulk_create(
            Action(at=at, actor=actor[:ACTOR_LENGTH], verb=verb, job_id=job_id, queue=queue, result=result)
            for job_id, result in done.items()
        )


def locked_states(job_ids: Iterable[UUID], using: str, matching: Q | None = None) -> dict[UUID, int]:
    """Lock the jobs that exist, and still match, in id order, and return the state of each."""
    jobs = Job.objects.using(using).filter(matching or Q(), pk__in=list(job_ids)).order_by("pk")
    return dict(waiting(jobs, using=using).values_list("pk", "state"))
