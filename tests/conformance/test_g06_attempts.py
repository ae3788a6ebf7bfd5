"""G6: the claim counts the attempt; a lapsed lease is a failure; failures bound the tries."""

from __future__ import annotations

import signal

import pytest

from django_backwave.core.outcome import Released, Snoozed, TimedOut, Unroutable
from django_backwave.core.policy import Backoff
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.claim import claim
from django_backwave.store.expire import expire
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.release import release_unknown
from tests.factories import (
    ERROR,
    FAILED,
    LEASE,
    NOW,
    SUCCEEDED,
    WORKER,
    after,
    claimed,
    outcomes,
    ready,
    reclaimed,
    report,
    row,
    send,
)
from tests.processes import journal, wait_until
from tests.worker.support import enqueue, read, worker

pytestmark = [pytest.mark.guarantee("G6"), pytest.mark.django_db(transaction=True)]


def abandon(job, at):
    """Let the lease of a job run out, and sweep it."""
    Job.objects.filter(pk=job.job_id).update(lease_expires_at=at)
    expire(jitter=lambda: 0.0, using="default", now=at)
    return row(job)


def test_the_claim_itself_begins_the_next_attempt():
    job = ready()
    assert row(job).attempt == 0

    [taken] = claim("default", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)

    assert taken.attempt == row(job).attempt == 1
    assert outcomes(job) == [], "whose row is written with its outcome"


def test_the_number_never_falls_not_even_by_a_requeue():
    job = claimed(max_attempts=1)
    send(report(job, FAILED))
    requeue([job.job_id], using="default", now=NOW)
    assert (row(job).attempt, row(job).failures) == (1, 0)

    assert reclaimed(job).attempt == 2


def test_the_number_rises_also_where_no_failure_counts():
    job = claimed()
    release_unknown([], worker=WORKER, using="default", now=NOW)

    assert reclaimed(job).attempt == 2
    assert outcomes(job) == [], "a hand-back before the start leaves no row: numbers may have gaps"


@pytest.mark.parametrize(
    ("outcome", "failures"),
    [
        (FAILED, 1),
        (TimedOut(ERROR), 1),
        (Released(), 0),
        (Snoozed(1), 0),
        (Unroutable("no such name"), 0),
        (SUCCEEDED, 0),
    ],
    ids=["failed", "timed out", "released", "snoozed", "unroutable", "succeeded"],
)
def test_what_counts_against_the_bound(outcome, failures):
    job = claimed()

    send(report(job, outcome))

    assert row(job).failures == failures


def test_a_lapsed_lease_counts_as_a_failure():
    swept = abandon(claimed(), NOW)

    assert (swept.state, swept.failures, swept.cause) == (JobState.READY, 1, "lease lapsed")
    assert outcomes(swept) == [(1, "abandoned")]


def test_a_job_that_is_abandoned_again_and_again_is_dead_lettered():
    job = claimed(max_attempts=2)
    abandon(job, NOW)

    dead = abandon(reclaimed(job), after(1))

    assert (dead.state, dead.failures) == (JobState.DEAD_LETTERED, 2)
    assert outcomes(job) == [(1, "abandoned"), (2, "abandoned")]


def test_the_first_abandonment_is_due_at_once_and_later_ones_back_off():
    job = claimed(max_attempts=9, backoff=Backoff(base=8, cap=100, jitter=0))

    assert abandon(job, NOW).due_at == NOW
    assert abandon(reclaimed(job), NOW).due_at == after(16), "the second failure of base 8"


def test_an_abandonment_after_a_cancel_counts_and_ends_the_job():
    job = claimed()
    cancel([job.job_id], using="default", now=NOW)

    assert (abandon(job, NOW).state, outcomes(job)) == (JobState.CANCELLED, [(1, "abandoned")])


@pytest.mark.process
def test_a_job_that_kills_its_workers_ends_among_the_dead_letters(tmp_path):
    """Any worker sweeps any job, whatever queue it serves itself."""
    file = tmp_path / "journal"
    poison = enqueue("kill_yourself", file, max_attempts=2)
    with worker("--queue", "elsewhere"):
        for _ in range(2):
            with worker("--lease", "1", "--poll", "0.1", "--queue", "default") as victim:
                assert victim.wait() == -signal.SIGKILL
            wait_until(lambda: read(poison).job_state is not JobState.RUNNING)

    assert (read(poison).job_state, read(poison).failures) == (JobState.DEAD_LETTERED, 2)
    assert journal(file) == ["started 1", "started 2"]
