"""``backwave_doctor``: what it prints, what it ends with, and its silence after real work."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_backwave import operations
from django_backwave.core.policy import Backoff
from django_backwave.core.states import JobState
from django_backwave.models import Job, Worker
from django_backwave.store.heartbeat import announce
from tests.factories import ready
from tests.processes import run_command, wait_until
from tests.worker.support import SETTINGS, enqueue, read, run_worker, started, wait_for_state, worker

pytestmark = pytest.mark.django_db

NAME = "tests.app.jobs.add"


def doctor(*arguments: str) -> tuple[str, int]:
    """Run the command; return what it printed, and its exit code."""
    out, code = StringIO(), 0
    try:
        call_command("backwave_doctor", *arguments, stdout=out, no_color=True)
    except SystemExit as end:
        code = int(str(end.code))
    return out.getvalue(), code


def broken() -> Job:
    """Return a job whose row no door of the store has left like this."""
    job = ready(now=None, name=NAME)
    Job.objects.filter(pk=job.pk).update(failures=1)
    return job


def late() -> Job:
    """Return a job that has been due for two hours."""
    return ready(name=NAME, now=datetime.now(UTC) - timedelta(hours=2))


def serve() -> None:
    announce(
        name="host:1:a", host="host", pid=1, started_at=datetime.now(UTC), queues=None, names=[],
        concurrency=1, version="1", using="default",
    )  # fmt: skip


def test_a_healthy_database_is_one_line_and_zero():
    ready(now=None, name=NAME)

    out, code = doctor()

    assert code == 0
    assert out.startswith("19 checks: 0 errors, 0 warnings")
    assert out.count("\n") == 1
    assert doctor("--verbosity", "0") == ("", 0)


def test_a_warning_ends_with_one():
    late()
    serve()

    out, code = doctor("--verbosity", "0")

    assert code == 1
    assert out.startswith(
        "warning: late-jobs: 1 queue with a job due for more than 3600 s: default; the oldest"
    )
    assert "Start more workers" in out
    assert out.count("\n") == 1


def test_an_error_ends_with_two_whatever_else_there_is():
    job = broken()
    late()

    out, code = doctor("--verbosity", "0")

    assert code == 2
    assert [line.split(": ")[:2] for line in out.splitlines()] == [
        ["error", "failures"],
        ["warning", "late-jobs"],
        ["warning", "unserved-queues"],
    ]
    assert str(job.pk) in out


def test_json_has_every_check():
    broken()

    out, code = doctor("--json")
    told = json.loads(out)

    assert told["exit_code"] == code == 2
    assert len(told["checks"]) == 19
    [failures] = [check for check in told["checks"] if check["severity"] == "error"]
    assert failures["check"] == "failures"
    assert {*failures} == {"check", "severity", "text", "remedy"}


def test_verbosity_two_shows_what_was_fine_and_what_is_not_available():
    out, _ = doctor("--verbosity", "2")

    assert "ok: outcomes: nothing found\n" in out
    assert len(out.splitlines()) == 19


def test_thresholds_can_be_given():
    late()
    serve()

    assert doctor("--max-due-age", "86400")[1] == 0
    assert doctor("--rows", "1", "--timeout", "30", "--max-transaction-age", "1e6")[1] == 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rows", "0", "must be a whole number between 1 and 1,000,000, got '0'."),
        ("--timeout", "0", "must be a number of seconds between 0.01 and 3,600, got '0'."),
    ],
)
def test_wrong_options_are_refused(option, value, message):
    with pytest.raises(CommandError, match=message.replace(".", r"\.")):
        doctor(option, value)


def test_a_database_that_is_not_there_is_neither_healthy_nor_ill():
    with pytest.raises(CommandError, match="There is no database 'nowhere' in DATABASES") as caught:
        doctor("--database", "nowhere")

    assert caught.value.returncode == 3


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_silence_after_real_workers(tmp_path):
    """Failures, retries, give-ups, snoozes, hand-backs, cancels, requeues, a killed worker, a late result."""
    short = {"backoff": Backoff(base=1, cap=1, jitter=0), "max_attempts": 2}
    gone = enqueue("kill_yourself", tmp_path / "poison", max_attempts=1)
    with worker("--lease", "1", "--poll", "0.1") as victim:
        victim.wait()
    Worker.objects.filter(pid=victim.pid).delete()  # of whose silence the doctor tells after half a minute
    retried = enqueue("fail", "no stock", **short)
    dead = enqueue("give_up", "no such order")
    enqueue("snooze", tmp_path / "journal")
    for number in range(20):
        enqueue("write", tmp_path / "journal", str(number))
    with worker("--lease", "4", "--poll", "0.1", "--shutdown-timeout", "0.2") as process:
        stopped = started(tmp_path / "stopped", "hold_obediently")
        cancelled = started(tmp_path / "cancelled", "hold_then_fail")
        operations.cancel([cancelled.job.pk], actor="anna")
        cancelled.go()
        assert wait_for_state(cancelled.job, JobState.CANCELLED).failures == 0
        wait_for_state(retried, JobState.DEAD_LETTERED)
        wait_for_state(gone, JobState.DEAD_LETTERED)
        operations.requeue([dead.pk], reset_failures=False)
        wait_until(lambda: read(dead).failures == 2)
        operations.requeue([dead.pk, retried.pk, cancelled.job.pk])
        wait_until(lambda: read(cancelled.job).failures == 1 and read(retried).failures)
        process.send(15)
        assert process.wait() == 0
    stopped.go()
    assert run_worker("--drain").code == 0

    told = run_command("backwave_doctor", DJANGO_SETTINGS_MODULE=SETTINGS)

    assert told.code == 0, doctor()


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_the_exit_code_of_the_process():
    """In the test project: 1 for a job that it has no handler for, 2 for a broken row, 3 without tables."""
    job = ready(now=None, name="shop.gone")
    assert run_command("backwave_doctor").code == 1
    Job.objects.filter(pk=job.pk).update(failures=1)
    assert run_command("backwave_doctor").code == 2
    assert run_command("backwave_doctor", "--database", "nowhere").code == 3
