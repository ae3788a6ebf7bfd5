"""``backwave_worker --processes N``: children that die, hang, grow or do not start, and the supervisor."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_backwave.core.policy import Backoff
from django_backwave.core.states import JobState
from django_backwave.models import Job, Worker
from django_backwave.worker import supervisor
from django_backwave.worker.supervisor import Supervisor
from tests import processes
from tests.databases import child_environment
from tests.factories import ready
from tests.processes import LIFE, journal, wait_until
from tests.worker.support import (
    SETTINGS,
    Held,
    enqueue,
    enqueue_many,
    outcomes,
    read,
    run_worker,
    wait_for_state,
)
from tests.worker.test_reload import noticed

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

# Leases outlast each of these tests: whatever runs again here has not waited for one to lapse.
TWO = ("--processes", "2", "--poll", "0.1")
UNRULY = {"BACKWAVE_TEST_MODULES": "tests.worker.unruly"}


@contextmanager
def supervised(*arguments, children=2, **environment):
    """Run a worker with children, and wait until all of them have started."""
    arguments = ("backwave_worker", *(arguments or TWO))
    with processes.command(*arguments, DJANGO_SETTINGS_MODULE=SETTINGS, **environment) as process:
        wait_until(lambda: len(pids(process)) >= children or not process.running, deadline=LIFE, what=process)
        assert process.running, process
        yield process


def pids(process):
    """Return the processes of all workers that have started so far, in order."""
    return [int(re.search(r"worker=[^:]+:(\d+):", line)[1]) for line in process.said("action=worker_started")]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def unruly(handler, *args, **options):
    payload = json.dumps({"args": args, "kwargs": {}})
    return ready(now=None, name=f"tests.worker.unruly.{handler}", payload=payload, **options)


def waiting_for_the_lock(cursor):
    table = Job._meta.db_table
    cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass", [table])
    return cursor.fetchone()[0]


def started_in(held):
    """Return the process in which the first attempt of a `hold_the_first` has started."""
    wait_until(lambda: held.journal, what=held.folder)
    return int(held.journal[0].removeprefix("started 1 in "))


# Ordered ends.


def test_children_are_workers_and_stop_in_order(tmp_path):
    """G11: what they hold goes back at the price of no failure."""
    with supervised(*TWO, "--shutdown-timeout", "0.2") as process:
        held = [Held(tmp_path / str(n), "hold_obediently") for n in range(2)]
        for each in held:
            each.wait_for("started 1")
        children = pids(process)
        assert len({process.pid, *children}) == 3
        wait_until(lambda: Worker.objects.count() == 2)

        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert [outcomes(each.job) for each in held] == [[(1, "released")]] * 2
    assert {read(each.job).failures for each in held} == {0}
    assert process.said("action=supervisor_stopping", "reason=SIGTERM", "children=2")
    assert process.said("action=supervisor_stopped", "code=0")
    assert not process.said("action=child_died")
    assert not [pid for pid in children if alive(pid)]
    assert Worker.objects.count() == 0


def test_a_signal_to_every_process_is_one_order(tmp_path):
    """As Ctrl-C sends it, and systemd by default: no child takes it for the second one."""
    with supervised(*TWO, "--shutdown-timeout", "0.2") as process:
        held = Held(tmp_path / "job", "hold_obediently")
        held.wait_for("started 1")

        for pid in (process.pid, *pids(process)):
            os.kill(pid, signal.SIGINT)
        assert process.wait() == 0

    assert outcomes(held.job) == [(1, "released")]
    assert not process.said("action=worker_killed")


def test_a_second_signal_kills_all(tmp_path):
    with supervised() as process:
        held = Held(tmp_path / "job")
        held.wait_for("started 1")
        process.send(signal.SIGINT)
        process.wait_for("action=supervisor_stopping", "reason=SIGINT")
        process.send(signal.SIGINT)
        assert process.wait(deadline=15) == 128 + signal.SIGINT
        wait_until(lambda: not [pid for pid in pids(process) if alive(pid)], deadline=LIFE)

    assert process.said("action=worker_killed", "reason=second_signal")
    assert read(held.job).job_state is JobState.RUNNING


def test_what_a_deaf_handler_held_is_handed_back_once_its_process_has_ended():
    """G11, §9.16: then its code has stopped; the worker alone could not know."""
    with supervised(*TWO, "--shutdown-timeout", "0.1") as process:
        deaf = enqueue("sleep_for_ever")
        wait_until(lambda: read(deaf).started_at)
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    row = read(deaf)
    assert (row.job_state, row.failures, row.worker) == (JobState.READY, 0, "")
    assert outcomes(deaf) == [(1, "released")]
    assert process.said("action=released_after_end", f"job={deaf.pk}", "attempt=1", "next=ready")


def test_a_drain_ends_with_its_last_child(tmp_path):
    enqueue_many("write_slowly", [(tmp_path / "journal", str(n)) for n in range(40)])

    process = run_worker(*TWO, "--drain", "--concurrency", "2")

    assert process.code == 0, process
    assert sorted(journal(tmp_path / "journal"), key=int) == [str(n) for n in range(40)]
    assert len(process.said("action=worker_started")) == 2
    assert len(process.said("action=child_ended", "recycled=False")) == 2


def test_children_are_recycled_after_so_many_jobs_and_nothing_is_lost(tmp_path):
    enqueue_many("write", [(tmp_path / "journal", str(n)) for n in range(20)])

    process = run_worker(*TWO, "--drain", "--concurrency", "2", "--max-jobs", "6")

    assert process.code == 0, process
    assert sorted(journal(tmp_path / "journal"), key=int) == [str(n) for n in range(20)]
    # Of the last eight jobs each child may get four.
    assert len(process.said("action=child_ended", "recycled=True")) >= 2
    assert set(Job.objects.values_list("state", "failures")) == {(JobState.SUCCEEDED.value, 0)}


def test_a_child_that_has_grown_is_recycled_after_what_runs(tmp_path):
    """Its own jobs are waited for, and others go on in a fresh process."""
    arguments = ("--processes", "2", "--max-memory", "150", "--poll", "0.1")
    with supervised(*arguments, **UNRULY) as process:
        big = unruly("hoard", 200)
        large = wait_for_state(big, JobState.SUCCEEDED).output
        process.wait_for("action=memory_reached", f":{large}:", "limit=150")
        process.wait_for("action=child_ended", f":{large}:", "recycled=True")
        wait_until(lambda: len(pids(process)) == 3, deadline=LIFE, what=process)
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert not process.said("action=child_died")
    assert outcomes(big) == [(1, "succeeded")]


def test_children_repeat_the_supervisors_command_line(tmp_path):
    """Not only `manage.py`: what the interpreter and Django were told holds for them, too."""
    enqueue("write", tmp_path / "journal", "done")
    told = ["-X", "importtime", "-m", "django", "backwave_worker", *TWO, "--drain", "--settings", SETTINGS]
    environment = child_environment()
    del environment["DJANGO_SETTINGS_MODULE"]
    process = processes.Process([sys.executable, *told], environment)
    try:
        assert process.wait() == 0
    finally:
        process.end()

    assert len(process.said("action=worker_started")) == 2
    assert len(process.said("import time:", "django_backwave.worker.supervisor")) == 3
    assert journal(tmp_path / "journal") == ["done"]


def test_a_change_of_code_starts_all_anew(tmp_path):
    """`--reload` replaces the supervisor; its children end in order before that."""
    module = tmp_path / "edited.py"
    module.write_text("from django_backwave import job\n\n\n@job\ndef first(): ...\n")
    environment = {
        "BACKWAVE_TEST_DEBUG": "yes",
        "BACKWAVE_TEST_MODULES": "edited",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    with supervised(*TWO, "--reload", **environment) as process:
        before = pids(process)
        held = Held(tmp_path / "held", "hold_obediently")
        held.wait_for("started 1")
        module.write_text(module.read_text() + "\n\n@job\ndef second(): ...\n")

        wait_until(lambda: noticed(process, module), deadline=LIFE, what=process)
        new = ("action=worker_started", "edited.second")
        wait_until(lambda: len(process.said(*new)) == 2, deadline=LIFE, what=process)
        held.wait_for("started 2")
        held.go()
        assert not [pid for pid in before if alive(pid)]
    assert outcomes(held.job)[0] == (1, "released")
    wait_until(lambda: not [pid for pid in pids(process) if alive(pid)], deadline=LIFE)


# Deaths.


def test_a_killed_childs_job_runs_again_long_before_its_lease_ends(tmp_path):
    """G2, G6, §9.16: its death proves that its code has stopped."""
    with supervised() as process:
        held = Held(tmp_path / "job", "hold_the_first")
        killed = started_in(held)
        end = read(held.job).lease_expires_at
        os.kill(killed, signal.SIGKILL)

        row = wait_for_state(held.job, JobState.SUCCEEDED)
        assert datetime.now(UTC) < end
        process.wait_for("ERROR", "action=child_died", f":{killed}:", "signal=SIGKILL", "deaths=1")
        wait_until(lambda: len(pids(process)) == 3, deadline=LIFE, what=process)
        wait_until(lambda: not Worker.objects.filter(pid=killed).exists())

    assert (row.attempt, row.failures) == (2, 1)
    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]
    assert process.said("action=lease_expired", f"job={held.job.pk}", "attempt=1", "next=ready")


def test_a_job_that_ends_its_process_without_an_order_has_failed():
    """G6: the exit code 0 is no report of an ordered stop, or such a job would loop for ever."""
    with supervised(**UNRULY) as process:
        poison = unruly("leave", max_attempts=1)
        wait_for_state(poison, JobState.DEAD_LETTERED)
        process.wait_for("action=child_died", "code=0")

    assert outcomes(poison) == [(1, "abandoned")]


def test_a_drain_goes_on_after_a_death(tmp_path):
    poison = enqueue("kill_yourself", tmp_path / "journal", max_attempts=2)

    process = run_worker(*TWO, "--drain")

    assert process.code == 0, process
    assert read(poison).job_state is JobState.DEAD_LETTERED
    assert outcomes(poison) == [(1, "abandoned"), (2, "abandoned")]


@contextmanager
def both_held_up(process):
    """Hold a lock for which both children have come to wait: others may read the jobs, and not write."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {Job._meta.db_table} IN SHARE MODE")
        wait_until(lambda: waiting_for_the_lock(cursor) == 2, what=process)
        yield


@pytest.mark.only_on("postgres")
def test_a_claim_that_commits_after_its_childs_death_is_found(tmp_path):
    """§9.16: the server carries on with what it was sent, and nobody is there to take the jobs."""
    with supervised() as process:
        children = pids(process)
        announced = Worker.objects.filter(pid__in=children)
        wait_until(lambda: announced.count() == 2)
        # Who has not prepared its claim waits for the lock with that, and then with nothing that commits.
        first = enqueue("write", tmp_path / "first", "done", due_in=1.0)
        with both_held_up(process):
            pass
        wait_for_state(first, JobState.SUCCEEDED)
        job = enqueue("write", tmp_path / "journal", "done", due_in=1.0)
        with both_held_up(process):
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            # Withdrawn after the first look at what they left, which has found nothing.
            wait_until(lambda: announced.count() == 0, what=process)
        row = wait_for_state(job, JobState.SUCCEEDED)
        process.wait_for("action=lease_expired", f"job={job.pk}", "attempt=1", "next=ready")

    assert (row.attempt, row.failures) == (2, 1)
    assert journal(tmp_path / "journal") == ["done"], "the first attempt has never begun"


@pytest.mark.only_on("sqlite", "mysql")
def test_a_child_that_is_killed_within_its_claim_has_taken_nothing(tmp_path):
    """G2: the claim's transaction goes with it."""
    environment = {
        **UNRULY,
        "BACKWAVE_TEST_KILL_AT": "claim: group taken",
        "BACKWAVE_TEST_KILLED": str(tmp_path / "killed"),
    }
    with supervised(**environment) as process:
        job = enqueue("write", tmp_path / "journal", "done")
        row = wait_for_state(job, JobState.SUCCEEDED)
        process.wait_for("action=child_died", "signal=SIGKILL")

    assert (row.attempt, row.failures) == (1, 0)
    assert journal(tmp_path / "journal") == ["done"]


# Starts.


def test_a_first_child_that_does_not_start_ends_all():
    """One message, not one for each child, and nothing that loops."""
    process = run_worker(*TWO, BACKWAVE_TEST_MODULES="tests.worker.broken")

    assert process.code == 1
    assert len(process.said("this module is broken")) >= 1
    assert len(process.said("'tests.worker.broken'", "failed while it was imported")) == 1
    assert process.said("CRITICAL", "action=child_not_started", "code=1", "it is not tried again")
    assert not process.said("action=worker_started")


def test_a_child_that_cannot_start_again_is_tried_ever_more_slowly_until_it_can(tmp_path):
    """As after a deploy that broke the code on the disk, with workers that still run the old one."""
    unfit = tmp_path / "unfit"
    with supervised(**UNRULY, BACKWAVE_TEST_UNFIT=str(unfit)) as process:
        first, second = pids(process)
        unfit.touch()
        os.kill(first, signal.SIGKILL)
        process.wait_for("action=child_died", "signal=SIGKILL", "deaths=1", "restart_in=1.0")
        [waiting] = [process.wait_for("ERROR", "action=child_not_started", "code=1", "deaths=2")]
        assert 1.0 <= float(re.search(r"restart_in=([\d.]+)", waiting)[1]) <= 2.0
        unfit.unlink()

        wait_until(lambda: len(pids(process)) == 3, deadline=LIFE, what=process)
        assert alive(second)
        done = enqueue("write", tmp_path / "journal", "done")
        wait_for_state(done, JobState.SUCCEEDED)


def test_more_memory_than_allowed_before_the_first_job_is_refused():
    process = run_worker("--max-memory", "5")

    assert process.code == 1
    assert process.said(
        "CommandError: --max-memory 5 is too little: this process has", "before its first job"
    )


def test_without_a_command_line_of_its_own_there_are_no_children():
    with pytest.raises(CommandError, match="--processes starts this process's command line again"):
        call_command("backwave_worker", "--processes", "2")


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--processes", "0", "must be a whole number between 1 and 256, got '0'"),
        ("--processes", "many", "must be a whole number between 1 and 256, got 'many'"),
        ("--max-memory", "0", "must be a whole number between 1 and 1,048,576, got '0'"),
        ("--max-memory", "1.5", "must be a whole number between 1 and 1,048,576, got '1.5'"),
    ],
)
def test_a_bad_value_is_refused(option, value, rule):
    with pytest.raises(CommandError, match=f"argument {option}: {rule}"):
        call_command("backwave_worker", option, value)


def test_one_process_needs_no_supervisor_and_ends_when_it_has_grown():
    """With 0, so that a service manager starts a fresh one."""
    big = unruly("hoard", 200)
    process = run_worker("--max-memory", "150", "--poll", "0.1", **UNRULY)

    assert process.code == 0
    assert read(big).output == process.pid
    assert not process.said("action=supervisor")


# The supervisor's own death.


def test_no_child_outlives_a_killed_supervisor(tmp_path):
    """§9.16: none goes on claiming, and what they held goes back."""
    with supervised(*TWO, "--shutdown-timeout", "0.2") as process:
        held = Held(tmp_path / "job", "hold_obediently")
        held.wait_for("started 1")
        children = pids(process)

        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        wait_until(lambda: not [pid for pid in children if alive(pid)], deadline=LIFE)
        late = enqueue("write", tmp_path / "journal", "late")

    assert len(process.said("action=worker_stopped")) == 2
    assert outcomes(held.job) == [(1, "released")]
    assert read(late).job_state is JobState.READY


# In this process: the supervisor alone, with children that are no workers.

SAY = "import os, socket, sys, time\nline = socket.socket(fileno=int(os.environ['BACKWAVE_LINE']))\n"


@contextmanager
def supervising(code, number=1, **options):
    """Run a supervisor in a thread, over children that run this code."""
    options = {"using": "default", "lease": 60.0, "shutdown_timeout": 0.0} | options
    one = Supervisor(number, [sys.executable, "-c", SAY + code], **options)
    codes = []
    thread = threading.Thread(target=lambda: codes.append(one.run()))
    thread.start()
    try:
        yield one, codes
    finally:
        one.stop()
        thread.join(processes.PATIENCE)


def test_a_child_that_hears_no_order_is_killed(monkeypatch, caplog):
    for grace in ("STOP_GRACE", "FLUSH_GRACE", "KILL_GRACE"):
        monkeypatch.setattr(supervisor, grace, 0.1)
    with supervising("line.send(b'started host:1:deaf\\n'); time.sleep(60)") as (one, codes):
        wait_until(lambda: one._proven)
        one.stop()
        wait_until(lambda: codes)

    assert codes == [1]
    assert "action=child_killed worker=host:1:deaf" in caplog.text


def test_deaths_in_a_row_are_counted(monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "RESTART", Backoff(base=1.0, cap=1.0, jitter=0.0))
    with supervising("line.send(b'started host:1:weak\\n'); sys.exit(7)"):
        wait_until(lambda: "deaths=3" in caplog.text)
    assert "action=child_died worker=host:1:weak code=7 deaths=2 restart_in=1.0" in caplog.text


def test_the_waits_between_deaths_in_a_row():
    waits = [supervisor.RESTART.delay(deaths, jitter=0.0) for deaths in range(1, 8)]
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_child_that_has_lived_for_long_dies_for_the_first_time_again(monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "STEADY", 0.0)
    with supervising("line.send(b'started host:1:old\\n'); sys.exit(1)"):
        wait_until(lambda: caplog.text.count("deaths=1") == 2)
    assert "deaths=2" not in caplog.text


def test_a_command_that_the_system_refuses_ends_the_supervisor(tmp_path, caplog):
    one = Supervisor(2, [str(tmp_path / "nothing")], using="default", lease=60.0, shutdown_timeout=0.0)
    assert one.run() == 1
    assert "action=child_not_started error='No such file or directory'" in caplog.text


@pytest.mark.parametrize(
    ("beats", "touched"),
    [((0.0, 1.0), True), ((0.0, supervisor.SILENCE + 1), False), ((0.0, None), False)],
    ids=["both beat", "one is silent", "one has not begun"],
)
def test_the_heartbeat_file_is_touched_while_every_child_makes_progress(tmp_path, beats, touched):
    """§9.22."""
    now = time.monotonic()
    file = tmp_path / "alive"
    one = Supervisor(2, [], using="default", lease=60.0, shutdown_timeout=0.0, heartbeat_file=file)
    for seat, ago in zip(one._seats, beats, strict=True):
        seat.child = SimpleNamespace(beat_at=None if ago is None else now - ago)

    one._touch_heartbeat_file(now)

    assert file.exists() is touched


def test_children_beat_into_the_heartbeat_file(tmp_path):
    file = tmp_path / "alive"
    with supervised(*TWO, "--heartbeat-file", str(file)):
        first = wait_until(lambda: file.exists() and file.stat().st_mtime_ns)
        wait_until(lambda: file.stat().st_mtime_ns > first)
        wait_until(lambda: file.stat().st_mtime_ns > first + 10**9)
