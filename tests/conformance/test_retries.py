"""Retries: a failure is tried again after a growing delay, as often as the job allows."""

from __future__ import annotations

import pytest

from django_backwave.core.outcome import Failed, Snoozed
from django_backwave.core.policy import Backoff
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.claim import claim
from django_backwave.store.operate import requeue
from django_backwave.store.retention import KEPT_ATTEMPTS
from tests.factories import (
    ERROR,
    FAILED,
    LEASE,
    NOW,
    WORKER,
    after,
    attempts,
    claimed,
    outcomes,
    reclaimed,
    report,
    row,
    send,
)
from tests.worker.support import enqueue, read, run_worker, wait_for_state, worker
from tests.worker.support import outcomes as history

pytestmark = [pytest.mark.guarantee("retries"), pytest.mark.django_db(transaction=True)]


def delays(job, *, times, jitter=0.0):
    """Let a job fail again and again, and return after how many seconds it was due each time."""
    found, now = [], NOW
    for _ in range(times):
        send(report(job, FAILED, jitter=jitter), now=now)
        found.append((row(job).due_at - now).total_seconds())
        now = row(job).due_at
        job = reclaimed(job, now=now)
    return found


def test_the_delay_doubles_up_to_its_cap():
    job = claimed(max_attempts=9, backoff=Backoff(base=8, cap=50, jitter=0))

    assert delays(job, times=5) == [8, 16, 32, 50, 50]


def test_jitter_only_spreads_the_delay():
    backoff = Backoff(base=8, cap=50, jitter=0.5)
    low = delays(claimed(max_attempts=9, backoff=backoff), times=3, jitter=0.0)
    high = delays(claimed(max_attempts=9, backoff=backoff), times=3, jitter=0.999)

    assert low != high
    assert all(4 <= delay <= 50 for delay in low + high)


def test_a_retry_is_claimed_when_it_is_due_and_not_before():
    job = claimed(backoff=Backoff(base=8, cap=50, jitter=0))
    send(report(job, FAILED))

    assert claim(job.queue, 1, worker=WORKER, lease=LEASE, using="default", now=after(7.999)) == []
    assert reclaimed(job, now=after(8)).attempt == 2


def test_the_last_failure_is_a_dead_letter_with_its_cause():
    job = claimed(max_attempts=2)
    send(report(job, FAILED))
    job = reclaimed(job, now=after(100))
    send(report(job, FAILED), now=after(100))

    dead = row(job)
    assert (dead.state, dead.failures, dead.finished_at) == (JobState.DEAD_LETTERED, 2, after(100))
    assert dead.cause == "ValueError: no stock"
    assert [(attempt.number, attempt.message) for attempt in attempts(job)] == [
        (1, "no stock"),
        (2, "no stock"),
    ]


def test_one_try_means_one_try():
    job = claimed(max_attempts=1)
    send(report(job, FAILED))

    assert row(job).state == JobState.DEAD_LETTERED


def test_who_gives_up_is_not_tried_again():
    job = claimed(max_attempts=9)
    send(report(job, Failed(ERROR, final=True)))

    assert (row(job).state, row(job).failures) == (JobState.DEAD_LETTERED, 1)


def test_a_handler_may_name_the_delay_itself():
    job = claimed(max_attempts=9)
    send(report(job, Failed(ERROR, delay=7.0)))

    assert row(job).due_at == after(7)


@pytest.mark.parametrize("outcome", [Snoozed(0.0), Failed(ERROR, delay=0.0)], ids=["snooze", "failure"])
def test_no_delay_is_shorter_than_a_second(outcome):
    """A handler that always asks for nothing would keep its worker busy for nothing."""
    job = claimed(max_attempts=9)
    send(report(job, outcome))

    assert row(job).due_at == after(1)


def test_a_snooze_is_no_failure_however_often():
    job = claimed(max_attempts=1)
    for number in range(5):
        send(report(job, Snoozed(60)), now=after(60 * number))
        job = reclaimed(job, now=after(60 * (number + 1)))

    assert (row(job).attempt, row(job).failures) == (6, 0)


@pytest.mark.parametrize(("reset", "state"), [(True, JobState.READY), (False, JobState.DEAD_LETTERED)])
def test_a_requeue_gives_all_tries_again_unless_it_is_told_to_keep_the_failures(reset, state):
    job = claimed(max_attempts=2)
    send(report(job, Failed(ERROR, final=True)))
    requeue([job.job_id], reset_failures=reset, using="default", now=NOW)
    job = reclaimed(job)
    send(report(job, FAILED))

    assert (row(job).state, row(job).failures) == (state, 1 if reset else 2)


def test_the_newest_attempts_are_kept():
    job = claimed(max_attempts=10**6)
    for _ in range(KEPT_ATTEMPTS + 3):
        send(report(job, Snoozed(1)))
        Job.objects.filter(pk=job.job_id).update(due_at=NOW)
        job = reclaimed(job)

    numbers = [number for number, _ in outcomes(job)]
    assert (len(numbers), numbers[-1]) == (KEPT_ATTEMPTS, KEPT_ATTEMPTS + 3)


@pytest.mark.process
def test_a_worker_tries_again_until_the_tries_are_used_up():
    job = enqueue("fail", "no stock", max_attempts=2, backoff=Backoff(base=1, cap=1, jitter=0))
    with worker("--poll", "0.1"):
        wait_for_state(job, JobState.DEAD_LETTERED)

    assert history(job) == [(1, "failed"), (2, "failed")]
    assert read(job).cause == "ValueError: no stock"
    assert run_worker("--drain").code == 0
    assert read(job).attempt == 2
