"""Cancel and requeue everything that a filter matches, a slice at a time.

The way goes from the newest job to the oldest by id, so that what is enqueued meanwhile is left alone, and
a job that comes back is met once. Each step looks at a bounded number of rows and changes at most ``SLICE``
jobs in one transaction, which checks the filter again under the rows' locks. Whoever is interrupted goes on
from the id that the latest step returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Q

from django_backwave.core.states import REQUEUEABLE, TERMINAL, JobState
from django_backwave.models import Job
from django_backwave.store import operate
from django_backwave.store.locking import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from enum import Enum
    from uuid import UUID

    from django.db.models import QuerySet

#: How many jobs one step changes, and how many rows it looks at, at most.
SLICE, WINDOW = 1000, 20_000

#: How far a count goes: so many jobs, in so many windows.
MOST_COUNTED, MOST_WINDOWS = 10_000, 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did to each job that it met, and where the next one goes on; None: nowhere."""

    results: Mapping[UUID, Enum]
    before: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many jobs match; ``exact`` is false if there may be more, for counting ended at its bound."""

    number: int
    exact: bool


def cancel_step(matching: Q, *, before: UUID | None = None, actor: str = "", using: str) -> Step:
    """Cancel a slice of the jobs that match and have not finished, beginning below an id."""
    return _step(operate.cancel, matching & CANCELLABLE, before, actor=actor, using=using)


def requeue_step(
    matching: Q,
    *,
    before: UUID | None = None,
    reset_failures: bool = True,
    actor: str = "",
    using: str,
) -> Step:
    """Requeue a slice of the jobs that match and may be requeued, beginning below an id."""

    def requeue(job_ids: list[UUID], **options: object) -> Mapping[UUID, Enum]:
        return operate.requeue(job_ids, reset_failures=reset_failures, **options)  # type: ignore[arg-type]

    return _step(requeue, matching & REQUEUEABLES, before, actor=actor, using=using)


CANCELLABLE = Q(state__in=[state.value for state in JobState if state not in TERMINAL])
REQUEUEABLES = Q(state__in=sorted(state.value for state in REQUEUEABLE))


def count(matching: Q, *, using: str) -> Count:
    """Count the jobs that match, from the newest on, as far as the bounds let it."""
    number = 0
    for windows, (window, end) in enumerate(_windows(None, using), start=1):
        room = MOST_COUNTED + 1 - number
        number += window.filter(matching)[:room].count()
        if number > MOST_COUNTED:
            return Count(number=MOST_COUNTED, exact=False)
        if windows == MOST_WINDOWS and end is not None:
            return Count(number=number, exact=False)
    return Count(number=number, exact=True)


def _step(
    operation: Callable[..., Mapping[UUID, Enum]], matching: Q, before: UUID | None, *, actor: str, using: str
) -> Step:
    window, end = next(_windows(before, using))
    with writing(using):
        ids = list(window.filter(matching).order_by("-pk").values_list("pk", flat=True)[:SLICE])
        results = operation(ids, matching=matching, actor=actor, using=using) if ids else {}
    return Step(results=results, before=ids[-1] if len(ids) == SLICE else end)


def _windows(before: UUID | None, using: str) -> Iterator[tuple[QuerySet[Job], UUID | None]]:
    """Yield the jobs below an id in windows, each with its lowest id if there may be more below."""
    while True:
        jobs = Job.objects.using(using)
        rest = jobs.all() if before is None else jobs.filter(pk__lt=before)
        ends = rest.order_by("-pk").values_list("pk", flat=True)[WINDOW - 1 : WINDOW]
        end = next(iter(ends), None)
        yield (rest if end is None else rest.filter(pk__gte=end)), end
        if end is None:
            return
        before = end
