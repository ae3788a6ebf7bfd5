"""Workers that are killed, frozen, stopped or starved: nothing is lost, nothing counts twice."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime

import pytest
from django.db import connection

from django_backwave.core.driver import BEAT_EVERY, Options
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.worker.worker import MISSED_ROUNDS, Worker
from tests.processes import journal, wait_until
from tests.worker.support import (
    Held,
    enqueue,
    outcomes,
    read,
    run_worker,
    started,
    wait_for_lapse,
    wait_for_renewal,
    wait_for_state,
    worker,
)

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

SHORT = ("--lease", "1", "--poll", "0.1")


def test_a_killed_workers_job_is_done_by_another(tmp_path):
    """G2, G6."""
    with worker(*SHORT) as killed:
        held = Held(tmp_path / "job", "hold_the_first")
        held.wait_for(f"started 1 in {killed.pid}")
        killed.send(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    wait_for_lapse(held.job)

    other = run_worker("--drain")

    row = read(held.job)
    assert (row.job_state, row.attempt, row.failures) == (JobState.SUCCEEDED, 2, 1)
    assert row.output == "attempt 2"
    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]
    assert other.said("action=lease_expired", f"job={held.job.pk}", "attempt=1", "next=ready")


def test_a_lease_that_nobody_has_lost_is_taken_by_nobody(tmp_path):
    """G3: heartbeats keep it for several times its length."""
    arguments = ("--lease", "4", "--poll", "0.1")
    with worker(*arguments), worker(*arguments):
        held = started(tmp_path / "job")
        begun = read(held.job).lease_expires_at
        wait_until(lambda: (read(held.job).lease_expires_at - begun).total_seconds() > 6)
        held.go()
        row = wait_for_state(held.job, JobState.SUCCEEDED)

    assert (row.attempt, row.failures) == (1, 0)
    assert held.journal == ["started 1"]


def test_a_frozen_workers_late_result_is_refused(tmp_path):
    """G4: it wakes up long after its lease, and changes nothing."""
    with worker(*SHORT) as frozen:
        held = Held(tmp_path / "job", "hold_the_first")
        held.wait_for(f"started 1 in {frozen.pid}")
        wait_for_renewal(held.job)  # between two heartbeats it holds no lock
        frozen.send(signal.SIGSTOP)
        wait_for_lapse(held.job)
        assert run_worker("--drain").code == 0
        before = (_row(held.job), outcomes(held.job))

        held.go()
        frozen.send(signal.SIGCONT)
        frozen.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale", "refused=")
        assert "ended 1" in held.journal, "its handler has run to its end"

    assert (_row(held.job), outcomes(held.job)) == before
    assert read(held.job).output == "attempt 2"
    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]


def test_a_job_that_kills_its_worker_ends_among_the_dead_letters(tmp_path):
    """G6. Any worker sweeps any job, whatever queue it serves."""
    file = tmp_path / "journal"
    poison = enqueue("kill_yourself", file, max_attempts=2)
    with worker("--queue", "elsewhere") as sweeper:
        for _ in range(2):
            with worker(*SHORT, "--queue", "default") as victim:
                assert victim.wait() == -signal.SIGKILL
            wait_until(lambda: read(poison).job_state is not JobState.RUNNING)
        sweeper.wait_for("ERROR", "action=lease_expired", f"job={poison.pk}", "next=dead-lettered")

    row = read(poison)
    assert (row.job_state, row.failures, row.cause) == (JobState.DEAD_LETTERED, 2, "lease lapsed")
    assert journal(file) == ["started 1", "started 2"]
    assert outcomes(poison) == [(1, "abandoned"), (2, "abandoned")]


# Stops in order.


def test_a_stopped_worker_lets_its_handlers_finish(tmp_path):
    """G11."""
    with worker("--poll", "0.1") as process:
        held = started(tmp_path / "job")
        process.send(signal.SIGTERM)
        process.wait_for("action=worker_stopping", "reason=SIGTERM", "running=1")
        late = enqueue("write", tmp_path / "journal", "late")
        held.go()
        assert process.wait() == 0

    assert (read(held.job).job_state, outcomes(held.job)) == (JobState.SUCCEEDED, [(1, "succeeded")])
    assert read(late).job_state is JobState.READY, "nothing is claimed after a stop"
    assert process.said("action=worker_stopped", "stuck=0")


def test_what_stops_when_its_time_is_up_is_handed_back_and_runs_elsewhere(tmp_path):
    """G11: at the price of no failure."""
    with worker("--poll", "0.1", "--shutdown-timeout", "0.2") as process:
        held = started(tmp_path / "job", "hold_obediently")
        process.send(signal.SIGTERM)
        assert process.wait() == 0
    row = read(held.job)
    assert (row.job_state, row.failures, row.worker) == (JobState.READY, 0, "")
    assert outcomes(held.job) == [(1, "released")]

    held.go()
    assert run_worker("--drain").code == 0
    assert (read(held.job).job_state, read(held.job).output) == (JobState.SUCCEEDED, 2)
    assert outcomes(held.job) == [(1, "released"), (2, "succeeded")]


def test_a_handler_that_hears_nobody_is_left_behind_with_its_lease(tmp_path):
    """G11, §9.21: the process ends in time and with 0; the job is not handed back."""
    with worker("--poll", "0.1", "--shutdown-timeout", "0.2") as process:
        deaf = enqueue("sleep_for_ever")
        wait_until(lambda: read(deaf).started_at)  # and not only claimed: that would be handed back
        begun = time.monotonic()
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert 0.2 + 3 <= time.monotonic() - begun < 0.2 + 3 + 15
    assert process.said("action=handler_stuck", f"job={deaf.pk}", "name=tests.worker.handlers.sleep_for_ever")
    row = read(deaf)
    assert row.job_state is JobState.RUNNING
    assert row.lease_expires_at > datetime.now(UTC)
    assert outcomes(deaf) == []


def test_a_second_signal_ends_the_worker_at_once(tmp_path):
    with worker("--poll", "0.1") as process:
        held = started(tmp_path / "job")
        process.send(signal.SIGINT)
        process.wait_for("action=worker_stopping", "reason=SIGINT")
        process.send(signal.SIGTERM)
        assert process.wait(deadline=15) == 128 + signal.SIGTERM

    assert process.said("action=worker_killed", "reason=second_signal")
    assert read(held.job).job_state is JobState.RUNNING


def test_a_process_that_a_handler_forked_ends_at_a_signal():
    """Not as the worker, which is asked to stop: whoever terminates it may wait for its end."""
    job = enqueue("terminate_a_child")

    assert run_worker("--drain").code == 0
    assert read(job).output == -signal.SIGTERM


# Refusals.


def test_a_module_that_cannot_be_imported_stops_the_worker():
    process = run_worker("--drain", BACKWAVE_TEST_MODULES="tests.worker.broken")

    assert process.code == 1
    assert process.said("'tests.worker.broken'", "failed while it was imported", "this module is broken")
    assert not process.said("action=worker_started")


def test_a_database_without_our_tables_is_refused(tmp_path):
    empty = {"sqlite": str(tmp_path / "empty.sqlite3"), "postgresql": "postgres", "mysql": "mysql"}

    process = run_worker("--drain", BACKWAVE_TEST_DATABASE_NAME=empty[connection.vendor])

    assert process.code == 1
    assert process.said(
        "CommandError: Database 'default' has no table django_backwave_", "and 6 more", "manage.py migrate"
    )
    assert not process.said("Traceback")


def test_a_database_before_a_migration_is_refused():
    """Else every claim would fail, for ever, in a worker that looks alive."""
    table, column = Job._meta.db_table, Job._meta.get_field("generation")
    with connection.schema_editor() as editor:
        editor.execute(f"ALTER TABLE {editor.quote_name(table)} RENAME COLUMN generation TO old")
    try:
        process = run_worker("--drain")
    finally:
        with connection.schema_editor() as editor:
            editor.execute(f"ALTER TABLE {editor.quote_name(table)} RENAME COLUMN old TO {column.column}")

    assert process.code == 1
    assert process.said(
        "CommandError: Database 'default' has no column django_backwave_job.generation",
        "manage.py migrate --database default",
    )


# The worker's own threads.


def test_the_heartbeat_file_is_touched_again_and_again(tmp_path):
    file = tmp_path / "alive"
    with worker("--heartbeat-file", str(file)):
        wait_until(file.exists)
        first = file.stat().st_mtime_ns
        wait_until(lambda: file.stat().st_mtime_ns > first)


@pytest.mark.parametrize("hanging", ["pump", "heart"])
def test_the_heartbeat_file_is_left_alone_while_a_thread_of_the_worker_hangs(tmp_path, hanging):
    """§9.22: both have to make their rounds."""
    file = tmp_path / "alive"
    idle = Worker(Options(), using="default", heartbeat_file=file)
    getattr(idle, hanging).round_at = time.monotonic() - MISSED_ROUNDS * BEAT_EVERY - 1
    idle._touch_heartbeat_file()
    assert not file.exists()

    getattr(idle, hanging).round_at = time.monotonic()
    idle._touch_heartbeat_file()
    assert file.exists()
    idle._slots._coroutines._loop.close()  # Python warns of one that was never run


@pytest.mark.parametrize("thread", ["backwave-pump", "backwave-heart", "backwave-notifier"])
def test_a_thread_of_the_worker_that_dies_ends_the_worker(thread):
    """§9.22: with an exit code that a supervisor sees."""
    with worker(*SHORT) as process:
        enqueue("kill_thread", thread)
        assert process.wait() == 1

    assert process.said("CRITICAL", "action=worker_broken", f"thread={thread}")


def test_a_handlers_thread_that_dies_ends_the_worker(tmp_path):
    """§9.22. What it was given runs again elsewhere, after the lease."""
    with worker(*SHORT, "--concurrency", "2") as process:
        murder = enqueue("kill_idle_threads")
        wait_for_state(murder, JobState.SUCCEEDED)
        for number in range(4):
            enqueue("write", tmp_path / "journal", str(number))
        assert process.wait() == 1
    assert process.said("CRITICAL", "action=worker_broken", "thread=backwave-handler-")
    for job in Job.objects.filter(state=JobState.RUNNING):
        wait_for_lapse(job)

    assert run_worker("--drain").code == 0
    assert set(journal(tmp_path / "journal")) == {"0", "1", "2", "3"}
    assert Job.objects.filter(state=JobState.SUCCEEDED).count() == 5


def _row(job):
    return Job.objects.filter(pk=job.pk).values().get()
