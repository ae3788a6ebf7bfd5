"""G11: on SIGTERM a worker claims no more, waits, and hands back what has really stopped, at no cost."""

from __future__ import annotations

import signal
from datetime import UTC, datetime

import pytest

from django_backwave.core.outcome import Released
from django_backwave.core.states import JobState
from tests.factories import NOW, claimed, reclaimed, report, row, send
from tests.factories import outcomes as history
from tests.processes import wait_until
from tests.worker.support import enqueue, outcomes, read, run_worker, started, worker

pytestmark = [pytest.mark.guarantee("G11"), pytest.mark.django_db(transaction=True)]

process = pytest.mark.process


def test_a_hand_back_costs_no_failure_and_is_due_at_once():
    job = claimed()

    send(report(job, Released()))

    back = row(job)
    assert (back.state, back.failures, back.due_at, back.worker) == (JobState.READY, 0, NOW, "")
    assert history(job) == [(1, "released")]
    assert reclaimed(job).failures == 0


def test_however_often_it_is_handed_back_it_is_not_dead_lettered():
    job = claimed(max_attempts=1)
    for _ in range(5):
        send(report(job, Released()))
        job = reclaimed(job)

    assert (row(job).attempt, row(job).failures) == (6, 0)


@process
def test_running_handlers_may_finish_and_nothing_new_is_claimed(tmp_path):
    with worker("--poll", "0.1") as stopping:
        held = started(tmp_path / "job")
        stopping.send(signal.SIGTERM)
        stopping.wait_for("action=worker_stopping", "reason=SIGTERM", "running=1")
        late = enqueue("write", tmp_path / "journal", "late")
        held.go()
        assert stopping.wait() == 0

    assert (read(held.job).job_state, outcomes(held.job)) == (JobState.SUCCEEDED, [(1, "succeeded")])
    assert (read(late).job_state, read(late).attempt) == (JobState.READY, 0)


@process
def test_what_stops_when_its_time_is_up_is_handed_back_and_runs_elsewhere(tmp_path):
    with worker("--poll", "0.1", "--shutdown-timeout", "0.2") as stopping:
        held = started(tmp_path / "job", "hold_obediently")
        stopping.send(signal.SIGTERM)
        assert stopping.wait() == 0
    assert (read(held.job).job_state, read(held.job).failures) == (JobState.READY, 0)

    held.go()
    assert run_worker("--drain").code == 0
    assert outcomes(held.job) == [(1, "released"), (2, "succeeded")]
    assert read(held.job).failures == 0


@process
def test_a_job_whose_code_still_runs_is_never_handed_back():
    """Its lease lapses instead, when the process is long gone."""
    with worker("--poll", "0.1", "--shutdown-timeout", "0.2") as stopping:
        deaf = enqueue("sleep_for_ever")
        wait_until(lambda: read(deaf).started_at)  # and not only claimed: that would be handed back
        stopping.send(signal.SIGTERM)
        assert stopping.wait() == 0

    assert read(deaf).job_state is JobState.RUNNING
    assert read(deaf).lease_expires_at > datetime.now(UTC)
    assert outcomes(deaf) == []


@process
def test_a_stop_under_load_loses_nothing_and_costs_no_failure(tmp_path):
    jobs = [enqueue("write_slowly", tmp_path / "journal", str(number)) for number in range(40)]
    with worker("--poll", "0.05", "--concurrency", "4") as stopping:
        stopping.wait_for("outcome=succeeded")
        stopping.send(signal.SIGTERM)
        assert stopping.wait() == 0
    assert not [job for job in jobs if read(job).job_state is JobState.RUNNING]

    assert run_worker("--drain").code == 0
    assert {(read(job).job_state, read(job).failures) for job in jobs} == {(JobState.SUCCEEDED, 0)}
