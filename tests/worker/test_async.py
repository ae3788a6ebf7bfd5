"""Async handlers in a real worker: their outcomes, their cancellation, their connections."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.operate import cancel
from tests import processes
from tests.app.models import Entry
from tests.factories import ready
from tests.processes import journal, wait_until
from tests.worker.support import (
    SETTINGS,
    Held,
    _payload,
    outcomes,
    read,
    wait_for_lapse,
    wait_for_renewal,
    wait_for_state,
)
from tests.worker.support import enqueue as enqueue_sync

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

MODULE = "tests.worker.coroutines"
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": SETTINGS, "BACKWAVE_TEST_MODULES": MODULE}


def worker(*arguments: str) -> Any:
    return processes.worker(*arguments, **ENVIRONMENT)


def drain() -> processes.Process:
    return processes.run_command("backwave_worker", "--drain", **ENVIRONMENT)


def enqueue(handler: str, *args: Any, **options: Any) -> Job:
    return ready(now=None, name=f"{MODULE}.{handler}", payload=_payload(args), **options)


def holding(folder: Path, handler: str = "hold", *args: str) -> Held:
    """Return a held async job whose handler runs, in the worker that runs already."""
    held = Held.__new__(Held)
    folder.mkdir()
    held.folder = folder
    held.job = enqueue(handler, folder, *args)
    held.wait_for("started 1")
    return held


def test_async_and_sync_handlers_run_in_one_worker(tmp_path):
    """G2."""
    jobs = [enqueue("add", n, 1) for n in range(30)]
    plain = [enqueue_sync("write", tmp_path / "journal", f"{n}") for n in range(10)]

    assert drain().code == 0

    assert [read(job).output for job in jobs] == [n + 1 for n in range(30)]
    assert {read(job).job_state for job in plain} == {JobState.SUCCEEDED}


def test_a_failing_coroutine_is_a_failed_attempt():
    """G6."""
    job = enqueue("fail", max_attempts=1)

    process = drain()

    assert (read(job).job_state, outcomes(job)) == (JobState.DEAD_LETTERED, [(1, "failed")])
    assert process.said("ValueError: it cannot be done")


def test_cancel_cancels_the_coroutine(tmp_path):
    """G8: a running async handler is cancelled at its next heartbeat."""
    with worker("--lease", "4"):
        held = holding(tmp_path / "a")

        cancel([held.job.pk], using="default")

        row = wait_for_state(held.job, JobState.CANCELLED)
    assert row.cause == "cancel requested"
    assert held.journal == ["started 1", "cancelled"]
    assert outcomes(held.job) == [(1, "cancelled")]


def test_a_lost_lease_cancels_the_coroutine(tmp_path):
    """G9: a worker that was frozen past its lease cancels the handler, and nothing of it is recorded."""
    with worker("--lease", "1") as frozen:
        held = holding(tmp_path / "a")
        wait_for_renewal(held.job)  # between two heartbeats it holds no lock
        frozen.send(signal.SIGSTOP)
        wait_for_lapse(held.job)
        with worker("--lease", "10"):
            held.wait_for("started 2")
            frozen.send(signal.SIGCONT)
            frozen.wait_for("outcome=stale", f"job={held.job.pk}")
            held.wait_for("cancelled")
            held.go()
            wait_for_state(held.job, JobState.SUCCEEDED)
    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]


def test_a_shutdown_hands_the_coroutine_back(tmp_path):
    """G11."""
    with worker("--shutdown-timeout", "0.2") as process:
        held = holding(tmp_path / "a")

        process.send(signal.SIGTERM)

        assert process.wait() == 0
    assert held.journal == ["started 1", "cancelled"]
    assert (read(held.job).job_state, read(held.job).failures) == (JobState.READY, 0)
    assert outcomes(held.job) == [(1, "released")]


def test_a_coroutine_has_stopped_only_when_its_thread_has(tmp_path):
    """G11: cancelled, but its thread still runs: never handed back, the lease lapses."""
    with worker("--shutdown-timeout", "0.2") as process:
        held = holding(tmp_path / "a", "hold_in_thread")

        process.send(signal.SIGTERM)

        assert process.wait() == 0
        assert process.said("action=handler_stuck", f"job={held.job.pk}")
    assert held.journal == ["started 1", "cancelled"]
    assert read(held.job).job_state is JobState.RUNNING
    assert outcomes(held.job) == []


def test_tasks_left_behind_are_cancelled_before_the_job_ends(tmp_path):
    """Nothing of a handler runs on after its outcome was reported."""
    job = enqueue("leave_children", tmp_path)

    assert drain().code == 0

    assert journal(tmp_path / "journal") == ["child left True", "child ended"]
    assert read(job).job_state is JobState.SUCCEEDED


def test_a_system_exit_in_a_handlers_own_task_ends_no_thread():
    """The loop goes on, and so does every other handler."""
    first, second = enqueue("end_in_a_child"), enqueue("add", 1, 2)

    assert drain().code == 0

    assert (read(first).output, read(second).output) == ("alive", 3)


@pytest.mark.only_on("postgres", "mysql")  # SQLite has one writer at a time: the other would only wait
def test_a_handlers_transaction_takes_in_nobody_elses_writes(tmp_path):
    """Each slot has a connection of its own: what another handler writes stands, whatever is rolled back."""
    with worker():
        held = holding(tmp_path / "a", "write_in_transaction", "rolled back")
        other = enqueue("write", tmp_path, "kept")
        wait_for_state(other, JobState.SUCCEEDED)
        held.go()
        wait_for_state(held.job, JobState.SUCCEEDED)
    assert list(Entry.objects.values_list("key", flat=True)) == ["kept"]


def test_a_transaction_left_open_is_rolled_back(tmp_path):
    """The next handler in that slot begins clean."""
    enqueue("leave_transaction_open", "lost")

    process = drain()

    assert process.said("action=transaction_left_open")
    assert not Entry.objects.exists()


def test_many_slots_are_used_again(tmp_path):
    """The database connections of a worker are bounded by its concurrency."""
    jobs = [enqueue("write", tmp_path, f"{n}") for n in range(40)]

    process = processes.run_command("backwave_worker", "--drain", "--concurrency", "4", **ENVIRONMENT)

    assert process.code == 0
    wait_until(lambda: Entry.objects.count() == 40)
    assert {read(job).job_state for job in jobs} == {JobState.SUCCEEDED}


def test_a_broken_slot_ends_the_worker(tmp_path):
    """G2: what breaks outside of a handler must not leave a job held for ever."""
    with worker("--concurrency", "2") as process:
        held = holding(tmp_path / "a", "break_the_slot")
        held.go()

        assert process.wait() == 1
        assert process.said("action=worker_broken", "thread=backwave-loop")


def test_a_call_in_another_thread_is_part_of_the_handler(tmp_path):
    """G11: what `asyncio.to_thread` began runs on after the cancellation, so nobody else may begin."""
    with worker("--lease", "30", "--shutdown-timeout", "0") as stopping:
        held = holding(tmp_path / "a", "charge_in_thread")
        stopping.send(signal.SIGTERM)
        with worker("--lease", "30"):
            assert stopping.wait() == 0
            assert stopping.said("action=handler_stuck", f"job={held.job.pk}")
            assert read(held.job).job_state is JobState.RUNNING
    assert held.journal == ["started 1"]


def test_a_cancel_waits_for_a_call_in_another_thread(tmp_path):
    """G8: a job is CANCELLED when its code has stopped, and not while it may still charge."""
    with worker("--lease", "4") as process:
        held = holding(tmp_path / "a", "charge_in_thread")
        beat = read(held.job).lease_expires_at
        cancel([held.job.pk], using="default")
        wait_until(lambda: read(held.job).lease_expires_at != beat, what=process)
        assert read(held.job).job_state is JobState.RUNNING

        held.go()

        wait_for_state(held.job, JobState.CANCELLED)
    assert held.journal == ["started 1", "charged 1"]


def test_a_handler_may_take_its_time_to_clean_up(tmp_path):
    """G8: it is cancelled once, not again at each heartbeat."""
    with worker("--lease", "4"):
        held = holding(tmp_path / "a", "clean_up_slowly")

        cancel([held.job.pk], using="default")

        wait_for_state(held.job, JobState.CANCELLED)
    assert held.journal == ["started 1", "cleaned up"]


def test_a_handler_that_cancels_everybody_breaks_no_slot(tmp_path):
    """G2: slots go on, whoever cancels them."""
    with worker("--lease", "5"):
        for number in range(2):
            held = holding(tmp_path / f"{number}")
            held.go()
            wait_for_state(held.job, JobState.SUCCEEDED)
        wild = enqueue("cancel_everybody")
        wait_for_state(wild, JobState.SUCCEEDED)

        later = [enqueue("add", number, 1) for number in range(5)]

        for job in later:
            wait_for_state(job, JobState.SUCCEEDED)
    assert read(wild).output == "alive"


def test_an_exception_that_takes_no_attributes_ends_no_worker():
    """G2: whatever a handler raises is a failure, and ends no thread."""
    job, other = enqueue("refuse_the_card", max_attempts=1), enqueue("add", 1, 2)

    process = drain()

    assert process.code == 0
    assert read(job).cause == "CardRefusedError: no money"
    assert read(other).output == 3
