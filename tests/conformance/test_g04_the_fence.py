"""G4: a write of an attempt applies only while that attempt holds a live lease; else nothing is written."""

from __future__ import annotations

import signal

import pytest

from django_backwave.core.outcome import Cancelled, Released, Snoozed, TimedOut, Unroutable
from django_backwave.core.protocol import Renewal, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Job, Tag
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import renew
from django_backwave.store.release import release_unknown
from tests.factories import (
    ERROR,
    FAILED,
    LEASE,
    NOW,
    STRANGER,
    SUCCEEDED,
    WORKER,
    after,
    claimed,
    contents,
    outcomes,
    reclaimed,
    report,
    row,
    send,
)
from tests.store.races import locked, together
from tests.worker.support import (
    Held,
    read,
    run_worker,
    wait_for_lapse,
    wait_for_renewal,
    worker,
)
from tests.worker.support import (
    outcomes as history,
)

pytestmark = [pytest.mark.guarantee("G4"), pytest.mark.django_db(transaction=True)]

OUTCOMES = {
    "success": SUCCEEDED,
    "failure": FAILED,
    "time-out": TimedOut(ERROR),
    "release": Released(),
    "snooze": Snoozed(60),
    "cancel": Cancelled(),
    "unroutable": Unroutable("no such name"),
}
every_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)


def everything():
    """Return every byte of jobs, history and tags."""
    return contents(), list(Tag.objects.order_by("pk").values())


def beat(job, worker=WORKER, now=NOW):
    return renew({job.key: None}, worker=worker, lease=LEASE, using="default", now=now)[job.key]


@every_outcome
def test_the_holder_of_a_live_lease_may_write(outcome):
    job = claimed()

    assert send(report(job, outcome), now=after(LEASE - 0.001)) != [Verdict.STALE]
    assert row(job).state != JobState.RUNNING


@every_outcome
def test_a_lease_is_over_at_its_very_end_though_nobody_has_swept_it(outcome):
    job = claimed()
    before = everything()

    assert send(report(job, outcome, tags=(("", "late"),)), now=after(LEASE)) == [Verdict.STALE]
    assert everything() == before


@every_outcome
def test_another_worker_writes_nothing(outcome):
    job = claimed()
    before = everything()

    assert send(report(job, outcome, tags=(("", "wrong"),)), worker=STRANGER) == [Verdict.STALE]
    assert everything() == before


@every_outcome
def test_an_earlier_attempt_of_the_same_worker_writes_nothing(outcome):
    first = claimed()
    send(report(first, Released()))
    second = reclaimed(first)
    before = everything()

    assert send(report(first, outcome)) == [Verdict.STALE]
    assert everything() == before
    assert send(report(second)) == [Verdict.APPLIED]


@every_outcome
def test_a_job_that_does_not_run_takes_no_outcome(outcome):
    """Not even with worker and attempt still in the row, as an older release may have left them."""
    job = claimed()
    send(report(job))
    Job.objects.filter(pk=job.job_id).update(worker=WORKER)
    before = everything()

    assert send(report(job, outcome)) == [Verdict.STALE]
    assert everything() == before


def test_stale_is_for_ever():
    job = claimed()
    expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
    before = everything()

    assert [send(report(job), now=after(second))[0] for second in (0, 1, LEASE)] == [Verdict.STALE] * 3
    assert everything() == before


@pytest.mark.parametrize("case", ["expired", "stranger", "earlier"])
def test_a_heartbeat_never_revives_a_lease(case):
    job = claimed()
    if case == "earlier":
        send(report(job, Released()))
        reclaimed(job)
    before = everything()

    learnt = beat(job, STRANGER if case == "stranger" else WORKER, after(LEASE) if case == "expired" else NOW)

    assert learnt is Renewal.LOST
    assert everything() == before


def test_a_heartbeat_extends_what_is_live():
    job = claimed()

    assert beat(job, now=after(LEASE - 0.001)) is Renewal.RENEWED
    assert send(report(job), now=after(LEASE + 1)) == [Verdict.APPLIED]


def test_a_hand_back_of_what_is_unknown_passes_the_fence():
    claimed()
    before = everything()

    assert release_unknown([], worker=WORKER, using="default", now=after(LEASE)) == []
    assert release_unknown([], worker=STRANGER, using="default", now=NOW) == []
    assert everything() == before


def test_tags_and_progress_are_written_with_an_applied_outcome_alone():
    applied, stale = claimed(), claimed(now=after(-LEASE))
    told = {"tags": (("shop", "north"),), "progress": '{"done":1}'}

    assert send(report(applied, **told), report(stale, **told)) == [Verdict.APPLIED, Verdict.STALE]
    assert [tag.job_id for tag in Tag.objects.all()] == [applied.job_id]
    assert (row(applied).progress, row(stale).progress) == ({"done": 1}, None)


def test_in_a_batch_each_row_has_its_own_verdict():
    live, lapsed, foreign = claimed(), claimed(now=after(-LEASE)), claimed(worker=STRANGER)

    assert send(report(live), report(lapsed), report(foreign)) == [
        Verdict.APPLIED,
        Verdict.STALE,
        Verdict.STALE,
    ]
    assert [outcomes(job) for job in (live, lapsed, foreign)] == [[(1, "succeeded")], [], []]


@pytest.mark.needs("row_locks")
def test_a_row_that_is_only_locked_is_tried_again_until_its_lease_ends():
    job = claimed()
    with locked(job):
        assert send(report(job)) == [Verdict.LOCKED]
        assert send(report(job), now=after(LEASE)) == [Verdict.STALE]

    assert send(report(job)) == [Verdict.APPLIED]


def test_a_sweep_and_an_outcome_that_race_never_both_apply():
    for _ in range(5):
        job = claimed(now=None, lease=3600.0)
        Job.objects.filter(pk=job.job_id).update(lease_expires_at=after(0))
        swept, [verdict] = together(
            lambda: expire(jitter=lambda: 0.0, using="default", now=NOW),
            lambda job=job: send(report(job), now=after(-0.001)),
        )

        assert (verdict is Verdict.APPLIED) is (outcomes(job) == [(1, "succeeded")])
        assert len(outcomes(job)) <= 1
        assert len(swept) + (verdict is Verdict.APPLIED) <= 1


def test_two_outcomes_of_one_attempt_that_race_leave_one():
    for _ in range(5):
        job = claimed()
        verdicts = together(lambda job=job: send(report(job)), lambda job=job: send(report(job, FAILED)))

        assert len(outcomes(job)) == 1
        assert [Verdict.APPLIED] in verdicts
        assert verdicts.count([Verdict.APPLIED]) == 1


@pytest.mark.process
def test_a_frozen_workers_late_result_changes_nothing_and_is_told_at_info(tmp_path):
    """It wakes up long after its lease, when another worker has done the job."""
    short = ("--lease", "1", "--poll", "0.1")
    with worker(*short) as frozen:
        held = Held(tmp_path / "job", "hold_the_first")
        held.wait_for(f"started 1 in {frozen.pid}")
        wait_for_renewal(held.job)
        frozen.send(signal.SIGSTOP)
        wait_for_lapse(held.job)
        assert run_worker("--drain").code == 0
        before = everything()

        held.go()
        frozen.send(signal.SIGCONT)
        line = frozen.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale", "refused=")

    assert everything() == before
    assert "INFO" in line
    assert (read(held.job).output, history(held.job)) == ("attempt 2", [(1, "abandoned"), (2, "succeeded")])
