"""Invariants of single jobs: state, lease, and a history that adds up (G3, G4, G5, G6, G8).

A rule stands here only if no sequence of the store's own doors can break it, whatever operators do. So
``failures`` has no lower bound by the history: a requeue sets it to 0 and need not leave a trace.

No snapshot is held over the statements, for that would slow the claims down. A job's history is written
together with a change of its row, so what a first look finds is believed only if the row has not moved on
when the history has been read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db.models import Count, F, Max, Min, Q

from django_backwave.core.states import FAILURES, PENDING, TERMINAL, AttemptOutcome, JobState
from django_backwave.models import Attempt, Job, Lease
from django_backwave.models.fields import by_instant
from django_backwave.store import clock, monitor, unreadable
from django_backwave.store.doctor.results import Limits, Result, Severity, counted, listed
from django_backwave.store.retention import KEPT_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django.db.models import QuerySet

#: Jobs whose history is read by one statement.
SLICE = 500

#: Pairs of queue and priority of which ready jobs are looked at.
MOST_LANES = 100


class Row(NamedTuple):
    """What the rules read of a job."""

    pk: UUID
    name: str
    queue: str
    priority: int
    state: int
    attempt: int
    failures: int
    worker: str
    lease_expires_at: datetime | None
    due_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None

    @property
    def moved_by(self) -> tuple[int, int, int]:
        """What changes whenever the job's history does."""
        return self.state, self.attempt, self.failures


@dataclass(frozen=True, slots=True)
class History:
    """What the rules read of a job's attempts. ``last``: the outcome recorded for its present number."""

    rows: int = 0
    lowest: int = 0
    highest: int = 0
    failed: int = 0
    succeeded: int = 0
    last: str | None = None

    @property
    def most_failures(self) -> int:
        """How many failures there can have been: of attempts that are kept no longer, all."""
        dropped = self.lowest - 1 if self.rows >= KEPT_ATTEMPTS else 0
        return self.failed + dropped


def ready_rows(limits: Limits, *, using: str) -> list[Row]:
    """Return the first ready jobs of each queue and priority, in the order in which they come due."""
    lanes = monitor.ready_lanes(limit=MOST_LANES, using=using)
    share = max(1, limits.rows // max(1, len(lanes)))
    ready = Job.objects.using(using).filter(state=JobState.READY.value)
    found: list[Row] = []
    for queue, priority in lanes:
        found += _read(
            ready.filter(queue=queue, priority=priority).order_by(by_instant("due_at"), "pk")[:share]
        )
    return found


def running_rows(limits: Limits, *, using: str) -> list[Row]:
    """Return the running jobs whose leases end first."""
    return _read(Lease.objects.using(using).order_by(by_instant("lease_expires_at"))[: limits.rows])


def finished_rows(state: JobState, limits: Limits, *, using: str) -> list[Row]:
    """Return the jobs of a terminal state that ended last, after those of which nobody knows when."""
    jobs = Job.objects.using(using).filter(state=state.value)
    # In order, for that needs the index: there are ready jobs without such a time, which mislead the planner.
    undated = _read(jobs.filter(finished_at=None).order_by(by_instant("finished_at"))[: limits.rows])
    dated = jobs.filter(finished_at__isnull=False).order_by(by_instant("finished_at", descending=True))
    return undated + _read(dated[: limits.rows - len(undated)])


def _read(jobs: QuerySet[Job] | QuerySet[Lease]) -> list[Row]:
    rows = jobs.values_list(*Row._fields)
    return [Row._make(values) for values in rows if all(map(isinstance, values, _KINDS))]


#: What a row's values are, unless somebody has written by hand what they cannot be.
_KINDS: tuple[Any, ...] = (
    *(UUID, str, str, int, int, int, int, str),
    *(datetime | None, datetime, datetime | None, datetime | None),
)


def check_readable(limits: Limits, *, using: str) -> Iterator[Result]:
    """Tell of jobs that have not ended, and that no worker can read."""
    found = unreadable.find_open(limits.rows + 1, using=using)
    if found:
        number = counted(min(len(found), limits.rows), "job", more=len(found) > limits.rows)
        columns = sorted({field.name for row in found for field in row.fields})
        yield Result(
            check="unreadable-rows",
            severity=Severity.ERROR,
            text=f"{number} with values that cannot be read, in {', '.join(columns)}.",
            remedy="Somebody has written them by hand. A worker that comes across one quarantines it, and its"
            " cause says what stood there; correct the others where they were written.",
        )


# Leases.


def check_lapsed(limits: Limits, *, using: str, now: datetime | None) -> Iterator[Result]:
    """Tell of leases that were over long ago and that no worker has swept."""
    at = clock.read(using, now)
    over = (
        Lease.objects.using(using)
        .expired(clock.after(at, -limits.unswept))
        .order_by(by_instant("lease_expires_at"))
    )
    rows = _read(over[: limits.rows + 1])
    if rows:
        number = counted(min(len(rows), limits.rows), "lease", more=len(rows) > limits.rows)
        yield Result(
            check="lapsed-leases",
            severity=Severity.WARNING,
            text=f"{number} over for more than {limits.unswept:g} s, and not swept: {_ids(rows)}.",
            remedy="Start a worker: any worker sweeps the leases of all queues.",
        )


# Rows by themselves.

_RULES: tuple[tuple[str, str, str, Callable[[Row], bool]], ...] = (
    (
        "running-without-lease",
        "running without a lease, a worker or an attempt",
        "No sweep or fence reaches such a row. Find out who wrote it by hand, and set its state back to 1.",
        lambda row: (
            row.state == JobState.RUNNING
            and (row.lease_expires_at is None or not row.worker or not row.attempt)
        ),
    ),
    (
        "lease-without-running",
        "with a lease or a worker although not running",
        "Find out who wrote it by hand; set worker to '' and lease_expires_at to NULL.",
        lambda row: row.state != JobState.RUNNING and (row.lease_expires_at is not None or bool(row.worker)),
    ),
    (
        "finish-times",
        "finished without the time of it, or with one although not finished",
        "Retention never finds what has no time. Set finished_at, or take it away.",
        lambda row: (row.state in TERMINAL) != (row.finished_at is not None),
    ),
    (
        "forgotten-cancels",
        "waiting to run although their cancel was requested",
        "Cancel them again: a job whose cancel was requested never runs again by itself.",
        lambda row: row.state in PENDING and row.cancel_requested_at is not None,
    ),
)

#: The ids of these checks.
ROW_CHECKS = tuple(check for check, *_ in _RULES)


def check_rows(rows: list[Row]) -> Iterator[Result]:
    """Hold each row against the rules that need nothing else."""
    for check, what, remedy, broken in _RULES:
        yield from _told(check, what, remedy, [row for row in rows if broken(row)])


# Rows and their history.

_HISTORY_RULES: tuple[tuple[str, str, str, Callable[[Row, History], bool]], ...] = (
    (
        "failures",
        "with more failures than their history can have had",
        "Something but the store has changed failures, or deleted attempts. Requeue the job to begin at 0.",
        lambda row, history: row.failures > history.most_failures,
    ),
    (
        "attempt-numbers",
        "with an attempt recorded that has not begun",
        "The number is the fence's epoch and never falls. Find out who lowered it; set attempt to the"
        " highest number of the job's attempts.",
        lambda row, history: history.highest > row.attempt,
    ),
    (
        "outcomes",
        "whose state and recorded outcome contradict each other",
        "State and outcome commit together. Find out what else writes these tables.",
        lambda row, history: _contradicts(JobState(row.state), history),
    ),
)

#: The ids of these checks.
HISTORY_CHECKS = tuple(check for check, *_ in _HISTORY_RULES)

_FAILURES = {outcome.value for outcome in FAILURES}


def _contradicts(state: JobState, history: History) -> bool:
    if state is JobState.RUNNING:
        return history.last is not None or history.succeeded > 0
    if state is JobState.SUCCEEDED:
        return history.last != AttemptOutcome.SUCCEEDED or history.succeeded != 1
    if state is JobState.DEAD_LETTERED:
        return history.last not in _FAILURES or history.succeeded > 0
    return history.succeeded > 0


def check_history(rows: list[Row], *, using: str) -> Iterator[Result]:
    """Hold each row against its attempts."""
    broken: dict[str, list[Row]] = {check: [] for check, *_ in _HISTORY_RULES}
    for slice_ in batched(rows, SLICE):
        suspects = _suspects(slice_, using)
        still = _unmoved({row for found in suspects.values() for row in found}, using)
        for check, found in suspects.items():
            broken[check] += [row for row in found if row.pk in still]
    for check, what, remedy, _ in _HISTORY_RULES:
        yield from _told(check, what, remedy, broken[check])


def _suspects(rows: tuple[Row, ...], using: str) -> dict[str, list[Row]]:
    histories = _histories([row.pk for row in rows], using)
    known = [(row, histories.get(row.pk, History())) for row in rows]
    return {
        check: [row for row, history in known if broken(row, history)]
        for check, _, _, broken in _HISTORY_RULES
    }


def _histories(job_ids: list[UUID], using: str) -> dict[UUID, History]:
    attempts = Attempt.objects.using(using).filter(job_id__in=job_ids)
    failed = Q(outcome__in=_FAILURES)
    last = dict(attempts.filter(number=F("job__attempt")).values_list("job_id", "outcome"))
    groups = (
        attempts.order_by()
        .values("job_id")
        .annotate(
            rows=Count("pk"),
            lowest=Min("number"),
            highest=Max("number"),
            failed=Count("pk", filter=failed),
            succeeded=Count("pk", filter=Q(outcome=AttemptOutcome.SUCCEEDED.value)),
        )
    )
    return {
        group["job_id"]: History(
            rows=group["rows"],
            lowest=group["lowest"],
            highest=group["highest"],
            failed=group["failed"],
            succeeded=group["succeeded"],
            last=last.get(group["job_id"]),
        )
        for group in groups
    }


def _unmoved(suspects: set[Row], using: str) -> set[UUID]:
    jobs = Job.objects.using(using).filter(pk__in=[row.pk for row in suspects])
    now = {row.pk: row for row in _read(jobs)} if suspects else {}
    return {row.pk for row in suspects if row.pk in now and now[row.pk].moved_by == row.moved_by}


def _told(check: str, what: str, remedy: str, rows: list[Row]) -> Iterator[Result]:
    if rows:
        yield Result(
            check=check,
            severity=Severity.ERROR,
            text=f"{counted(len(rows), 'job')} {what}: {_ids(rows)}.",
            remedy=remedy,
        )


def _ids(rows: Iterable[Row]) -> str:
    return listed([str(row.pk) for row in rows])
