"""Expiry: a job that has not started by its time is cancelled, and never runs late."""

from __future__ import annotations

import pytest

from django_backwave.core.outcome import Released
from django_backwave.core.states import JobState
from django_backwave.store import claim as store
from django_backwave.store.expire import expire_waiting
from django_backwave.store.operate import requeue
from tests.factories import LEASE, NOW, WORKER, after, claimed, outcomes, ready, report, row, send
from tests.processes import journal
from tests.worker.support import enqueue, read, run_worker

pytestmark = [pytest.mark.guarantee("expiry"), pytest.mark.django_db(transaction=True)]


def claim(now):
    return store.claim("default", 9, worker=WORKER, lease=LEASE, using="default", now=now)


def test_a_claim_cancels_what_it_finds_too_late_and_takes_the_others():
    late, other = ready(expires=10.0), ready()

    [taken] = claim(after(10))

    assert taken.job_id == other.pk
    assert (row(late).state, row(late).cause, row(late).finished_at) == (
        JobState.CANCELLED,
        "expired",
        after(10),
    )
    assert (row(late).attempt, outcomes(late)) == (0, [])


def test_just_before_its_time_it_starts_and_then_it_may_take_as_long_as_it_likes():
    job = ready(expires=10.0)

    [taken] = claim(after(9.999))
    assert expire_waiting(using="default", now=after(20)) == []
    send(report(taken), now=after(20))

    assert row(job).state == JobState.SUCCEEDED


@pytest.mark.parametrize("state", [JobState.READY, JobState.WAITING], ids=str)
def test_what_no_claim_reaches_is_cancelled_as_well(state):
    """It is due only later, or its queue has no worker, or it waits."""
    job = ready(expires=10.0, run_after=after(3600), queue="nobody's", state=state.value)
    assert expire_waiting(using="default", now=after(9.999)) == []

    [late] = expire_waiting(using="default", now=after(10))

    assert (late.job_id, row(job).state, row(job).cause) == (job.pk, JobState.CANCELLED, "expired")


def test_a_job_that_never_expires_hides_none_that_does():
    ready()
    late = ready(expires=10.0)

    assert [each.job_id for each in expire_waiting(limit=1, using="default", now=after(10))] == [late.pk]


def test_a_job_that_comes_back_after_its_time_does_not_start_again():
    job = claimed(queue="default", expires=10.0)
    send(report(job, Released()), now=after(11))

    assert claim(after(11)) == []
    assert row(job).state == JobState.CANCELLED


def test_a_requeue_is_a_new_beginning_without_an_end():
    job = ready(expires=10.0)
    claim(after(10))
    requeue([job.pk], using="default", now=after(20))

    assert [each.job_id for each in claim(after(20))] == [job.pk]


@pytest.mark.process
def test_a_worker_cancels_it_and_never_calls_its_handler(tmp_path):
    late = enqueue("write", tmp_path / "journal", "late", expires=NOW)

    process = run_worker("--drain")

    assert (process.code, read(late).job_state, journal(tmp_path / "journal")) == (0, JobState.CANCELLED, [])
    assert process.said("action=job_expired", str(late.pk))
