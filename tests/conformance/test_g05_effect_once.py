"""G5: state, attempt record, output and tags commit with the guarded UPDATE, or not at all."""

from __future__ import annotations

import os
import signal

import pytest

from django_backwave.core.outcome import Succeeded
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Tag
from django_backwave.store import failpoint
from django_backwave.store.expire import expire
from tests.factories import FAILED, NOW, WORKER, after, attempts, claimed, contents, lapsed, report, row, send
from tests.store.races import together
from tests.worker.support import enqueue, outcomes, read, run_worker

pytestmark = [pytest.mark.guarantee("G5"), pytest.mark.django_db(transaction=True)]


class Crash(Exception):
    """What a failpoint raises."""


@pytest.fixture
def crash():
    """Let whoever passes one of these points fail there."""

    def raise_it():
        raise Crash

    def arm(*points):
        for point in points:
            failpoint.arm(point, raise_it)

    yield arm
    failpoint.disarm()


def everything():
    return contents(), list(Tag.objects.order_by("pk").values())


def test_everything_of_an_outcome_is_there_at_once():
    job = claimed()

    assert send(report(job, Succeeded('"done"'), tags=(("shop", "north"),), progress='{"done":9}')) == [
        Verdict.APPLIED
    ]
    done, [attempt] = row(job), attempts(job)

    assert (done.state, done.output, done.progress) == (JobState.SUCCEEDED, "done", {"done": 9})
    assert (done.worker, done.lease_expires_at, done.finished_at) == ("", None, NOW)
    assert (attempt.number, attempt.worker, attempt.outcome) == (1, WORKER, "succeeded")
    assert (attempt.started_at, attempt.finished_at) == (after(1), NOW)
    assert [str(tag) for tag in Tag.objects.filter(job_id=job.job_id)] == ["shop=north"]


@pytest.mark.parametrize("outcome", [Succeeded("1"), FAILED], ids=["success", "failure"])
def test_a_history_that_cannot_be_written_takes_the_outcome_along(outcome):
    """Its batch is written one by one, and what is refused for good ends without a second history."""
    first, second = claimed(), claimed()
    Attempt.objects.create(job_id=first.job_id, number=1, worker="by hand", finished_at=NOW, outcome="failed")

    assert send(report(first, outcome), report(second, outcome)) == [Verdict.APPLIED] * 2
    assert [attempt.worker for attempt in attempts(first)] == ["by hand"]
    assert [attempt.worker for attempt in attempts(second)] == [WORKER]
    assert row(first).lease_expires_at is None


@pytest.mark.parametrize("point", ["settle: rows written", "settle: history written", "settle: tags written"])
def test_a_settle_that_fails_between_two_writes_wrote_nothing(crash, point):
    """Where it is one statement, there is no "between", and it is simply done."""
    job = claimed()
    before = everything()
    crash(point)
    try:
        send(report(job, tags=(("shop", "north"),)))
    except Crash:
        assert everything() == before
    else:
        assert len(attempts(job)) == Tag.objects.count() == 1

    failpoint.disarm()
    send(report(job, tags=(("shop", "north"),)))
    assert (row(job).state, len(attempts(job)), Tag.objects.count()) == (JobState.SUCCEEDED, 1, 1)


@pytest.mark.parametrize("point", ["expire: rows written", "expire: history written"])
def test_a_sweep_that_fails_between_two_writes_wrote_nothing(crash, point):
    job = lapsed()
    before = everything()
    crash(point)

    with pytest.raises(Crash):
        expire(jitter=lambda: 0.0, using="default", now=NOW)

    assert everything() == before
    failpoint.disarm()
    expire(jitter=lambda: 0.0, using="default", now=NOW)
    assert [attempt.outcome for attempt in attempts(job)] == ["abandoned"]


def test_one_outcome_however_often_it_is_sent():
    """A worker repeats what got no answer; only one attempt row and one set of tags come of it."""
    job = claimed()
    sent = report(job, tags=(("", "paid"),), sent_before=True)
    verdicts = together(lambda: send(sent), lambda: send(sent), lambda: send(sent))
    verdicts += [send(sent)]

    assert (len(attempts(job)), Tag.objects.count()) == (1, 1)
    assert set(map(tuple, verdicts)) <= {(Verdict.APPLIED,), (Verdict.LOCKED,)}


def test_each_attempt_number_has_at_most_one_row():
    job = claimed()
    send(report(job))

    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        Attempt.objects.create(job_id=job.job_id, number=1, worker=WORKER, finished_at=NOW, outcome="failed")


@pytest.mark.process
def test_a_process_that_dies_within_its_transaction_leaves_nothing_of_it(tmp_path):
    job = enqueue("kill_yourself", tmp_path / "journal", max_attempts=1)
    assert run_worker("--lease", "1").code == -signal.SIGKILL
    assert os.path.exists(tmp_path / "journal")

    assert (read(job).job_state, read(job).output, outcomes(job)) == (JobState.RUNNING, None, [])
