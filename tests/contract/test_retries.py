"""Several attempts: what Django's interface, which knows no retry, tells of them through our backend."""

from __future__ import annotations

import pytest

from django_backwave import JobState
from django_backwave.compat import TaskResultStatus, task_finished, task_started
from django_backwave.models import Job
from tests.contract.conftest import WORKER, run_due


@pytest.fixture
def told():
    """Collect the results that signals carry."""
    told = []

    def receive(signal, task_result, **_):
        told.append(("started" if signal is task_started else "finished", task_result))

    for signal in (task_started, task_finished):
        signal.connect(receive)
    yield told
    for signal in (task_started, task_finished):
        signal.disconnect(receive)


@pytest.fixture
def run_again(transactional_db):
    """Return a function that runs what is due after the waits of all retries."""

    def run_again():
        run_due()
        Job.objects.filter(state=JobState.READY).update(due_at="2020-01-01T00:00:00Z")

    return run_again


def test_signals_count_the_attempts(run_again, ours, define, told):
    """Monitors read attempts, workers and errors there, and they read no row."""
    result = define("fail").using(max_attempts=2).enqueue()

    run_again()
    run_again()

    assert [(name, one.attempts, len(one.errors)) for name, one in told] == [
        ("started", 1, 0),
        ("started", 2, 1),
        ("finished", 2, 2),
    ]
    _, again, end = (one for _, one in told)
    assert again.worker_ids == end.worker_ids == [WORKER, WORKER]
    assert again.started_at == end.started_at < again.last_attempted_at <= end.finished_at
    result.refresh()
    assert (result.attempts, len(result.errors), result.status) == (2, 2, TaskResultStatus.FAILED)
    assert result.started_at == end.started_at


def test_a_job_between_two_attempts_is_ready_with_an_error(run_again, ours, define):
    result = define("fail").enqueue()

    run_again()
    result.refresh()

    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
    assert (result.finished_at, result.is_finished) == (None, False)
