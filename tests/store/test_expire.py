"""Expire: each lapsed lease is disposed of exactly once, by whoever comes (G2, G6, G8)."""

from __future__ import annotations

from collections import Counter

import pytest
from django.db import transaction

from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from django_backwave.store import expire as expiring
from django_backwave.store.retention import KEPT_ATTEMPTS
from tests.factories import (
    FAILED,
    LEASE,
    NOW,
    STRANGER,
    WORKER,
    after,
    attempts,
    claimed,
    lapsed,
    outcomes,
    ready,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import locked, needs_row_locks, race

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


def expire(*, jitter=float, limit=100, using="default", now=NOW):
    return expiring.expire(jitter=jitter, limit=limit, using=using, now=now)


def test_a_lapsed_lease_goes_back():
    """G2, G6: the job of a worker that fell silent is READY again at once, with one failure."""
    job = lapsed()

    [swept] = expire()

    assert (swept.key, swept.name, swept.worker) == (job.key, job.name, WORKER)
    assert swept.state is JobState.READY
    back = row(job)
    assert (back.state, back.failures, back.attempt) == (JobState.READY, 1, 1)
    assert (back.due_at, back.cause, back.finished_at) == (NOW, "lease lapsed", None)
    assert (back.worker, back.lease_expires_at) == ("", None)


def test_the_history_of_an_abandoned_attempt():
    """G6: the history says who let the job down, and when it had started."""
    job = lapsed(worker=STRANGER)
    Job.objects.update(started_at=after(-9))

    expire()

    [attempt] = attempts(job)
    assert (attempt.number, attempt.outcome, attempt.worker) == (1, "abandoned", STRANGER)
    assert (attempt.started_at, attempt.finished_at) == (after(-9), NOW)


def test_live_leases_are_left_alone():
    """G3: a lease lapses at its very end and not before; what does not run has none."""
    claimed(), ready(), ready(state=JobState.SUCCEEDED)

    assert expire(now=after(LEASE - 0.000001)) == []
    assert len(expire(now=after(LEASE))) == 1


def test_the_real_clock_sweeps():
    """G10: without a virtual clock the database's tells which leases are over."""
    dead, _live = claimed(now=None, lease=0), claimed(now=None, lease=60)

    assert [lease.key for lease in expire(now=None)] == [dead.key]


def test_first_abandonment_is_due_at_once_and_later_ones_back_off():
    """G6: the first crash costs no time; a job that kills its workers waits longer each time."""
    job = lapsed(max_attempts=9)
    waits = []

    for _ in range(4):
        [_swept] = expire(jitter=lambda: 0.5, now=after(0))
        waits.append((row(job).due_at - NOW).total_seconds())
        Job.objects.update(due_at=after(-LEASE))
        job = reclaimed(job, now=after(-LEASE))

    assert waits == [0, 12, 24, 48]  # of 16, 32 and 64 chance took a quarter


def test_a_failure_before_is_no_abandonment():
    """G6: after an ordinary failure the first abandonment is still due at once."""
    job = claimed(now=after(-999))
    send(report(job, FAILED), now=after(-998))
    reclaimed(job, now=after(-LEASE))

    expire()

    assert (row(job).due_at, row(job).failures) == (NOW, 2)


def test_failures_used_up():
    """G6: a job that kills its worker is dead-lettered after max_attempts and does not loop."""
    job = lapsed(failures=2, max_attempts=3)

    [swept] = expire()

    dead = row(job)
    assert swept.state is JobState.DEAD_LETTERED
    assert (dead.state, dead.failures, dead.finished_at) == (JobState.DEAD_LETTERED, 3, NOW)
    assert (dead.cause, outcomes(job)) == ("lease lapsed", [(1, "abandoned")])


@pytest.mark.parametrize("failures", [0, 2])
def test_cancel_requested(failures):
    """G8: a lapsed job whose cancel was requested is CANCELLED and never runs again."""
    job = lapsed(failures=failures, max_attempts=3, cancel_requested_at=after(-1))

    [swept] = expire()

    ended = row(job)
    assert swept.state is JobState.CANCELLED
    assert (ended.state, ended.finished_at) == (JobState.CANCELLED, NOW)
    assert (ended.cause, ended.cancel_requested_at) == ("cancel requested", after(-1))
    assert (ended.worker, ended.lease_expires_at) == ("", None)
    assert outcomes(job) == [(1, "abandoned")]


def test_being_lost_ends_being_unroutable():
    """A job that some worker could route starts a new series when it is unroutable again."""
    job = lapsed(unroutable_since=after(-99))

    expire()

    assert row(job).unroutable_since is None


def test_no_handler_is_needed():
    """G2: the row says it all, so that a worker sweeps jobs that its code does not know."""
    job = lapsed(name="gone.module.task", payload='{"args":[1],"kwargs":{"new":2}}')

    assert [lease.name for lease in expire()] == ["gone.module.task"]
    assert row(job).payload == {"args": [1], "kwargs": {"new": 2}}


def test_bounded_oldest_first():
    """A sweep disposes of so many leases at most, those that lapsed first before the others."""
    jobs = [claimed(now=after(-LEASE - seconds)) for seconds in (1, 3, 2, 0)]

    slices = [[lease.key for lease in expire(limit=limit)] for limit in (2, 1, 9, 9)]

    oldest_first = [jobs[number].key for number in (1, 2, 0, 3)]
    assert [set(keys) for keys in slices] == [
        set(oldest_first[:2]),
        set(oldest_first[2:3]),
        set(oldest_first[3:]),
        set(),
    ]


def test_a_lease_renewed_in_between_is_left_alone():
    """G4: where rows cannot be locked, a lease that was renewed after the sweep read it lives on."""
    jobs = [lapsed(), lapsed()]

    def slow_jitter():
        Job.objects.filter(pk=jobs[1].job_id).update(lease_expires_at=after(LEASE))
        return 0.0

    assert [lease.key for lease in expire(jitter=slow_jitter)] == [jobs[0].key]
    assert (row(jobs[1]).state, row(jobs[1]).failures) == (JobState.RUNNING, 0)
    assert outcomes(jobs[1]) == []


def test_jitter_is_drawn_for_each_job():
    """Jobs that were lost together do not come back together."""
    jobs = [lapsed() for _ in range(2)]
    for job in jobs:
        Attempt.objects.create(job_id=job.job_id, number=0, worker="x", finished_at=NOW, outcome="abandoned")
    draws = iter([0.0, 1.0])

    expire(jitter=lambda: next(draws))

    assert {row(job).due_at for job in jobs} == {after(8), after(4)}


def test_a_leftover_in_the_history_stops_no_sweep():
    """G2: a row of the history that should not be there does not keep the others from being swept."""
    jobs = [lapsed(), lapsed()]
    Attempt.objects.create(
        job_id=jobs[0].job_id, number=1, worker="by hand", finished_at=NOW, outcome="failed"
    )

    assert len(expire()) == 2
    assert [row(job).state for job in jobs] == [JobState.READY] * 2
    assert [outcomes(job) for job in jobs] == [[(1, "failed")], [(1, "abandoned")]]


def test_the_newest_attempts_are_kept():
    """A job keeps its newest hundred attempts, also when nobody but the sweep writes them."""
    job = lapsed(attempt=KEPT_ATTEMPTS, max_attempts=999)
    Attempt.objects.bulk_create(
        Attempt(job_id=job.job_id, number=n, worker=WORKER, finished_at=NOW, outcome="abandoned")
        for n in range(1, KEPT_ATTEMPTS + 1)
    )

    expire()

    assert [each.number for each in attempts(job)] == list(range(2, KEPT_ATTEMPTS + 2))


@pytest.mark.parametrize("reclaim", [False, True])
def test_a_late_resend_after_the_sweep_is_stale(reclaim):
    """G4: an `abandoned` row under a worker's name never tells it that its report was applied."""
    job = lapsed()
    expire()
    if reclaim:
        reclaimed(job, worker=STRANGER)

    assert [attempt.worker for attempt in attempts(job)] == [WORKER]
    assert send(report(job, sent_before=True)) == [Verdict.STALE]
    assert outcomes(job) == [(1, "abandoned")]


def test_a_late_resend_after_a_cancelling_sweep_is_stale():
    """G4, G8: nor does it when the sweep cancelled the job."""
    job = lapsed(cancel_requested_at=NOW)
    expire()

    assert send(report(job, sent_before=True)) == [Verdict.STALE]


def test_a_few_statements_a_lease(django_assert_max_num_queries):
    """G12: beside a guarded UPDATE for each lease nothing grows."""
    for _ in range(20):
        lapsed()

    with django_assert_max_num_queries(20 + 6):
        assert len(expire()) == 20


@committing
def test_a_locked_row_delays_no_sweep():
    """G2: a lapsed lease whose row somebody has locked waits for the next sweep; the others do not."""
    free, stuck = lapsed(), lapsed()

    with locked(stuck):
        assert [lease.key for lease in expire()] == [free.key]

    assert [lease.key for lease in expire()] == [stuck.key]


@committing
def test_two_open_sweeps_share_the_leases():
    """G2: a sweep that has not committed keeps its leases to itself, and no other waits for it."""
    needs_row_locks()
    for _ in range(5):
        lapsed()
    with second_connection() as other, transaction.atomic(using=other):
        first = expire(limit=3, using=other)

        second = expire()

    keys = Counter(lease.key for lease in first + second)
    assert sorted(keys.values()) == [1] * 5


@committing
@pytest.mark.slow
def test_racing_sweeps_take_each_lease_once():
    """G2: each lapsed lease is disposed of by exactly one of two sweeps at the same instant."""
    jobs = [lapsed(max_attempts=99) for _ in range(60)]

    def sweep(_):
        return [lease.key for lease in expire(limit=5)]

    shares = race(12, sweep, sweep, sweep)

    swept = Counter(key for sweeps in shares for keys in sweeps for key in keys)
    assert swept == Counter(job.key for job in jobs)
    assert {row(job).failures for job in jobs} == {1}
    assert {tuple(outcomes(job)) for job in jobs} == {((1, "abandoned"),)}


@pytest.mark.parametrize(
    "change",
    [{"worker": STRANGER}, {"attempt": 7}, {"lease_expires_at": after(60)}],
    ids=["another worker's", "another attempt's", "renewed"],
)
def test_a_lease_that_changed_hands_in_between_is_left_alone(monkeypatch, change):
    """G3: where rows cannot be locked, a lease that was lapsed when it was picked may be another's by now."""
    job = lapsed()
    look = expiring._abandoned_before

    def slow_look(job_ids, using):
        Job.objects.filter(pk=job.job_id).update(**change)
        return look(job_ids, using)

    monkeypatch.setattr(expiring, "_abandoned_before", slow_look)

    assert expire() == []

    assert row(job).job_state is JobState.RUNNING
    assert attempts(job) == []
