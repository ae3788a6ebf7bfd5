"""What operators do, as functions: the same doors as the admin's.

Each takes ``actor``, who asks, for the record in Action (without one only pauses are recorded), and
``using``, the database, by default the one in which jobs are written. Each joins the caller's transaction;
without one, the two that go by a filter use a transaction for each slice of 1,000 jobs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from django_backwave.backend import jobs_database
from django_backwave.core.protocol import (
    CancelResult,
    ChangeResult,
    PauseResult,
    RequeueResult,
    RescheduleResult,
    ResumeResult,
    RunAgain,
    RunAgainResult,
)
from django_backwave.core.states import JobState
from django_backwave.instants import to_utc
from django_backwave.payload import check_name, check_queue, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from enum import Enum

    from django_backwave.models import Pause
    from django_backwave.store.matching import Step

__all__ = [
    "CancelResult",
    "ChangeResult",
    "Matched",
    "PauseResult",
    "RequeueResult",
    "RescheduleResult",
    "ResumeResult",
    "RunAgain",
    "RunAgainResult",
    "cancel",
    "cancel_matching",
    "change",
    "pause",
    "requeue",
    "requeue_matching",
    "reschedule",
    "resume",
    "run_again",
    "run_now",
]

#: The priorities that ``django.tasks`` allows.
LOWEST, HIGHEST = -100, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """What was done to the jobs that a filter matched: how many of each result.

    ``before`` is where to go on if only some slices were asked for; None: that was all.
    """

    counts: Mapping[Enum, int]
    before: UUID | None


def cancel(
    job_ids: Iterable[UUID | str], *, actor: str = "", using: str | None = None
) -> dict[UUID, CancelResult]:
    """Cancel jobs (G8), and return what that did to each one that exists."""
    from django_backwave.store import operate

    return operate.cancel(_ids(job_ids), actor=actor, using=using or jobs_database())


def requeue(
    job_ids: Iterable[UUID | str],
    *,
    reset_failures: bool = True,
    actor: str = "",
    using: str | None = None,
) -> dict[UUID, RequeueResult]:
    """Send dead-lettered, quarantined and cancelled jobs back, due now; return what that did to each."""
    from django_backwave.store import operate

    options: dict[str, Any] = {"reset_failures": reset_failures, "actor": actor}
    return operate.requeue(_ids(job_ids), using=using or jobs_database(), **options)


def run_again(
    job_ids: Iterable[UUID | str], *, actor: str = "", using: str | None = None
) -> dict[UUID, RunAgain]:
    """Enqueue the work of jobs with keys as new generations, due now; return what that did for each.

    Each key must be settled: none of its generations may be unfinished. The rows are copied, so that this
    needs no handler's code.
    """
    from django_backwave.store import again

    return again.run_again(_ids(job_ids), names=_names_of, actor=actor, using=using or jobs_database())


def reschedule(
    job_ids: Iterable[UUID | str], due_at: datetime, *, actor: str = "", using: str | None = None
) -> dict[UUID, RescheduleResult]:
    """Let jobs that wait to run come due at another time; return what that did to each one that exists."""
    from django_backwave.store import adjust

    return adjust.reschedule(_ids(job_ids), _instant(due_at), actor=actor, using=using or jobs_database())


def run_now(
    job_ids: Iterable[UUID | str], *, actor: str = "", using: str | None = None
) -> dict[UUID, RescheduleResult]:
    """Let jobs that wait to run be due now; return what that did to each one that exists."""
    from django_backwave.store import adjust

    return adjust.run_now(_ids(job_ids), actor=actor, using=using or jobs_database())


def change(
    job_ids: Iterable[UUID | str],
    *,
    priority: int | None = None,
    queue: str | None = None,
    actor: str = "",
    using: str | None = None,
) -> dict[UUID, ChangeResult]:
    """Give jobs that wait to run another priority, queue, or both; return what that did to each."""
    from django_backwave.store import adjust

    if priority is not None and not _is_priority(priority):
        raise ValueError(f"priority must be an integer from {LOWEST} to {HIGHEST}, got {shown(priority)}.")
    if queue is not None:
        check_queue(queue, "change()")
    options: dict[str, Any] = {"priority": priority, "queue": queue, "actor": actor}
    return adjust.change(_ids(job_ids), using=using or jobs_database(), **options)


def pause(
    *, queue: str | None = None, name: str | None = None, actor: str = "", using: str | None = None
) -> PauseResult:
    """Let workers claim nothing of a queue or of a job name, within 5 seconds. What runs goes on."""
    from django_backwave.store import pause as store

    return store.pause(*_target(queue, name), actor=actor, using=using or jobs_database())


def resume(
    *, queue: str | None = None, name: str | None = None, actor: str = "", using: str | None = None
) -> ResumeResult:
    """Let workers claim of a queue or of a job name again."""
    from django_backwave.store import pause as store

    return store.resume(*_target(queue, name), actor=actor, using=using or jobs_database())


def cancel_matching(
    *,
    queue: str | None = None,
    name: str | None = None,
    state: JobState | None = None,
    enqueued_before: datetime | None = None,
    actor: str = "",
    using: str | None = None,
    before: UUID | None = None,
    slices: int | None = None,
) -> Matched:
    """Cancel every job that matches all that is given, from the newest to the oldest.

    ``slices`` ends it after so many steps; hand the answer's ``before`` in to go on. Whatever is interrupted
    may also be begun anew, for what is done already does not match any more.
    """
    from django_backwave.store import matching

    where = _matching(queue, name, state, enqueued_before)
    using = using or jobs_database()
    return _all(
        lambda place: matching.cancel_step(where, before=place, actor=actor, using=using), before, slices
    )


def requeue_matching(
    *,
    queue: str | None = None,
    name: str | None = None,
    state: JobState | None = None,
    enqueued_before: datetime | None = None,
    reset_failures: bool = True,
    actor: str = "",
    using: str | None = None,
    before: UUID | None = None,
    slices: int | None = None,
) -> Matched:
    """Requeue every job that matches all that is given; else as ``cancel_matching``."""
    from django_backwave.store import matching

    where = _matching(queue, name, state, enqueued_before)
    options: dict[str, Any] = {"reset_failures": reset_failures, "actor": actor}
    using = using or jobs_database()
    return _all(
        lambda place: matching.requeue_step(where, before=place, using=using, **options), before, slices
    )


def _all(step: Callable[[UUID | None], Step], before: UUID | None, slices: int | None) -> Matched:
    counts: Counter[Enum] = Counter()
    done = 0
    while slices is None or done < slices:
        made = step(before)
        counts += Counter(made.results.values())
        before = made.before
        done += 1
        if before is None:
            break
    return Matched(counts=counts, before=before)


def _matching(
    queue: str | None, name: str | None, state: JobState | None, enqueued_before: datetime | None
) -> Q:
    earlier = None if enqueued_before is None else _instant(enqueued_before)
    number = None if state is None else state.value
    queue = None if queue is None else check_queue(queue, "the condition")
    name = None if name is None else check_name(name, "the condition")
    values = {"queue": queue, "name": name, "state": number, "enqueued_at__lt": earlier}
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        raise ValueError("Give at least one condition: queue, name, state or enqueued_before.")
    return Q(**given)


def _target(queue: str | None, name: str | None) -> tuple[Pause.Kind, str]:
    from django_backwave.models import Pause

    if (queue is None) is (name is None):
        raise ValueError("Give a queue or a name, and not both.")
    if queue is not None:
        return Pause.Kind.QUEUE, check_queue(queue, "the pause")
    return Pause.Kind.NAME, check_name(name, "the pause")


def _names_of(name: str) -> frozenset[str]:
    """Return the job names of the task that has this one, as far as code tells."""
    from django_backwave.results import task_of

    task = task_of(name)
    return frozenset({name, task.job_name, *task.aliases})


def _ids(job_ids: Iterable[UUID | str]) -> list[UUID]:
    if isinstance(job_ids, UUID | str):
        raise TypeError(
            f"job_ids must be a list of ids, got the single {shown(job_ids)}. Put it into a list."
        )
    return [job_id if isinstance(job_id, UUID) else UUID(job_id) for job_id in job_ids]


def _instant(value: datetime) -> datetime:
    if settings.USE_TZ and timezone.is_naive(value):
        raise ValueError(f"The datetime must be aware, because USE_TZ is True; got {shown(value)}.")
    return to_utc(value)


def _is_priority(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and LOWEST <= value <= HIGHEST
