"""G8: cancel is at once before the start, cooperative afterwards, final unless the job succeeded first."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_backwave.core.outcome import Cancelled, Failed, Released, Snoozed, TimedOut, Unroutable
from django_backwave.core.protocol import CancelResult, Renewal, RequeueResult, Verdict
from django_backwave.core.states import TERMINAL, JobState
from django_backwave.models import Job
from django_backwave.store.claim import claim
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import renew
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
    contents,
    lapsed,
    outcomes,
    ready,
    report,
    row,
    second_connection,
    send,
)
from tests.processes import journal
from tests.store.races import together
from tests.worker.support import enqueue, read, started, wait_for_state, worker

pytestmark = [pytest.mark.guarantee("G8"), pytest.mark.django_db(transaction=True)]


def ask(job, now=NOW):
    """Request the cancel of a job, and return what that did."""
    [result] = cancel([job.pk if isinstance(job, Job) else job.job_id], using="default", now=now).values()
    return result


def claimable(now=NOW):
    return claim("default", 99, worker=WORKER, lease=LEASE, using="default", now=now)


@pytest.mark.parametrize("state", [JobState.READY, JobState.WAITING], ids=str)
def test_a_job_that_nobody_has_claimed_is_cancelled_at_once(state):
    job = ready(state=state.value)

    assert ask(job) is CancelResult.CANCELLED
    assert (row(job).state, row(job).finished_at, row(job).cause) == (
        JobState.CANCELLED,
        NOW,
        "cancel requested",
    )
    assert claimable() == []


def test_a_running_job_is_flagged_and_its_next_heartbeat_learns_it():
    job = claimed()

    assert ask(job) is CancelResult.ASKED_TO_STOP
    assert (row(job).state, row(job).cancel_requested_at) == (JobState.RUNNING, NOW)
    learnt = renew({job.key: None}, worker=WORKER, lease=LEASE, using="default", now=after(1))
    assert learnt == {job.key: Renewal.CANCEL_REQUESTED}
    assert row(job).lease_expires_at == after(1 + LEASE), "and the lease goes on, for the handler still runs"


ENDS = {
    "failed": FAILED,
    "gave up": Failed(ERROR, final=True),
    "timed out": TimedOut(ERROR),
    "snoozed": Snoozed(5),
    "released": Released(),
    "unroutable": Unroutable("no such name"),
    "cancelled": Cancelled(),
}


@pytest.mark.parametrize("outcome", ENDS.values(), ids=ENDS)
def test_once_requested_every_outcome_but_a_success_writes_cancelled(outcome):
    job = claimed()
    ask(job)

    assert send(report(job, outcome)) == [Verdict.CANCELLED]
    assert (row(job).state, row(job).cause) == (JobState.CANCELLED, "cancel requested")
    assert outcomes(job) == [(1, "cancelled")]
    assert claimable(after(10**6)) == [], "it never runs again by itself"


def test_a_success_is_a_success():
    job = claimed()
    ask(job)

    assert send(report(job, SUCCEEDED)) == [Verdict.APPLIED]
    assert row(job).state == JobState.SUCCEEDED


def test_the_sweep_of_a_cancelled_job_writes_cancelled():
    job = lapsed()
    ask(job)

    expire(jitter=lambda: 0.0, using="default", now=NOW)

    assert (row(job).state, row(job).cause) == (JobState.CANCELLED, "cancel requested")


def test_the_hand_back_of_a_cancelled_job_writes_cancelled():
    job = claimed()
    ask(job)

    release_unknown([], worker=WORKER, using="default", now=NOW)

    assert (row(job).state, outcomes(job)) == (JobState.CANCELLED, [])


@pytest.mark.parametrize("state", sorted(TERMINAL), ids=str)
def test_no_finished_job_is_changed(state):
    job = ready(state=state.value, finished_at=NOW)
    before = contents()

    assert ask(job, now=after(9)) is CancelResult.ALREADY_FINISHED
    assert contents() == before


def test_a_second_request_keeps_the_time_of_the_first():
    job = claimed()
    ask(job)
    ask(job, now=after(9))

    assert row(job).cancel_requested_at == NOW


def test_a_claim_and_a_cancel_that_race_leave_no_job_that_runs_unasked():
    """One statement decides for each row, so that a job which moves from READY to RUNNING is not missed."""
    for _ in range(10):
        job = ready()
        _, result = together(claimable, lambda job=job: ask(job))
        now = row(job)

        if result is CancelResult.CANCELLED:
            assert (now.state, now.attempt) == (JobState.CANCELLED, 0)
        else:
            assert (now.state, now.cancel_requested_at) == (JobState.RUNNING, NOW)


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.DEAD_LETTERED, JobState.QUARANTINED], ids=str)
def test_a_requeue_clears_what_the_end_has_left(state):
    told = dict.fromkeys(
        ("cancel_requested_at", "unroutable_since", "expires_at", "finished_at", "started_at"), NOW
    )
    job = ready(state=state.value, cause="cancel requested", output="1", attempt=3, failures=2, **told)

    results = requeue([job.pk], using="default", now=after(9))

    again = row(job)
    assert results == {job.pk: RequeueResult.REQUEUED}
    assert (again.state, again.due_at, again.cause, again.output) == (JobState.READY, after(9), "", None)
    assert [getattr(again, column) for column in told] == [None] * 5
    assert (again.attempt, again.failures) == (3, 0)
    assert [taken.attempt for taken in claimable(after(9))] == [4]


def test_a_cancel_belongs_to_the_callers_transaction():
    job = ready()
    with second_connection() as other:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            ask(job)
            raise ZeroDivisionError
        assert Job.objects.using(other).get().state == JobState.READY


@pytest.mark.process
def test_a_handler_is_told_and_a_job_behind_it_never_starts(tmp_path):
    """The second one may be claimed already, ahead of the one slot: then it is cancelled without running."""
    with worker("--poll", "0.1", "--concurrency", "1", "--lease", "3"):
        held = started(tmp_path / "job", "hold_obediently")
        behind = enqueue("write", tmp_path / "journal", "it ran")
        cancel([behind.pk, held.job.pk], using="default")
        wait_for_state(held.job, JobState.CANCELLED)
        wait_for_state(behind, JobState.CANCELLED)

    assert journal(tmp_path / "journal") == []
    assert "told of the cancel" in held.journal
    assert read(held.job).attempt == 1
