"""Settle: what an outcome writes, in one transaction, and no more than once (G5, G8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_backwave.core.outcome import (
    Cancelled,
    ErrorInfo,
    Failed,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Unroutable,
)
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.models import Attempt, Job
from django_backwave.store import clock
from django_backwave.store.locking import is_postgres
from django_backwave.store.operate import requeue
from django_backwave.store.retention import KEPT_ATTEMPTS
from tests.factories import (
    ERROR,
    FAILED,
    GRACE,
    LEASE,
    NOW,
    SUCCEEDED,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    outcomes,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import needs_row_locks

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

KEPT = None  # of the due time: it stays as it was
APPLIED, STALE, LOCKED = Verdict.APPLIED, Verdict.STALE, Verdict.LOCKED
CANCELLED = Verdict.CANCELLED


@dataclass(frozen=True, kw_only=True)
class Case:
    """An outcome, reported at NOW for a job with one failure of three, and what it writes."""

    outcome: Outcome
    state: JobState
    attempt: AttemptOutcome | None
    failures: int = 1
    due_in: float | None = KEPT
    cause: str = ""
    output: Any = None
    unroutable_for: float | None = None  # after the settle
    row: dict[str, Any] | None = None
    started_after: float | None = 1.0

    @property
    def job(self) -> dict[str, Any]:
        """The columns that the job had before."""
        return {"failures": 1} | (self.row or {})


S, A = JobState, AttemptOutcome
NO_ROUTE = Unroutable("no handler")
CASES = {
    "succeeded": Case(
        outcome=Succeeded('{"b":1,"a":[1e22]}'),
        state=S.SUCCEEDED,
        attempt=A.SUCCEEDED,
        output={"b": 1, "a": [1e22]},
    ),
    "failed": Case(
        outcome=FAILED,
        state=S.READY,
        attempt=A.FAILED,
        failures=2,
        due_in=16,
        cause="ValueError: no stock",
    ),
    "failed for the last time": Case(
        outcome=FAILED,
        row={"failures": 2},
        state=S.DEAD_LETTERED,
        attempt=A.FAILED,
        failures=3,
        cause="ValueError: no stock",
    ),
    "gave up": Case(
        outcome=Failed(ERROR, final=True),
        state=S.DEAD_LETTERED,
        attempt=A.FAILED,
        failures=2,
        cause="ValueError: no stock",
    ),
    "snoozed": Case(outcome=Snoozed(90), state=S.READY, attempt=A.SNOOZED, due_in=90),
    "released": Case(outcome=Released(), state=S.READY, attempt=A.RELEASED),
    "released before the start": Case(outcome=Released(), started_after=None, state=S.READY, attempt=None),
    "cancelled": Case(outcome=Cancelled(), state=S.CANCELLED, attempt=A.CANCELLED, cause="cancel requested"),
    "cancelled before the start": Case(
        outcome=Cancelled(),
        started_after=None,
        state=S.CANCELLED,
        attempt=None,
        cause="cancel requested",
    ),
    "unroutable": Case(
        outcome=NO_ROUTE,
        started_after=None,
        state=S.READY,
        attempt=A.UNROUTABLE,
        due_in=5,
        cause="no handler",
        unroutable_for=0,
    ),
    "unroutable again": Case(
        outcome=NO_ROUTE,
        started_after=None,
        row={"failures": 1, "unroutable_since": after(-30)},
        state=S.READY,
        attempt=None,
        due_in=30,
        cause="no handler",
        unroutable_for=30,
    ),
    "unroutable beyond the grace": Case(
        outcome=NO_ROUTE,
        started_after=None,
        row={"failures": 1, "unroutable_since": after(-GRACE)},
        state=S.QUARANTINED,
        attempt=None,
        cause="no handler",
        unroutable_for=GRACE,
    ),
    "snoozed after it was unroutable": Case(
        outcome=Snoozed(9),
        row={"failures": 1, "unroutable_since": after(-30)},
        state=S.READY,
        attempt=A.SNOOZED,
        due_in=9,
    ),
    "succeeded after it was unroutable": Case(
        outcome=SUCCEEDED,
        row={"failures": 1, "unroutable_since": after(-30)},
        state=S.SUCCEEDED,
        attempt=A.SUCCEEDED,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def settled(case, **columns):
    """Claim a job one second ago, report the case's outcome now, and return its row."""
    job = claimed(now=after(-1), **case.job | columns)
    job = job._replace(unroutable_for=None if job.unroutable_for is None else job.unroutable_for + 1)
    [verdict] = send(report(job, case.outcome, started_after=case.started_after))
    assert verdict is (CANCELLED if row(job).state == S.CANCELLED else APPLIED)
    return row(job)


@every_case
def test_what_an_outcome_writes(case):
    """G5, G6: an outcome writes the job's state, failures, due time, cause and output."""
    job = settled(case)

    due = after(-1) if case.due_in is KEPT else after(case.due_in)
    assert (job.state, job.failures, job.due_at) == (case.state, case.failures, due)
    assert (job.cause, job.output) == (case.cause, case.output)
    since = None if case.unroutable_for is None else after(-case.unroutable_for)
    assert job.unroutable_since == since
    assert job.finished_at == (NOW if case.state.is_terminal else None)
    assert (job.worker, job.lease_expires_at, job.attempt) == ("", None, 1)
    assert job.cancel_requested_at is None


@every_case
def test_what_an_outcome_writes_when_cancel_was_requested(case):
    """G8: once cancel is requested every outcome but success writes CANCELLED, due no more.

    What its history calls cancelled is no failure.
    """
    job = settled(case, cancel_requested_at=after(-9))

    succeeded = case.state is S.SUCCEEDED
    assert job.state == (S.SUCCEEDED if succeeded else S.CANCELLED)
    assert job.cause == ("" if succeeded else "cancel requested")
    assert (job.due_at, job.finished_at, job.failures) == (after(-1), NOW, case.job["failures"])
    assert (job.output, job.cancel_requested_at) == (case.output, after(-9))
    assert (job.worker, job.lease_expires_at) == ("", None)
    if case.attempt:
        assert outcomes(job) == [(1, "succeeded" if succeeded else "cancelled")]
    else:
        assert outcomes(job) == []


@every_case
def test_the_history_of_an_outcome(case):
    """G5: the attempt's row says who tried, from when to when, and how it ended."""
    job = settled(case)

    if case.attempt is None:
        assert attempts(job) == []
        return
    [attempt] = attempts(job)
    started = None if case.started_after is None else NOW
    assert (attempt.number, attempt.worker, attempt.outcome) == (1, WORKER, case.attempt)
    assert (attempt.started_at, attempt.finished_at, job.started_at) == (started, NOW, started)
    told = (attempt.error_class, attempt.message, attempt.traceback)
    failed = isinstance(case.outcome, Failed)
    assert told == ((ERROR.class_path, ERROR.message, ERROR.traceback) if failed else ("", "", ""))


def test_a_batch_costs_the_same_however_many(django_assert_max_num_queries):
    """G12: a batch is one statement, or elsewhere few beside a guarded UPDATE for each job."""
    jobs = [claimed() for _ in range(20)]
    statements = 3 if is_postgres("default") else 20 + 5  # among them the test's savepoint

    with django_assert_max_num_queries(statements):
        verdicts = send(*(report(job) for job in jobs))

    assert verdicts == [APPLIED] * 20
    assert Job.objects.filter(state=S.SUCCEEDED).count() == Attempt.objects.count() == 20


def test_alike_outcomes_of_a_batch_keep_their_own_starts():
    """G5: outcomes that are written together tell each handler's own start, and job and history agree."""
    jobs, starts = [claimed() for _ in range(3)], [1.0, None, 2.5]

    send(*(report(job, Released(), started_after=start) for job, start in zip(jobs, starts, strict=True)))

    instants = [None if start is None else after(start) for start in starts]
    assert [row(job).started_at for job in jobs] == instants
    histories = [[each.started_at for each in attempts(job)] for job in jobs]
    assert histories == [[after(1)], [], [after(2.5)]]


@committing
def test_history_that_fails_takes_the_outcome_along():
    """G5: if the attempt's row cannot be written, nothing of the job's row changes."""
    job = claimed()
    before = contents()

    with history_away(), pytest.raises(DatabaseError):
        send(report(job))

    assert contents() == before


@contextmanager
def history_away() -> Iterator[None]:
    """Give the history's table another name for a while."""
    quote = connection.ops.quote_name
    table, away = quote(Attempt._meta.db_table), quote("history_away")
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {away}")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {away} RENAME TO {table}")


@committing
def test_a_settle_that_rolls_back_wrote_nothing():
    """G5: outcome, history and everything else go with the transaction that they are part of."""
    job = claimed()
    before = contents()
    with transaction.atomic():
        send(report(job))
        transaction.set_rollback(True)
    assert contents() == before


NUL = "row 7: \0 in the text"
LONE = '"\ud800"'  # half of a character, which no database takes


def test_a_due_time_beyond_all_bounds_is_the_latest_there_is():
    """Only a row or an outcome made by hand says so; it must stop nobody."""
    job = claimed()

    assert send(report(job, Snoozed(1e300))) == [APPLIED]
    assert row(job).due_at == after(clock.LONGEST)


def fails(message):
    return Failed(ErrorInfo(class_path="shop.Error", message=message, traceback=message))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_outcome_that_the_database_refuses(position):
    """A row that the database refuses is a failed attempt with that cause; the others go through."""
    jobs = [claimed() for _ in range(3)]
    given = [Succeeded('"🎉"')] * 3
    given[position] = Succeeded(LONE)

    verdicts = send(*map(report, jobs, given))

    assert verdicts == [APPLIED] * 3
    refused = jobs.pop(position)
    assert [row(job).output for job in jobs] == ["🎉"] * 2
    [attempt] = attempts(refused)
    assert attempt.outcome == "failed"
    assert attempt.message.startswith("The database refused to store this attempt's outcome: ")
    job = row(refused)
    assert (job.state, job.failures, job.output, job.due_at) == (S.READY, 1, None, after(8))
    assert "The database refused" in job.cause


def test_a_refused_outcome_uses_up_failures():
    """G6: an outcome that is refused each time ends among the dead letters, not in a loop."""
    job = claimed(max_attempts=1)

    send(report(job, Succeeded(LONE)))
    assert row(job).state == S.DEAD_LETTERED


def test_exception_text_with_nul_and_emoji():
    """An exception's text is stored as it is or, where the database refuses it, said to be refused."""
    jobs = [claimed() for _ in range(3)]

    verdicts = send(*map(report, jobs, (fails("naïve 🎉"), fails(NUL), fails("fine"))))

    assert verdicts == [APPLIED] * 3
    emoji, nul, fine = (attempts(job)[0].message for job in jobs)
    assert (emoji, fine) == ("naïve 🎉", "fine")
    assert nul == NUL or nul.startswith("The database refused")
    assert [row(job).failures for job in jobs] == [1, 1, 1]


def test_a_stale_outcome_in_a_refused_batch():
    """G4: a batch that is settled one by one passes the same fence."""
    good, old, bad = claimed(), claimed(), claimed()

    verdicts = send(report(good), report(old._replace(attempt=9)), report(bad, Succeeded(LONE)))

    assert verdicts == [APPLIED, STALE, APPLIED]
    assert attempts(old) == []


def test_a_lost_reply_is_found_in_the_history():
    """G5: an outcome that was applied, its reply lost, is applied and not written twice."""
    job = claimed()
    send(report(job))
    before = contents()

    assert send(report(job, sent_before=True)) == [APPLIED]
    assert contents() == before


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_lost_reply_after_requeue_and_reclaim(cancelled):
    """G5: the history still tells what was applied when the job has long gone on."""
    job = claimed(max_attempts=1)
    if cancelled:
        Job.objects.update(cancel_requested_at=NOW)
    send(report(job, FAILED))
    requeue([job.job_id], using="default", now=NOW)
    new = reclaimed(job)

    assert send(report(job, FAILED, sent_before=True)) == [CANCELLED if cancelled else APPLIED]
    assert send(report(new)) == [APPLIED]
    assert outcomes(job) == [(1, "cancelled" if cancelled else "failed"), (2, "succeeded")]


def test_a_lost_report_that_was_never_applied():
    """G5: a write that did not arrive is simply written, and stale once its lease is over."""
    job, late = claimed(), claimed()

    assert send(report(job, sent_before=True)) == [APPLIED]
    assert send(report(late, sent_before=True), now=after(LEASE)) == [STALE]
    assert (len(attempts(job)), len(attempts(late))) == (1, 0)


def test_another_workers_attempt_is_not_mine():
    """G5: the history answers for the worker that asks, and for no other."""
    send(report(job := claimed()))

    assert send(report(job, sent_before=True), worker="host:9:z") == [STALE]


@committing
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("now", [NOW, after(LEASE)], ids=["live", "expired"])
def test_a_lost_reply_while_the_commit_is_under_way(commits, now):
    """G5: while the first write may still commit, nothing is known; then its end decides."""
    needs_row_locks()
    job = claimed()
    again = report(job, sent_before=True)
    with second_connection() as other, transaction.atomic(using=other):
        assert send(report(job), using=other) == [APPLIED]

        assert send(again, now=now) == [LOCKED]
        transaction.set_rollback(not commits, using=other)

    expected = APPLIED if commits or now == NOW else STALE
    assert send(again, now=now) == [expected]
    assert len(attempts(job)) == (expected is APPLIED)


def test_the_newest_attempts_are_kept():
    """A job keeps its newest hundred attempts, however often it ran."""
    job = claimed(attempt=KEPT_ATTEMPTS)
    Attempt.objects.bulk_create(
        Attempt(job_id=job.job_id, number=n, worker=WORKER, finished_at=NOW, outcome="snoozed")
        for n in range(1, KEPT_ATTEMPTS + 1)
    )

    send(report(job, Snoozed(1)))

    assert [each.number for each in attempts(job)] == [*range(2, KEPT_ATTEMPTS + 2)]


def test_a_leftover_row_with_the_attempts_number_stops_nobody():
    """G2: a history row made by hand costs its job a failure, not its neighbours their outcomes."""
    first, second = claimed(), claimed()
    Attempt.objects.create(
        job_id=first.job_id, number=first.attempt, worker="by hand", finished_at=NOW, outcome="failed"
    )

    assert send(report(first), report(second)) == [APPLIED, APPLIED]
    assert (row(first).failures, row(first).job_state) == (1, JobState.READY)
    assert row(second).job_state is JobState.SUCCEEDED
    assert [attempt.worker for attempt in attempts(first)] == ["by hand"]
