"""G2: a committed job reaches a terminal state as long as a worker serves its queue, whatever is killed."""

from __future__ import annotations

import random
import signal

import pytest
from django.db import transaction

from django_backwave.core.outcome import Released, Snoozed
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import TERMINAL, JobState
from django_backwave.models import Job
from django_backwave.store.claim import claim
from django_backwave.store.clock import after as later
from django_backwave.store.expire import expire
from django_backwave.store.release import release_unknown
from tests.factories import (
    FAILED,
    LEASE,
    NOW,
    SUCCEEDED,
    WORKER,
    after,
    claimed,
    lapsed,
    outcomes,
    ready,
    reclaimed,
    report,
    row,
    send,
)
from tests.worker.support import Held, read, run_worker, wait_for_lapse, worker
from tests.worker.support import outcomes as history

pytestmark = [pytest.mark.guarantee("G2"), pytest.mark.django_db(transaction=True)]


def sweep(now=NOW):
    return expire(jitter=lambda: 0.0, using="default", now=now)


def test_the_job_of_a_worker_that_is_gone_comes_back_when_its_lease_is_over():
    job = lapsed()

    [swept] = sweep()

    assert (swept.key, swept.state) == (job.key, JobState.READY)
    again = reclaimed(job, worker="host:3:c")
    assert send(report(again), worker="host:3:c") == [Verdict.APPLIED]
    assert row(job).state == JobState.SUCCEEDED


def test_a_lease_that_is_not_over_is_left_alone():
    job = claimed()

    assert sweep(after(LEASE - 0.001)) == []
    assert row(job).state == JobState.RUNNING


def test_a_sweep_needs_no_handler_and_no_queue():
    """The row says it all, so that any worker sweeps the jobs of all."""
    lapsed(name="a.module.that.is.gone", queue="served by nobody")

    assert len(sweep()) == 1


def test_a_claim_that_never_committed_took_nothing():
    job = ready()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert claim("default", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)
        raise ZeroDivisionError

    assert (row(job).state, row(job).attempt) == (JobState.READY, 0)


def test_a_claim_whose_reply_was_lost_is_handed_back_at_no_cost():
    job = claimed()

    assert release_unknown([], worker=WORKER, using="default", now=NOW) == [job.key]
    assert (row(job).state, row(job).failures, outcomes(job)) == (JobState.READY, 0, [])


def test_a_report_whose_reply_was_lost_is_found_applied():
    job = claimed()
    assert send(report(job)) == [Verdict.APPLIED]

    assert send(report(job, sent_before=True)) == [Verdict.APPLIED]
    assert outcomes(job) == [(1, "succeeded")]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_dies_and_when_every_job_comes_to_its_end(seed):
    """Workers die after a claim, after the work, or hand back; then one more works on without a fault."""
    chance = random.Random(seed)
    jobs = [ready(max_attempts=chance.choice((1, 2, 9))) for _ in range(12)]
    now = NOW
    for step in range(60):
        now = later(now, chance.choice((1, 70)))
        sweep(now)
        for job in claim("default", 4, worker=f"host:{step}:x", lease=LEASE, using="default", now=now):
            fate = chance.choice(("dies", "dies", FAILED, Released(), Snoozed(1)))
            if fate != "dies" and job.attempt < 40:
                send(report(job, fate), worker=f"host:{step}:x", now=now)
    for _ in range(20):
        now = later(now, 200)
        sweep(now)
        for job in claim("default", 20, worker=WORKER, lease=LEASE, using="default", now=now):
            send(report(job, SUCCEEDED), now=now)

    assert Job.objects.count() == len(jobs)
    assert {JobState(state) for state in Job.objects.values_list("state", flat=True)} <= TERMINAL


@pytest.mark.process
def test_a_killed_workers_job_is_done_by_another(tmp_path):
    with worker("--lease", "1", "--poll", "0.1") as killed:
        held = Held(tmp_path / "job", "hold_the_first")
        held.wait_for(f"started 1 in {killed.pid}")
        killed.send(signal.SIGKILL)
        killed.wait()
    wait_for_lapse(held.job)

    assert run_worker("--drain").code == 0
    assert read(held.job).job_state is JobState.SUCCEEDED
    assert history(held.job) == [(1, "abandoned"), (2, "succeeded")]
