"""Time-outs, expiry and asked-for retries in real workers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_backwave.core.policy import Backoff
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from tests import processes
from tests.app.models import Entry
from tests.factories import ready
from tests.processes import journal, wait_until
from tests.worker.support import SETTINGS, Held, _payload, outcomes, read, started, wait_for_state
from tests.worker.support import enqueue as enqueue_plain

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": SETTINGS,
    "BACKWAVE_TEST_MODULES": "tests.worker.slow tests.worker.coroutines",
}
SOON = Backoff(base=1, jitter=0)


def worker(*arguments: str) -> Any:
    return processes.worker(*arguments, **ENVIRONMENT)


def drain() -> processes.Process:
    return processes.run_command("backwave_worker", "--drain", **ENVIRONMENT)


def enqueue(handler: str, *args: Any, module: str = "slow", **options: Any) -> Job:
    name = f"tests.worker.{module}.{handler}"
    return ready(now=None, name=name, payload=_payload(args), backoff=SOON, **options)


def holding(folder: Path, handler: str, **options: Any) -> Held:
    """Return a job in a folder of its own, whose handler runs in the worker that runs already."""
    held = Held.__new__(Held)
    folder.mkdir()
    held.folder = folder
    held.job = enqueue(handler, folder, **options)
    held.wait_for("started 1")
    return held


def only_attempt(job: Job) -> Attempt:
    return Attempt.objects.get(job_id=job.pk)


def test_a_handler_that_stops_at_its_time_out_has_failed(tmp_path):
    with worker() as process:
        held = started(tmp_path / "job", "hold_obediently", timeout_seconds=0.3, max_attempts=1)
        row = wait_for_state(held.job, JobState.DEAD_LETTERED)
        process.wait_for("ERROR", "outcome=timed_out", "failures=1/1", "next=dead-lettered")

    assert outcomes(held.job) == [(1, "timed_out")]
    assert (row.failures, row.cause) == (1, "TimedOut: it ran for longer than its time-out of 0.3 s")
    attempt = only_attempt(held.job)
    assert attempt.error_class == "django_backwave.exceptions.TimedOut"
    assert "raise_if_stopped" in attempt.traceback, "it says where the handler was"
    assert attempt.started_at is not None
    assert not process.said("action=handler_overdue")


def test_a_handler_in_time_is_left_alone(tmp_path):
    job = enqueue_plain("write", tmp_path / "journal", "in time", timeout_seconds=30.0)

    assert drain().code == 0
    assert outcomes(job) == [(1, "succeeded")]


def test_a_handler_that_does_not_stop_is_overlapped_and_its_result_refused(tmp_path):
    with worker("--concurrency", "4") as process:
        held = holding(tmp_path / "job", "ignore_the_first", timeout_seconds=0.3)
        process.wait_for("ERROR", "action=handler_overdue", f"job={held.job.pk}", "attempt=1", "timeout=0.3")
        process.wait_for("WARNING", "outcome=timed_out", "attempt=1", "next=in ")
        row = wait_for_state(held.job, JobState.SUCCEEDED)
        assert held.journal == ["started 1", "started 2", "ended 2 lease lost False"]
        held.go()
        process.wait_for("WARNING", "action=late_result_refused", "attempt=1", "outcome=succeeded")
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert held.journal[-1] == "ended 1 lease lost True"
    assert outcomes(held.job) == [(1, "timed_out"), (2, "succeeded")]
    assert (read(held.job).output, row.failures) == ("attempt 2", 1)
    assert "still runs" in Attempt.objects.get(job_id=held.job.pk, number=1).message


def test_a_slot_is_free_again_when_its_handler_has_ended(tmp_path):
    with worker("--concurrency", "2") as process:
        held = holding(tmp_path / "job", "ignore_the_first", timeout_seconds=0.3, max_attempts=1)
        process.wait_for("action=handler_overdue")
        wait_for_state(held.job, JobState.DEAD_LETTERED)
        held.go()
        process.wait_for("action=late_result_refused")
        both = [started(tmp_path / f"{number}") for number in range(2)]
        for one in both:
            one.go()
            wait_for_state(one.job, JobState.SUCCEEDED)


def test_an_async_handler_is_cancelled(tmp_path):
    with worker():
        held = holding(tmp_path / "job", "hold", module="coroutines", timeout_seconds=0.3, max_attempts=1)
        wait_for_state(held.job, JobState.DEAD_LETTERED)

    assert held.journal == ["started 1", "cancelled"]
    assert outcomes(held.job) == [(1, "timed_out")]
    assert "CancelledError" in only_attempt(held.job).traceback


def test_an_async_handler_whose_thread_goes_on_is_overdue(tmp_path):
    with worker() as process:
        held = holding(
            tmp_path / "job", "hold_in_thread", module="coroutines", timeout_seconds=0.3, max_attempts=1
        )
        process.wait_for("action=handler_overdue")
        wait_for_state(held.job, JobState.DEAD_LETTERED)
        held.go()
        process.wait_for("action=late_result_refused", "outcome=timed_out")

    assert outcomes(held.job) == [(1, "timed_out")]


def test_a_worker_with_too_many_stuck_slots_hands_back_and_ends_with_1(tmp_path):
    with worker("--concurrency", "3", "--shutdown-timeout", "0.2") as process:
        well = started(tmp_path / "well", "hold_obediently")
        stuck = [
            holding(tmp_path / f"{number}", "ignore_the_first", timeout_seconds=0.5, max_attempts=1)
            for number in range(2)
        ]
        process.wait_for("CRITICAL", "action=worker_stuck", "overdue=2", "concurrency=3")
        assert process.wait() == 1

    assert [read(held.job).job_state for held in stuck] == [JobState.DEAD_LETTERED] * 2
    assert (read(well.job).job_state, read(well.job).failures) == (JobState.READY, 0)
    assert outcomes(well.job) == [(1, "released")]
    assert len(process.said("action=handler_stuck")) == 2


def test_a_stuck_worker_takes_nothing_more(tmp_path):
    with worker("--concurrency", "1") as process:
        holding(tmp_path / "stuck", "ignore_the_first", timeout_seconds=0.3, max_attempts=1)
        waiting = enqueue_plain("write", tmp_path / "journal", "x")
        assert process.wait() == 1

    assert (read(waiting).job_state, read(waiting).attempt) == (JobState.READY, 0)


def test_a_drain_does_not_wait_for_an_overdue_handler(tmp_path):
    held = Held.__new__(Held)
    held.folder = tmp_path / "job"
    held.folder.mkdir()
    held.job = enqueue("ignore_the_first", held.folder, timeout_seconds=0.3, max_attempts=1)

    process = drain()

    assert process.code == 0
    assert process.said("action=handler_stuck")
    assert outcomes(held.job) == [(1, "timed_out")]


# Atomic jobs.


def test_a_time_out_in_an_atomic_job_rolls_back(tmp_path):
    """G7."""
    with worker():
        held = holding(tmp_path / "job", "write_and_wait", timeout_seconds=0.5, max_attempts=1)
        wait_for_state(held.job, JobState.DEAD_LETTERED)

    assert outcomes(held.job) == [(1, "timed_out")]
    assert not Entry.objects.exists()


@pytest.mark.only_on("postgres", "mysql")
def test_an_atomic_job_that_does_not_stop_commits_nothing(tmp_path):
    """G7: the retry's writes are there once, and those of the first attempt are not."""
    with worker() as process:
        held = holding(tmp_path / "job", "write_and_ignore", timeout_seconds=0.3)
        process.wait_for("action=handler_overdue")
        wait_for_state(held.job, JobState.SUCCEEDED)
        held.go()
        process.wait_for("action=late_result_refused")

    assert list(Entry.objects.values_list("key", flat=True)) == [f"{held.folder} 2"]
    assert outcomes(held.job) == [(1, "timed_out"), (2, "succeeded")]


@pytest.mark.only_on("sqlite")
def test_an_atomic_job_that_has_the_database_to_itself_may_succeed_late(tmp_path):
    """G7: nobody can write its time-out meanwhile, so what it commits stands."""
    with worker("--concurrency", "4") as process:
        held = holding(tmp_path / "job", "write_and_ignore", timeout_seconds=0.3)
        process.wait_for("action=handler_overdue")
        held.go()
        process.wait_for("action=attempt_ended", "outcome=succeeded")
        wait_for_state(held.job, JobState.SUCCEEDED)
        other = enqueue_plain("write", tmp_path / "journal", "x")
        wait_for_state(other, JobState.SUCCEEDED)
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert outcomes(held.job) == [(1, "succeeded")]
    assert Entry.objects.count() == 1
    assert not process.said("action=attempt_ended", "outcome=timed_out")


@pytest.mark.only_on("sqlite")
def test_an_atomic_job_has_half_its_lease_on_sqlite(tmp_path):
    """§9.7: one that outlasts its lease costs its neighbours theirs."""
    with worker("--lease", "4"):
        held = holding(tmp_path / "job", "write_and_wait", max_attempts=1)
        row = wait_for_state(held.job, JobState.DEAD_LETTERED)

    assert row.cause == "TimedOut: it ran for longer than its time-out of 2 s"
    assert row.timeout_seconds is None


@pytest.mark.only_on("postgres", "mysql")
def test_an_atomic_job_has_no_time_out_of_itself_elsewhere(tmp_path):
    with worker("--lease", "4"):
        held = holding(tmp_path / "job", "write_and_wait", max_attempts=1)
        processes.wait_until(lambda: (timezone.now() - held.job.enqueued_at).total_seconds() > 5)
        held.go()
        wait_for_state(held.job, JobState.SUCCEEDED)


def test_a_completed_block_ends_the_time_out(tmp_path):
    """G7."""
    with worker() as process:
        held = holding(tmp_path / "job", "complete_and_wait", timeout_seconds=0.3)
        wait_for_state(held.job, JobState.SUCCEEDED)
        wait_until(lambda: (timezone.now() - held.job.enqueued_at).total_seconds() > 2)
        held.go()
        process.wait_for("action=attempt_ended", "outcome=succeeded")

    assert not process.said("action=handler_overdue")
    assert outcomes(held.job) == [(1, "succeeded")]


# Expiry.


def test_expired_jobs_never_run_and_hold_up_no_other(tmp_path):
    file = tmp_path / "journal"
    late = [enqueue_plain("write", file, "late", expires=-1.0, priority=5) for _ in range(25)]
    early = enqueue_plain("write", file, "in time", expires=60.0)

    process = drain()

    assert process.code == 0
    assert journal(file) == ["in time"]
    assert {(row.job_state, row.cause, row.attempt) for row in map(read, late)} == {
        (JobState.CANCELLED, "expired", 0)
    }
    assert read(early).job_state is JobState.SUCCEEDED
    assert len(process.said("WARNING", "action=job_expired", "next=cancelled")) == 25


def test_a_job_that_waits_for_its_retry_expires(tmp_path):
    with worker("--poll", "0.1"):
        job = enqueue("retry", 3600, expires=1.5)
        row = wait_for_state(job, JobState.CANCELLED)

    assert (row.cause, row.attempt, row.failures) == ("expired", 1, 1)
    assert outcomes(job) == [(1, "failed")]


# Retries that the handler asks for.


def test_a_handler_says_when_to_try_again():
    job = enqueue("retry", 600, "the gateway asks for patience")

    process = drain()

    row = read(job)
    assert (row.job_state, row.failures) == (JobState.READY, 1)
    assert row.cause == "Retry: the gateway asks for patience"
    assert 590 < (row.due_at - timezone.now()).total_seconds() <= 600
    assert process.said("WARNING", "outcome=failed", "failures=1/3", "next=in 600.0 s")


def test_it_is_dead_lettered_when_its_failures_are_used_up():
    job = enqueue("retry", 600, max_attempts=1)

    drain()

    assert (read(job).job_state, read(job).cause) == (JobState.DEAD_LETTERED, "Retry: again in 600 s")
