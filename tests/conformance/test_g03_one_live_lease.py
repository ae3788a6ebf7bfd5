"""G3: no two workers hold a live lease on the same job."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.claim import claim
from django_backwave.store.expire import expire
from tests.factories import LEASE, NOW, STRANGER, WORKER, after, claimed, ready, row
from tests.processes import journal, wait_until
from tests.store.races import locked, race, together
from tests.worker.support import enqueue_many, worker

pytestmark = [pytest.mark.guarantee("G3"), pytest.mark.django_db(transaction=True)]


def take(worker_name, limit=1, now=NOW, queue="default"):
    return claim(queue, limit, worker=worker_name, lease=LEASE, using="default", now=now)


def test_a_claimed_job_is_given_to_nobody_else():
    ready()

    assert len(take(WORKER)) == 1
    assert take(STRANGER) == []
    assert take(WORKER) == [], "not to the same worker, either"


def test_a_lease_is_over_only_when_it_was_swept_and_then_it_is_a_new_attempt():
    job = claimed()
    end = after(LEASE)
    assert take(STRANGER, queue=job.queue, now=end) == [], "lapsed, and unswept"

    expire(jitter=lambda: 0.0, using="default", now=end)
    [again] = take(STRANGER, queue=job.queue, now=end)

    assert (again.job_id, again.attempt) == (job.job_id, 2)
    assert row(job).worker == STRANGER


def test_many_workers_that_claim_at_once_share_the_jobs():
    """Each job is handed out once, and none is left over."""
    for _ in range(40):
        ready()

    def some(name):
        return lambda _: take(name, 3)

    taken = race(5, *(some(f"host:{number}:x") for number in range(4)))
    keys = [job.key for rounds in taken for jobs in rounds for job in jobs]
    rest = [job.key for job in take(WORKER, 100)]

    assert len(set(keys)) == len(keys)
    assert len(keys) + len(rest) == 40
    assert Job.objects.filter(state=JobState.RUNNING, attempt=1).count() == 40


def test_many_workers_that_race_for_one_job():
    for _ in range(5):
        job = ready()
        taken = together(*(lambda name=f"host:{number}:x": take(name) for number in range(4)))

        assert sorted(map(len, taken)) == [0, 0, 0, 1]
        assert row(job).attempt == 1


def test_a_sweep_and_claims_that_race_end_in_one_lease():
    for _ in range(5):
        job = claimed(now=after(-LEASE), queue="one")
        together(
            lambda: expire(jitter=lambda: 0.0, using="default", now=NOW),
            lambda: take("host:8:x", queue="one"),
            lambda: take("host:9:x", queue="one"),
        )
        take(WORKER, queue="one")

        assert (row(job).state, row(job).attempt) == (JobState.RUNNING, 2)


@pytest.mark.needs("row_locks")
def test_a_job_that_somebody_has_locked_is_passed_over_and_holds_up_nobody():
    """Also one that another claim, not yet committed, is about to take."""
    first, second = ready(), ready()

    with locked(first):
        [taken] = take(WORKER, 2)

    assert taken.job_id == second.pk


@pytest.mark.process
def test_two_workers_run_every_job_once(tmp_path):
    file = tmp_path / "journal"
    with worker("--poll", "0.05") as one, worker("--poll", "0.05") as two:
        enqueue_many("write", [(file, str(number)) for number in range(200)])
        wait_until(lambda: Job.objects.filter(state=JobState.SUCCEEDED).count() == 200, deadline=60)
        for process in (one, two):
            process.send(signal.SIGTERM)
            assert process.wait() == 0

    assert Counter(journal(file)) == {str(number): 1 for number in range(200)}
    assert Job.objects.filter(failures=0).count() == 200  # what one handed back unbegun has another number
