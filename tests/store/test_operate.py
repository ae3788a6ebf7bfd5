"""Operate: cancel and requeue do what they say, in every state and under every race (G8)."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_backwave.core.outcome import Released
from django_backwave.core.protocol import CancelResult, RequeueResult, Verdict
from django_backwave.core.states import MOVES, REQUEUEABLE, TERMINAL, JobState
from django_backwave.ids import new_id
from django_backwave.models import Action, Job
from django_backwave.store import operate
from django_backwave.store.claim import claim
from django_backwave.store.expire import expire
from django_backwave.store.release import release_unknown
from tests.factories import (
    FAILED,
    LEASE,
    NOW,
    SUCCEEDED,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    lapsed,
    ready,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import behind, needs_row_locks, race, send_until_answered

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

CANCELLED, ASKED, FINISHED = CancelResult
ROUNDS = 40


def cancel(*job_ids, using="default", now=NOW):
    results = operate.cancel(job_ids, using=using, now=now)
    return [results.get(job_id) for job_id in job_ids]


def requeue(*job_ids, now=NOW, **options):
    results = operate.requeue(job_ids, using="default", now=now, **options)
    return [results.get(job_id) for job_id in job_ids]


@pytest.mark.parametrize("state", [JobState.WAITING, JobState.READY])
def test_cancel_before_the_claim(state):
    """G8: a job that nobody has claimed is cancelled at once and never runs."""
    job = ready(state=state)

    assert cancel(job.pk, now=after(1)) == [CANCELLED]

    ended = row(job)
    assert (ended.state, ended.cause) == (JobState.CANCELLED, "cancel requested")
    assert (ended.finished_at, ended.cancel_requested_at) == (after(1), after(1))
    assert claim("default", 9, worker=WORKER, lease=9, using="default", now=after(2)) == []


def test_cancel_while_it_runs():
    """G8: a running job is flagged and keeps its lease; asking again changes nothing."""
    job = claimed()

    assert cancel(job.job_id, now=after(1)) == [ASKED]
    assert cancel(job.job_id, now=after(2)) == [ASKED]

    asked = row(job)
    assert (asked.state, asked.worker, asked.attempt) == (JobState.RUNNING, WORKER, 1)
    assert (asked.cancel_requested_at, asked.finished_at, asked.cause) == (after(1), None, "")
    assert asked.lease_expires_at == after(LEASE)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_cancel_after_the_end(state):
    """G8: no terminal job is changed."""
    job = ready(state=state, finished_at=after(-1), cause="as it was")
    before = contents()

    assert cancel(job.pk) == [FINISHED]
    assert contents() == before


def test_cancel_of_a_lapsed_job():
    """G8: a job whose worker fell silent ends CANCELLED when it is swept."""
    job = lapsed()

    assert cancel(job.job_id) == [ASKED]
    expire(jitter=float, using="default", now=NOW)
    assert row(job).state == JobState.CANCELLED


def test_cancel_of_many_says_what_it_did_to_each():
    """G8: one call may cancel jobs of every state; those that are not there are left out."""
    running, ended = claimed().job_id, ready(state=JobState.SUCCEEDED).pk
    pending, bystander = ready().pk, ready()

    told = cancel(ended, running, new_id(), pending)

    assert told == [FINISHED, ASKED, None, CANCELLED]
    assert cancel() == []
    assert row(bystander).state == JobState.READY


def test_the_real_clock_cancels_and_requeues():
    """G10: without a virtual clock the database's is written."""
    job = ready(now=None)

    cancel(job.pk, now=None)
    assert row(job).finished_at >= row(job).enqueued_at
    requeue(job.pk, now=None)
    assert row(job).due_at >= job.due_at


def test_operators_stay_within_the_legal_moves():
    """G8: cancel and requeue make no move that the table of legal moves does not know."""
    for operation in (cancel, requeue):
        for state in set(JobState) - {JobState.RUNNING}:
            job = ready(state=state)
            operation(job.pk)
            moved = JobState(row(job).state)
            assert moved is state or moved in MOVES[state]


def test_each_effect_is_recorded_under_the_operators_name():
    """An action's row says who did what to which job, once for each job that changed."""
    pending, running, dead = ready(), claimed(), ready(state=JobState.DEAD_LETTERED)
    everything = [pending.pk, running.job_id, dead.pk]

    operate.cancel(everything, actor="7 anna", using="default", now=NOW)
    operate.requeue(everything, actor="8 ben", using="default", now=after(1))
    cancel(dead.pk)  # by nobody in particular

    assert set(Action.objects.values_list("actor", "verb", "job_id", "result", "at")) == {
        ("7 anna", "cancel", pending.pk, "cancelled", NOW),
        ("7 anna", "cancel", running.job_id, "asked to stop", NOW),
        ("8 ben", "requeue", pending.pk, "requeued", after(1)),
        ("8 ben", "requeue", dead.pk, "requeued", after(1)),
    }


# Cancel against a claim, a release and a sweep.


@committing
@pytest.mark.slow
def test_cancel_races_a_claim():
    """G8: of a cancel and a claim one comes first, and the answer says which."""
    jobs = [ready(queue=f"queue-{number}") for number in range(ROUNDS)]

    def ask(number):
        return claim(jobs[number].queue, 1, worker=WORKER, lease=9, using="default", now=NOW)

    told, claims = race(ROUNDS, lambda number: cancel(jobs[number].pk)[0], ask)

    for job, answer, taken in zip(jobs, told, claims, strict=True):
        # A claim that passed over the row while the cancel held it comes again.
        assert ask(jobs.index(job)) == []
        assert (answer, len(taken)) in [(CANCELLED, 0), (ASKED, 1)]
        if taken:
            assert send(report(taken[0], FAILED)) == [Verdict.CANCELLED]
        assert row(job).state == JobState.CANCELLED


@committing
@pytest.mark.slow
@pytest.mark.parametrize("outcome", [Released(), FAILED, SUCCEEDED], ids=["release", "fail", "ok"])
def test_cancel_races_an_outcome(outcome):
    """G8: a cancel that meets an outcome wins, unless that is success: then it is told so."""
    jobs = [claimed() for _ in range(ROUNDS)]

    def end(number):
        return send_until_answered(report(jobs[number], outcome))

    told, verdicts = race(ROUNDS, lambda number: cancel(jobs[number].job_id)[0], end)

    assert set(verdicts) <= {Verdict.APPLIED, Verdict.CANCELLED}
    for job, answer in zip(jobs, told, strict=True):
        succeeded = outcome == SUCCEEDED
        assert answer in ((FINISHED, ASKED) if succeeded else (CANCELLED, ASKED))
        assert row(job).state == (JobState.SUCCEEDED if succeeded else JobState.CANCELLED)
        assert len(attempts(job)) == 1


@committing
@pytest.mark.slow
def test_cancel_races_a_hand_back():
    """G8: a job that is handed back by a worker that lost its claim's reply stays cancelled."""
    jobs = [claimed(worker=f"worker-{number}") for number in range(ROUNDS)]

    def hand_back(number):
        return release_unknown([], worker=f"worker-{number}", using="default", now=NOW)

    told, _ = race(ROUNDS, lambda number: cancel(jobs[number].job_id)[0], hand_back)

    for number, (job, answer) in enumerate(zip(jobs, told, strict=True)):
        hand_back(number)
        assert answer in (CANCELLED, ASKED)
        assert row(job).state == JobState.CANCELLED


@committing
@pytest.mark.slow
def test_cancel_races_a_sweep():
    """G8: a job that is swept at the same instant never runs again either."""
    jobs = [claimed(now=after(number - LEASE)) for number in range(ROUNDS)]

    def sweep(number):
        expire(jitter=float, using="default", now=after(number))

    told, _ = race(ROUNDS, lambda number: cancel(jobs[number].job_id)[0], sweep)

    sweep(ROUNDS)
    assert set(told) <= {CANCELLED, ASKED}
    assert {row(job).state for job in jobs} == {JobState.CANCELLED}
    assert {row(job).attempt for job in jobs} == {1}


@committing
def test_cancel_behind_an_open_claim():
    """G8: a cancel that comes while a claim has not committed waits, and finds the job running."""
    job = ready()

    told = behind(
        lambda other: claim("default", 1, worker=WORKER, lease=9, using=other, now=NOW),
        lambda: cancel(job.pk),
    )

    assert told == [ASKED]
    assert row(job).cancel_requested_at == NOW


@committing
@pytest.mark.parametrize("outcome", [Released(), FAILED, SUCCEEDED], ids=["release", "fail", "ok"])
def test_cancel_behind_an_open_outcome(outcome):
    """G8: a cancel that comes while an outcome has not committed waits, and ends what is left."""
    job = claimed()

    told = behind(lambda other: send(report(job, outcome), using=other), lambda: cancel(job.job_id))

    succeeded = outcome == SUCCEEDED
    assert told == [FINISHED if succeeded else CANCELLED]
    assert row(job).state == (JobState.SUCCEEDED if succeeded else JobState.CANCELLED)


@committing
@pytest.mark.parametrize("first", ["hand-back", "sweep"])
def test_cancel_behind_an_open_return(first):
    """G8: a cancel that comes while a job is handed back or swept waits, and then cancels it."""
    job = lapsed()

    def give_back(other):
        if first == "sweep":
            assert expire(jitter=float, using=other, now=NOW)
        else:
            assert release_unknown([], worker=WORKER, using=other, now=after(-1))

    assert behind(give_back, lambda: cancel(job.job_id)) == [CANCELLED]
    assert row(job).state == JobState.CANCELLED


@committing
def test_outcomes_pass_over_an_open_cancel():
    """G8: what comes while a cancel has not committed passes over the job; then it is CANCELLED."""
    needs_row_locks()
    job = lapsed()
    with second_connection() as other, transaction.atomic(using=other):
        assert cancel(job.job_id, using=other) == [ASKED]
        assert send(report(job, Released()), now=after(-1)) == [Verdict.LOCKED]
        assert release_unknown([], worker=WORKER, using="default", now=after(-1)) == []
        assert expire(jitter=float, using="default", now=NOW) == []

    assert send(report(job, Released()), now=after(-1)) == [Verdict.CANCELLED]
    assert row(job).state == JobState.CANCELLED


@committing
def test_requeue_behind_an_open_requeue():
    """G8: of two requeues at the same instant one sends the job back, and a claim keeps it."""
    job = ready(state=JobState.DEAD_LETTERED)

    def requeue_and_claim(other):
        operate.requeue([job.pk], using=other, now=NOW)
        assert claim("default", 1, worker=WORKER, lease=9, using=other, now=NOW)

    told = behind(requeue_and_claim, lambda: requeue(job.pk))

    assert told == [RequeueResult.NOT_REQUEUEABLE]
    assert row(job).state == JobState.RUNNING


@committing
def test_a_claim_passes_over_an_open_cancel():
    """G8: a claim that comes while a cancel has not committed leaves the job alone, for good."""
    needs_row_locks()
    job = ready()
    with second_connection() as other, transaction.atomic(using=other):
        assert cancel(job.pk, using=other) == [CANCELLED]
        assert claim("default", 1, worker=WORKER, lease=9, using="default", now=NOW) == []

    assert claim("default", 1, worker=WORKER, lease=9, using="default", now=NOW) == []


@pytest.mark.parametrize("state", sorted(REQUEUEABLE))
def test_requeue_clears_what_the_end_wrote(state):
    """G8: requeue clears exactly what belongs to the past, keeps the attempt, and is due now."""
    marks = {
        name: after(-number)
        for number, name in enumerate(
            ("cancel_requested_at", "unroutable_since", "expires_at", "started_at", "finished_at"),
            start=1,
        )
    }
    job = ready(state=state, attempt=7, failures=3, cause="x", output=[1], **marks)
    before = Job.objects.values().get(pk=job.pk)

    assert requeue(job.pk, now=after(50)) == [RequeueResult.REQUEUED]

    cleared = dict.fromkeys(marks) | {"cause": "", "output": None, "failures": 0}
    expected = before | cleared | {"state": JobState.READY, "due_at": after(50)}
    assert Job.objects.values().get(pk=job.pk) == expected


def test_requeue_may_keep_the_failures():
    """An operator may send a job back with its failures, so that it has the tries it has left."""
    job = ready(state=JobState.CANCELLED, failures=2)

    requeue(job.pk, reset_failures=False)

    assert row(job).failures == 2


@pytest.mark.parametrize("state", sorted(set(JobState) - REQUEUEABLE - {JobState.RUNNING}))
def test_requeue_refuses_other_states(state):
    """G8: what has not ended, or succeeded, is not sent back, and not changed."""
    job = ready(state=state)
    before = contents()

    assert requeue(job.pk, new_id()) == [RequeueResult.NOT_REQUEUEABLE, None]
    assert contents() == before


def test_requeue_refuses_a_running_job():
    """G3: nothing takes a running job from its worker."""
    job = claimed()
    before = contents()

    assert requeue(job.job_id) == [RequeueResult.NOT_REQUEUEABLE]
    assert contents() == before


def test_a_cancelled_job_runs_again_after_requeue():
    """G8: requeue takes the cancel back, so that the next attempt's outcome counts."""
    job = claimed()
    cancel(job.job_id)
    send(report(job, FAILED))
    requeue(job.job_id)

    again = reclaimed(job)

    assert again.attempt == 2
    assert send(report(again)) == [Verdict.APPLIED]
    assert row(job).state == JobState.SUCCEEDED


@committing
def test_operators_join_the_callers_transaction():
    """G1: cancel and requeue are undone with the transaction that they were called in."""
    ready(), ready(state=JobState.DEAD_LETTERED)
    before = contents()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ids = [job["id"] for job in before[0]]
        cancel(*ids)
        requeue(*ids)
        raise ZeroDivisionError

    assert contents() == before
