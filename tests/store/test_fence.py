"""The fence: only (worker, attempt) with an unexpired lease writes; all else changes no byte (G4)."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_backwave.core.outcome import Cancelled, Released, Snoozed, Unroutable
from django_backwave.core.protocol import AttemptKey, Renewal, Verdict
from django_backwave.core.states import TERMINAL, JobState
from django_backwave.models import Job
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import renew
from django_backwave.store.operate import requeue
from django_backwave.store.release import release_unknown
from tests.factories import (
    FAILED,
    LEASE,
    NOW,
    STRANGER,
    SUCCEEDED,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    lapsed,
    outcomes,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import locked, needs_row_locks, race, send_until_answered, together

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


def settling(outcome):
    """Return a write that reports an outcome, and says whether it was refused."""

    def write(job, worker, now):
        return send(report(job, outcome), worker=worker, now=now) == [Verdict.STALE]

    return write


def heartbeat(job, worker, now):
    renewals = renew({job.key: now}, worker=worker, lease=LEASE, using="default", now=now)
    return renewals == {job.key: Renewal.LOST}


WRITES = {
    "success": settling(SUCCEEDED),
    "failure": settling(FAILED),
    "cancelled": settling(Cancelled()),
    "release": settling(Released()),
    "snooze": settling(Snoozed(5)),
    "unroutable": settling(Unroutable("unknown name")),
    "heartbeat": heartbeat,
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def assert_refused(write, job, *, worker=WORKER, now=NOW):
    before = contents()
    assert write(job, worker, now)
    assert contents() == before


@every_write
def test_the_holder_may_write(write):
    """G4: the attempt that holds the live lease is let through, up to the last instant of its lease."""
    assert not write(claimed(), WORKER, NOW)
    assert not write(claimed(), WORKER, after(LEASE - 0.000001))


@every_write
def test_another_worker_is_refused(write):
    """G4: nobody but the worker that holds the lease writes."""
    assert_refused(write, claimed(), worker=STRANGER)


@every_write
@pytest.mark.parametrize("number", [0, 1, 3])
def test_another_attempt_is_refused(write, number):
    """G4: only the attempt that holds the lease writes, no earlier and no later number."""
    job = claimed(attempt=1)

    assert_refused(write, job._replace(attempt=number))


@every_write
@pytest.mark.parametrize("worker", [WORKER, STRANGER], ids=["same worker", "other worker"])
def test_an_old_attempt_is_refused_after_a_reclaim(write, worker):
    """G4: once the job was claimed again, by whomever, the old attempt is stale for ever."""
    old = lapsed()
    expire(jitter=float, using="default", now=NOW)
    reclaimed(old, worker=worker)

    assert_refused(write, old)


@every_write
@pytest.mark.parametrize("late", [0, 0.000001, 1000])
def test_an_expired_lease_is_refused_though_unswept(write, late):
    """G4: a lease is dead at its expiry instant, whether or not anyone swept it."""
    assert_refused(write, lapsed(), now=after(late))


@every_write
@pytest.mark.parametrize("state", sorted(TERMINAL | {JobState.READY}))
def test_a_job_that_does_not_run_is_refused(write, state):
    """G4: a job that is not running takes no outcome, whichever way it came to stand where it is."""
    job = claimed()
    Job.objects.update(state=state, lease_expires_at=None)

    assert_refused(write, job)


@every_write
def test_a_job_that_is_gone_is_refused(write):
    """G4: the outcome of a deleted job is written nowhere."""
    job = claimed()
    Job.objects.all().delete()

    assert_refused(write, job)


@every_write
def test_a_second_outcome_is_refused(write):
    """G5: an attempt's outcome is recorded once."""
    job = claimed()
    send(report(job))

    assert_refused(write, job)


def test_release_of_unknown_passes_the_fence():
    """G4: a hand-back of unknown jobs leaves expired leases and other workers' jobs as they are."""
    lapsed()
    claimed(worker=STRANGER)
    before = contents()

    assert release_unknown([], worker=WORKER, using="default", now=NOW) == []
    assert contents() == before


def test_the_real_clock_fences():
    """G4, G10: without a virtual clock it is the database's that tells a live lease from a dead one."""
    live, dead = claimed(now=None, lease=60), claimed(now=None, lease=0)

    renewals = renew({job.key: None for job in (live, dead)}, worker=WORKER, lease=60, using="default")

    assert renewals == {live.key: Renewal.RENEWED, dead.key: Renewal.LOST}
    assert send(report(live), report(dead), now=None) == [Verdict.APPLIED, Verdict.STALE]
    [swept] = expire(jitter=float, using="default")
    assert swept.key == dead.key


def test_attempt_never_falls_over_requeue():
    """G4, G6: a job that was requeued goes on counting, so that a thread of old stays locked out."""
    old = claimed(max_attempts=1)
    send(report(old, FAILED))
    requeue([old.job_id], using="default", now=NOW)
    new = reclaimed(old)

    assert new.attempt == old.attempt + 1
    for write in WRITES.values():
        assert_refused(write, old)
    assert send(report(new)) == [Verdict.APPLIED]
    assert outcomes(old) == [(1, "failed"), (2, "succeeded")]


def test_settle_before_sweep():
    """G4: a lease that was settled in time is nothing for the sweep, however late that comes."""
    job = lapsed()

    assert send(report(job), now=after(-1)) == [Verdict.APPLIED]
    assert expire(jitter=float, using="default", now=after(9)) == []
    assert outcomes(job) == [(1, "succeeded")]


def test_sweep_before_settle():
    """G4: an outcome that comes after the sweep is stale, though its own clock says the lease lives."""
    job = lapsed()

    assert [lease.key for lease in expire(jitter=float, using="default", now=NOW)] == [job.key]
    assert send(report(job), now=after(-1)) == [Verdict.STALE]
    assert outcomes(job) == [(1, "abandoned")]


@committing
@pytest.mark.slow
def test_sweep_and_settle_race():
    """G4: of a sweep and an outcome at the same instant exactly one is written."""
    jobs = [claimed(now=after(number - LEASE)) for number in range(60)]  # one lease ends a second

    def settle_one(number):
        return send_until_answered(report(jobs[number]), now=after(number - 0.5))

    def sweep(number):
        return [lease.key for lease in expire(jitter=float, using="default", now=after(number))]

    verdicts, sweeps = race(len(jobs), settle_one, sweep)

    swept = {key for keys in sweeps for key in keys}
    for job, verdict in zip(jobs, verdicts, strict=True):
        applied = verdict is Verdict.APPLIED
        assert (job.key in swept) is not applied
        assert row(job).state == (JobState.SUCCEEDED if applied else JobState.READY)
        assert outcomes(job) == [(1, "succeeded" if applied else "abandoned")]


@committing
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_settle_while_a_sweep_is_open(commits):
    """G4: while a sweep has not committed its lease is only locked; its end decides."""
    needs_row_locks()
    job = lapsed()
    with second_connection() as other, transaction.atomic(using=other):
        assert expire(jitter=float, using=other, now=NOW)

        assert send(report(job), now=after(-1)) == [Verdict.LOCKED]
        transaction.set_rollback(not commits, using=other)

    expected = Verdict.STALE if commits else Verdict.APPLIED
    assert send(report(job), now=after(-1)) == [expected]


@committing
def test_sweep_while_a_settle_is_open():
    """G4: the sweep passes over a lease that is being settled, and does not wait."""
    needs_row_locks()
    job = lapsed()
    with second_connection() as other, transaction.atomic(using=other):
        assert send(report(job), now=after(-1), using=other) == [Verdict.APPLIED]

        assert expire(jitter=float, using="default", now=NOW) == []

    assert expire(jitter=float, using="default", now=NOW) == []
    assert outcomes(job) == [(1, "succeeded")]


@committing
@pytest.mark.slow
def test_two_settles_of_one_outcome_race():
    """G5: an outcome that is sent twice at the same instant is recorded once."""
    for _ in range(20):
        job = claimed()

        verdicts = together(*[lambda job=job: send_until_answered(report(job))] * 2)

        assert sorted(verdicts, key=str) == [Verdict.APPLIED, Verdict.STALE]
        assert len(attempts(job)) == 1


@committing
def test_a_batch_of_live_stale_and_locked_rows():
    """G4: each report of a batch gets its own verdict; a locked row is settled later."""
    needs_row_locks()
    live, stuck, dead = claimed(), claimed(), lapsed()
    foreign, old = claimed(worker=STRANGER), claimed(attempt=5)._replace(attempt=5)
    reports = [report(job) for job in (dead, live, old, stuck, foreign)]

    with locked(stuck):
        verdicts = send(*reports)

    stale = Verdict.STALE
    assert verdicts == [stale, Verdict.APPLIED, stale, Verdict.LOCKED, stale]
    assert [len(attempts(job)) for job in (dead, live, old, stuck, foreign)] == [0, 1, 0, 0, 0]
    assert send(report(stuck)) == [Verdict.APPLIED]


@committing
def test_a_locked_row_whose_lease_ends_is_stale():
    """G4: a row that stays locked until its lease is over was settled too late."""
    job = claimed()

    with locked(job):
        assert send(report(job)) == [Verdict.LOCKED]
        assert send(report(job), now=after(LEASE)) == [Verdict.STALE]


@committing
def test_a_locked_row_delays_no_renewal():
    """G4: a heartbeat renews the others while somebody holds one row's lock, and loses none."""
    free, stuck = claimed(), claimed()
    held = {job.key: None for job in (free, stuck)}

    with locked(stuck):
        renewals = renew(held, worker=WORKER, lease=LEASE, using="default", now=after(9))

    assert renewals == {free.key: Renewal.RENEWED, stuck.key: Renewal.UNKNOWN}
    assert row(free).lease_expires_at == after(9 + LEASE)
    assert row(stuck).lease_expires_at == after(LEASE)


@committing
def test_a_locked_row_stays_with_a_release():
    """G4: a hand-back of unknown jobs passes over a locked row; the next one takes it."""
    free, stuck = claimed(), claimed()

    with locked(stuck):
        first = release_unknown([], worker=WORKER, using="default", now=NOW)

    assert first == [free.key]
    assert release_unknown([], worker=WORKER, using="default", now=NOW) == [stuck.key]


def test_one_job_and_two_attempts_in_a_batch():
    """G4: of an old and a new attempt of one job in a batch only the new one is written."""
    old = lapsed()
    expire(jitter=float, using="default", now=NOW)
    new = reclaimed(old)

    verdicts = send(report(old, FAILED), report(new))

    assert verdicts == [Verdict.STALE, Verdict.APPLIED]
    assert AttemptKey(old.job_id, 2) == new.key
    assert outcomes(old) == [(1, "abandoned"), (2, "succeeded")]
