"""Jobs that have not started in time: CANCELLED without running, by claims and by the sweep."""

from __future__ import annotations

from datetime import timedelta
from itertools import chain

import pytest
from django.db import transaction

from django_backwave.core.protocol import CancelResult, RequeueResult, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import claim as claiming
from django_backwave.store.claim import Order, Taken, take
from django_backwave.store.enqueue import insert_many, insert_one
from django_backwave.store.expire import expire_waiting
from django_backwave.store.operate import cancel, requeue
from tests.factories import (
    FAILED,
    NOW,
    STRANGER,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    new_job,
    ready,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import behind, locked, needs_row_locks, race

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


def claim(queue="default", limit=100, *, worker=WORKER, using="default", now=NOW):
    return take(Order(queue, limit, limit, 60), worker=worker, using=using, now=now)


def sweep(limit=100, *, using="default", now=NOW):
    return expire_waiting(limit=limit, using=using, now=now)


def ids(rows):
    return {each.job_id for each in rows}


def assert_expired(job, **columns):
    """Assert that a job was cancelled for being late, and that nothing of an attempt was written."""
    ended = row(job)
    expected = {
        "state": JobState.CANCELLED,
        "cause": "expired",
        "worker": "",
        "lease_expires_at": None,
        "cancel_requested_at": None,
        **columns,
    }
    assert {name: getattr(ended, name) for name in expected} == expected
    assert ended.finished_at is not None


# Enqueue.


def test_an_instant_is_stored_as_it_is():
    job = new_job(expires=after(90))
    insert_one(job, using="default", now=NOW)

    assert row(job).expires_at == after(90)


@pytest.mark.parametrize("insert", [insert_one, lambda job, **options: insert_many([job], **options)])
def test_seconds_count_from_the_enqueue_by_the_databases_clock(insert):
    """G10."""
    virtual, real = new_job(expires=90.0), new_job(expires=90.0)
    insert(virtual, using="default", now=NOW)
    insert(real, using="default")

    assert (row(virtual).enqueued_at, row(virtual).expires_at) == (NOW, after(90))
    assert row(real).expires_at - row(real).enqueued_at == timedelta(seconds=90)


def test_without_it_nothing_expires():
    job = ready()

    assert row(job).expires_at is None
    assert sweep(now=after(10**8)) == []
    assert ids(claim(now=after(10**8)).jobs) == {job.pk}


# Claims.


def test_a_claim_takes_an_expired_job_as_cancelled():
    """It never runs: no attempt, no lease, no history."""
    job = ready(expires_at=NOW, attempt=4, failures=2, started_at=after(-50), progress=[7])

    taken = claim()

    assert taken.jobs == []
    assert [(late.job_id, late.name) for late in taken.late] == [(job.pk, job.name)]
    assert_expired(job, attempt=4, failures=2, finished_at=NOW, started_at=after(-50), due_at=NOW)
    assert attempts(job) == []


def test_a_job_expires_at_its_very_instant():
    job = ready(expires_at=after(0.000001))

    assert ids(claim().jobs) == {job.pk}
    assert row(job).expires_at == after(0.000001)


def test_the_real_clock_decides():
    """G10."""
    late, early = new_job(expires=-5.0), new_job(expires=60.0)
    insert_one(late, using="default"), insert_one(early, using="default")

    taken = claim(now=None)

    assert (ids(taken.jobs), ids(taken.late)) == ({early.id}, {late.id})
    assert_expired(late)
    assert row(late).finished_at >= row(late).expires_at


def test_expired_jobs_count_as_taken():
    """A claim goes in the queue's order, and does not step over them: the worker knows there may be more."""
    jobs = [ready(priority=9 - number, expires_at=after(-1) if number % 2 else None) for number in range(6)]

    taken = claim(limit=4)

    assert [job.job_id for job in taken.jobs] == [jobs[0].pk, jobs[2].pk]
    assert ids(taken.late) == {jobs[1].pk, jobs[3].pk}
    assert [row(job).job_state for job in jobs[4:]] == [JobState.READY] * 2


def test_a_job_that_is_not_due_yet_is_left_to_the_sweep():
    job = ready(run_after=after(60), expires_at=after(-1))

    assert claim() == Taken([], [])
    assert ids(sweep()) == {job.pk}


def test_what_has_started_expires_no_more():
    job = claimed(expires=90.0)

    assert sweep(now=after(91)) == []
    assert send(report(job), now=after(30)) == [Verdict.APPLIED]
    assert row(job).job_state is JobState.SUCCEEDED


@pytest.mark.parametrize("late", [claim, sweep], ids=["claim", "sweep"])
def test_a_retry_expires_too(late):
    """Its failed attempt stays in the history, and it has no other."""
    job = claimed(queue="default", expires=20.0, max_attempts=9)
    send(report(job, FAILED), now=after(10))
    assert row(job).due_at == after(18)

    late(now=after(20))

    assert_expired(job, attempt=1, failures=1)
    assert [attempt.outcome for attempt in attempts(job)] == ["failed"]


def test_a_retry_in_time_runs():
    job = claimed(queue="default", expires=20.0)
    send(report(job, FAILED), now=after(10))

    assert reclaimed(job, now=after(19)).attempt == 2


def test_a_rival_that_was_quicker_is_left_alone(monkeypatch):
    """G3: where rows cannot be locked, a job that somebody took after it was picked stays as it is."""
    jobs = [ready(expires_at=after(-1)) for _ in range(3)]
    look = claiming.cancel_late

    def slow_look(job_ids, **options):
        Job.objects.filter(pk=jobs[1].pk).update(state=JobState.CANCELLED, finished_at=after(-1), cause="x")
        return look(job_ids, **options)

    monkeypatch.setattr(claiming, "cancel_late", slow_look)
    monkeypatch.setattr(claiming, "is_postgres", lambda using: False)

    assert ids(claim().late) == {jobs[0].pk, jobs[2].pk}
    assert row(jobs[1]).cause == "x"


# The sweep.


@pytest.mark.parametrize("state", [JobState.READY, JobState.WAITING])
def test_the_sweep_cancels_what_waits(state):
    job, early = ready(state=state, expires_at=NOW), ready(state=state, expires_at=after(1))

    assert ids(sweep()) == {job.pk}

    assert_expired(job, attempt=0, finished_at=NOW)
    assert row(early).job_state is state


@pytest.mark.parametrize(
    "state", sorted(set(JobState) - {JobState.READY, JobState.WAITING, JobState.RUNNING})
)
def test_the_sweep_changes_no_finished_job(state):
    ready(state=state, expires_at=after(-1), finished_at=after(-9))
    before = contents()

    assert sweep() == []
    assert claim() == Taken([], [])
    assert contents() == before


def test_the_sweep_is_bounded():
    """G12: over both states together, those that expired first before the others."""
    jobs = [ready(expires_at=after(-number)) for number in range(3)]
    waiting = ready(state=JobState.WAITING, expires_at=after(-9))

    assert ids(sweep(limit=2)) == {jobs[1].pk, jobs[2].pk}
    assert ids(sweep(limit=2)) == {jobs[0].pk, waiting.pk}
    assert sweep(limit=2) == []


def test_an_idle_sweep_only_reads(django_assert_num_queries):
    """On SQLite it takes no write lock for nothing."""
    ready(expires_at=after(1))

    with django_assert_num_queries(2) as sent:
        sweep()

    assert all(query["sql"].startswith("SELECT") for query in sent.captured_queries)


# Cancel and requeue.


def test_an_operators_cancel_keeps_its_cause():
    job = ready(expires_at=after(5))
    cancel([job.pk], using="default", now=NOW)

    assert sweep(now=after(6)) == []
    assert row(job).cause == "cancel requested"


def test_an_expired_job_is_finished_for_a_cancel():
    job = ready(expires_at=NOW)
    claim()

    assert cancel([job.pk], using="default")[job.pk] is CancelResult.ALREADY_FINISHED


def test_a_requeued_job_expires_no_more():
    """G8."""
    job = ready(expires_at=NOW)
    claim()

    assert requeue([job.pk], using="default", now=after(9))[job.pk] is RequeueResult.REQUEUED
    assert (row(job).expires_at, row(job).cause, row(job).finished_at) == (None, "", None)
    assert ids(claim(now=after(9)).jobs) == {job.pk}


# Races.


@committing
def test_a_locked_row_is_passed_over_and_comes_later():
    job = ready(expires_at=NOW)

    with locked(job):
        assert claim() == Taken([], [])
        assert sweep() == []

    assert ids(claim().late) == {job.pk}


@committing
@pytest.mark.parametrize("first", [claim, sweep], ids=["claim", "sweep"])
def test_two_open_transactions_share_the_late_ones(first):
    needs_row_locks()
    jobs = [ready(expires_at=after(-1)) for _ in range(4)]
    with second_connection() as other, transaction.atomic(using=other):
        taken = first(limit=2, using=other)
        one = ids(taken.late if first is claim else taken)

        two = ids(sweep()) | ids(claim().late)

    assert len(one) == len(two) == 2
    assert one | two == {job.pk for job in jobs}


@committing
@pytest.mark.parametrize("first", [claim, sweep], ids=["claim", "sweep"])
def test_a_cancel_behind_an_open_expiry_finds_it_finished(first):
    """G8."""
    job = ready(expires_at=NOW)

    told = behind(lambda other: first(using=other), lambda: cancel([job.pk], using="default"))

    assert told == {job.pk: CancelResult.ALREADY_FINISHED}
    assert_expired(job)


@committing
@pytest.mark.slow
def test_claims_and_sweeps_race():
    """Each late job is cancelled by exactly one of them; each other one is claimed by exactly one."""
    jobs = [ready(expires_at=after(-1) if number % 2 else after(99)) for number in range(120)]

    def work(worker):
        return lambda _: claim(limit=7, worker=worker)

    shares = race(20, work(WORKER), work(STRANGER), lambda _: Taken([], sweep(limit=5)))

    all_taken = [*chain.from_iterable(shares), claim()]
    got = [job.job_id for taken in all_taken for job in taken.jobs]
    late = [job.job_id for taken in all_taken for job in taken.late]
    assert sorted(got) == sorted(job.pk for job in jobs[::2])
    assert sorted(late) == sorted(job.pk for job in jobs[1::2])
    assert {row(job).attempt for job in jobs[1::2]} == {0}
    assert {row(job).attempt for job in jobs[::2]} == {1}
