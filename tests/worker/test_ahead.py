"""Worker processes that claim quick jobs ahead of their slots: what that costs, and who gets them back."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager

import pytest

from django_backwave import operations
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from tests import processes
from tests.factories import ready
from tests.processes import journal, wait_until
from tests.worker.support import (
    HANDLERS,
    enqueue_many,
    run_worker,
    wait_for_lapse,
    worker,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.django_db(transaction=True),
    pytest.mark.only_on("sqlite", "postgres"),
]

SLOTS = 2
FEW = ("--concurrency", str(SLOTS), "--poll", "0.1")
SHORT = (*FEW, "--lease", "4")
GRACE = 8.0  # for a busy machine


def patient_worker(*arguments, **environment):
    """Run a worker that hands nothing back because it has waited for long."""
    return processes.worker(*arguments, DJANGO_SETTINGS_MODULE="tests.worker.patient", **environment)


class Crowd:
    """Quick jobs, by which a worker learns that it may claim ahead; and behind them some that hold on."""

    def __init__(self, folder, count=10):
        self.folder = folder
        self.folder.mkdir()
        self.quick = enqueue_many("write", [(folder / "quick", str(number)) for number in range(300)])
        self.holding = enqueue_many("hold", [(folder,)] * count)

    def rows(self):
        return list(Job.objects.filter(pk__in=self.holding).order_by("pk"))

    def states(self):
        return [row.job_state for row in self.rows()]

    @property
    def started(self):
        return [line for line in journal(self.folder / "journal") if line.startswith("started")]

    def wait_until_held(self):
        """Wait until all slots hold on, and more has been claimed ahead."""
        wait_until(lambda: len(self.started) == SLOTS, what=lambda: self.started)
        wait_until(lambda: len(self.running()) > SLOTS, what=lambda: self.states())

    def running(self):
        return [row for row in self.rows() if row.job_state is JobState.RUNNING]

    def wait_until_handed_back(self):
        """Wait until nothing is held but what runs, and return how long that took."""
        began = time.monotonic()
        wait_until(lambda: len(self.running()) == SLOTS, what=lambda: self.states())
        return time.monotonic() - began

    def go(self):
        (self.folder / "go").touch()


@contextmanager
def a_worker_that_holds_on(crowd, arguments=FEW, run=patient_worker):
    """Run a worker until it has all slots full, and more in its hands."""
    with run(*arguments) as process:
        crowd.wait_until_held()
        yield process


def assert_unharmed(rows):
    """Assert that jobs are READY as if nobody had ever claimed them, but for the attempts' numbers."""
    assert {row.job_state for row in rows} == {JobState.READY}
    assert {(row.failures, row.worker, row.lease_expires_at, row.started_at) for row in rows} == {
        (0, "", None, None)
    }
    assert not Attempt.objects.filter(job_id__in=[row.pk for row in rows]).exists()


def test_quick_jobs_are_claimed_ahead_and_all_of_them_run_once(tmp_path):
    crowd = Crowd(tmp_path / "jobs")
    with a_worker_that_holds_on(crowd) as process:
        crowd.go()
        wait_until(lambda: set(crowd.states()) == {JobState.SUCCEEDED}, what=crowd.states)
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert crowd.started == ["started 1"] * 10
    assert sorted(journal(crowd.folder / "quick"), key=int) == [str(number) for number in range(300)]
    assert {row.failures for row in crowd.rows()} == {0}


def test_a_kill_costs_what_was_claimed_ahead_one_failure_and_nobody_its_last(tmp_path):
    """G6: who has only one try is not claimed before there is a slot for it."""
    crowd = Crowd(tmp_path / "jobs", count=0)
    file = crowd.folder / "last"
    last, crowd.holding = [], []
    for number in range(10):  # one after the other in the queue
        crowd.holding += enqueue_many("hold", [(crowd.folder,)])
        last.append(_with_one_try(file, str(number)))
    with a_worker_that_holds_on(crowd, SHORT) as killed:
        wait_until(lambda: _succeeded(last) == len(journal(file)))  # what has ended is written
        killed.send(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    ahead = crowd.running()
    begun = set(journal(file))
    unbegun = [job for number, job in enumerate(last) if str(number) not in begun]
    assert unbegun, "the slots were full before"
    assert [(row.job_state, row.attempt) for row in _read(unbegun)] == [(JobState.READY, 0)] * len(unbegun)

    for row in ahead:
        wait_for_lapse(row)
    crowd.go()
    assert run_worker("--drain").code == 0

    rows = {row.pk: row for row in crowd.rows()}
    assert {row.job_state for row in rows.values()} == {JobState.SUCCEEDED}
    assert {rows[row.pk].failures for row in ahead} == {1}
    assert {row.failures for row in rows.values() if row.pk not in {one.pk for one in ahead}} <= {0}
    assert {(row.job_state, row.attempt) for row in _read(last)} == {(JobState.SUCCEEDED, 1)}
    assert sorted(journal(file), key=int) == [str(number) for number in range(10)]


def _with_one_try(file, line):
    payload = f'{{"args":["{file}","{line}"],"kwargs":{{}}}}'
    return ready(now=None, name=f"{HANDLERS}.write", payload=payload, max_attempts=1).pk


def _succeeded(ids):
    return sum(row.job_state is JobState.SUCCEEDED for row in _read(ids))


def _read(ids):
    return list(Job.objects.filter(pk__in=ids).order_by("pk"))


def test_what_waits_behind_a_handler_that_turns_slow_is_another_workers_within_a_second(tmp_path):
    """And it costs nobody a failure. The slow worker does not take it a second time."""
    crowd = Crowd(tmp_path / "jobs", count=SLOTS)
    behind = enqueue_many("write", [(crowd.folder / "behind", str(number)) for number in range(20)])
    with patient_worker(*FEW, BACKWAVE_TEST_PATIENCE="0.25") as slow:
        wait_until(lambda: len(crowd.started) == SLOTS)
        wait_until(lambda: any(row.attempt for row in _read(behind)), what="a claim ahead")
        began = time.monotonic()
        wait_until(lambda: {row.job_state for row in _read(behind)} == {JobState.READY})
        assert time.monotonic() - began < 1.0 + GRACE
        assert_unharmed(_read(behind))
        attempts = {row.pk: row.attempt for row in _read(behind)}

        with worker(*FEW):
            wait_until(lambda: {row.job_state for row in _read(behind)} == {JobState.SUCCEEDED})

        assert set(crowd.states()) == {JobState.RUNNING}
        assert not slow.said("outcome=stale")
        crowd.go()
        wait_until(lambda: set(crowd.states()) == {JobState.SUCCEEDED})

    assert {row.failures for row in _read(behind)} == {0}
    # The other may have handed some back, too, where the machine was slow; the slow one ran none of them.
    assert all(row.attempt > attempts[row.pk] for row in _read(behind))
    [other] = set(Attempt.objects.filter(job__in=behind).values_list("worker", flat=True))
    [mine] = set(Attempt.objects.filter(job__in=crowd.holding).values_list("worker", flat=True))
    assert other != mine
    assert len(journal(crowd.folder / "behind")) == 20


def test_a_stop_hands_back_at_once_what_waits_while_what_runs_goes_on(tmp_path):
    """G11."""
    crowd = Crowd(tmp_path / "jobs")
    with a_worker_that_holds_on(crowd) as process:
        process.send(signal.SIGTERM)
        assert crowd.wait_until_handed_back() < 1.0 + GRACE

        assert process.running
        running = {row.pk for row in crowd.running()}
        waiting = [row for row in crowd.rows() if row.pk not in running]
        assert_unharmed(waiting)
        assert any(row.attempt for row in waiting)
        crowd.go()
        assert process.wait() == 0

    assert len(crowd.started) == SLOTS
    assert {row.job_state for row in crowd.rows() if row.pk in running} == {JobState.SUCCEEDED}
    assert process.said("action=worker_stopped", "stuck=0")


@pytest.mark.parametrize("what", [{"queue": "default"}, {"name": f"{HANDLERS}.hold"}], ids=["queue", "name"])
def test_a_pause_hands_back_what_waits_while_what_runs_goes_on(tmp_path, what):
    crowd = Crowd(tmp_path / "jobs")
    with a_worker_that_holds_on(crowd, SHORT) as process:
        operations.pause(**what, actor="7 anna")
        process.wait_for("action=pauses_changed")
        assert crowd.wait_until_handed_back() < 1.0 + GRACE

        running = {row.pk for row in crowd.running()}
        waiting = [row for row in crowd.rows() if row.pk not in running]
        assert_unharmed(waiting)
        crowd.go()
        wait_until(lambda: not crowd.running())
        assert {row.job_state for row in crowd.rows() if row.pk in running} == {JobState.SUCCEEDED}
        assert_unharmed([row for row in crowd.rows() if row.pk not in running])

        operations.resume(**what)
        wait_until(lambda: set(crowd.states()) == {JobState.SUCCEEDED}, what=crowd.states)

    assert {row.failures for row in crowd.rows()} == {0}
