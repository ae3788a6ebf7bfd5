"""Atomic jobs and marks in real workers: killed, frozen and cut off within (G7)."""

from __future__ import annotations

import signal
import time
from urllib.parse import urlsplit

import pytest
from django.db import connection, transaction

from django_backwave.context import StopSwitch
from django_backwave.core.outcome import Released
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Job, Mark
from django_backwave.store.enqueue import insert_one
from django_backwave.store.operate import cancel
from django_backwave.worker.execution import BUSY_DELAY, Execution
from tests.app.models import Entry
from tests.factories import WORKER, claimed, new_job, second_connection, send
from tests.factories import row as read_again
from tests.processes import LIFE, journal, wait_until
from tests.store.races import needs_row_locks
from tests.worker import atomics as _atomics  # noqa: F401 - its handlers run in this process, too
from tests.worker import support
from tests.worker.proxy import Proxy
from tests.worker.support import outcomes, read, wait_for_lapse, wait_for_state

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

MODULES = {"BACKWAVE_TEST_MODULES": "tests.worker.atomics"}
SHORT = ("--lease", "1", "--poll", "0.1")


def worker(*arguments, **environment):
    return support.worker(*arguments, **MODULES, **environment)


def run_worker(*arguments, **environment):
    return support.run_worker(*arguments, **MODULES, **environment)


def enqueue(name, *args, **options):
    job = new_job(name=name, payload=support._payload(args), **options)
    insert_one(job, using="default")
    return Job.objects.get(pk=job.id)


class Held(support.Held):
    """A job that waits within its transaction for its file `go`."""

    def __init__(self, folder, name="atomic.hold", *args, **options):
        folder.mkdir()
        self.folder = folder
        self.job = enqueue(name, folder, *args, **options)


def written():
    """Return the attempts whose writes are in the database."""
    return [int(entry.key.split()[1]) for entry in Entry.objects.order_by("pk")]


def status(job):
    return read(job).job_state, outcomes(job), written()


# Killed, frozen, cut off.


@pytest.mark.parametrize("name", ["atomic.hold", "atomic.block"])
def test_a_worker_that_is_killed_within_leaves_nothing_of_it(tmp_path, name):
    with worker(*SHORT) as killed:
        held = Held(tmp_path / "job", name)
        held.wait_for("started 1")
        killed.send(signal.SIGKILL)
        killed.wait()
    assert written() == []
    wait_for_lapse(held.job)

    run_worker("--drain")

    assert status(held.job) == (JobState.SUCCEEDED, [(1, "abandoned"), (2, "succeeded")], [2])
    assert read(held.job).output == "attempt 2"


@pytest.mark.parametrize("name", ["atomic.hold", "atomic.block"])
def test_a_worker_that_was_frozen_within_commits_nothing_of_it(tmp_path, name):
    """SQLite has one lock for all, so that there nobody takes over until it wakes up."""
    with worker(*SHORT) as frozen:
        held = Held(tmp_path / "job", name)
        held.wait_for("started 1")
        if connection.vendor != "sqlite":
            support.wait_for_renewal(held.job)  # between two heartbeats no lock is held but that of the job
        frozen.send(signal.SIGSTOP)
        wait_for_lapse(held.job)
        if connection.vendor != "sqlite":
            assert run_worker("--drain").code == 0
            assert status(held.job) == (JobState.SUCCEEDED, [(1, "abandoned"), (2, "succeeded")], [2])
        held.go()
        frozen.send(signal.SIGCONT)
        if connection.vendor == "sqlite":
            wait_for_state(held.job, JobState.SUCCEEDED)
        else:
            frozen.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale")

    if connection.vendor == "sqlite":
        assert status(held.job) == (JobState.SUCCEEDED, [(1, "succeeded")], [1])
    else:
        assert status(held.job) == (JobState.SUCCEEDED, [(1, "abandoned"), (2, "succeeded")], [2])
        assert read(held.job).output == "attempt 2"


def test_a_cancel_that_the_handler_has_not_noticed_does_not_stop_its_success(tmp_path):
    """G8."""
    needs_row_locks()
    with worker("--lease", "4", "--poll", "0.1") as process:
        held = Held(tmp_path / "job")
        held.wait_for("started 1")
        cancel([held.job.pk], using="default")
        held.go()
        process.wait_for(f"job={held.job.pk}", "outcome=succeeded")

    assert status(held.job) == (JobState.SUCCEEDED, [(1, "succeeded")], [1])


def test_a_stop_lets_it_finish(tmp_path):
    """G11."""
    with worker("--poll", "0.1") as process:
        held = Held(tmp_path / "job")
        held.wait_for("started 1")
        process.send(signal.SIGTERM)
        process.wait_for("action=worker_stopping")
        held.go()
        assert process.wait() == 0

    assert status(held.job) == (JobState.SUCCEEDED, [(1, "succeeded")], [1])


# A COMMIT whose reply is lost (§9.2).


@pytest.mark.only_on("postgres")
@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_whose_reply_is_lost_is_resolved_by_the_history(tmp_path, landed):
    url = urlsplit(support.processes.child_environment()["BACKWAVE_TEST_POSTGRES_URL"])
    with Proxy(url.port) as proxy:
        through = url._replace(netloc=url.netloc.replace(f":{url.port}", f":{proxy.port}")).geturl()
        with worker("--poll", "0.1", "--lease", "30", BACKWAVE_TEST_DATABASE_URL=through) as process:
            held = Held(tmp_path / "job")
            held.wait_for("started 1")
            proxy.swallow(b"COMMIT", after=b"SET CONSTRAINTS", forward=landed)
            held.go()
            wait_until(proxy.swallowed.is_set)
            if landed:
                wait_for_state(held.job, JobState.SUCCEEDED)
            proxy.cut()
            proxy.restore()
            if landed:
                process.wait_for(f"job={held.job.pk}", "outcome=succeeded", "note=error_after_commit")
            else:
                process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=failed")
                # After a back-off of some seconds, and what is left of those after a lost database.
                wait_until(lambda: read(held.job).job_state is JobState.SUCCEEDED, deadline=LIFE)

    if landed:
        assert status(held.job) == (JobState.SUCCEEDED, [(1, "succeeded")], [1])
        assert read(held.job).output == "attempt 1"
    else:
        assert status(held.job) == (JobState.SUCCEEDED, [(1, "failed"), (2, "succeeded")], [2])


# How a handler may end.

ENDS = {
    "raise": (JobState.DEAD_LETTERED, "ValueError: no stock"),
    "snooze": (JobState.READY, ""),
    "give up": (JobState.DEAD_LETTERED, "GiveUp: no such order"),
    "not json": (JobState.DEAD_LETTERED, "InvalidArguments: Unsupported type object"),
    "too large": (JobState.DEAD_LETTERED, "InvalidJob: The output of"),
    "rollback": (JobState.DEAD_LETTERED, "NotAtomic: The transaction on 'default' was marked"),
    "close": (JobState.DEAD_LETTERED, "NotAtomic: The connection to 'default' was closed"),
    "durable": (JobState.DEAD_LETTERED, "RuntimeError: A durable atomic block cannot be nested"),
    "deferred": (JobState.DEAD_LETTERED, "IntegrityError: "),
    "exit": (JobState.DEAD_LETTERED, "SystemExit: 3"),
    "once": (JobState.DEAD_LETTERED, "NotOnce: context.once('charge') in"),
    "nested": (JobState.DEAD_LETTERED, "NotAtomic: tests.worker.atomics.end is atomic as a whole"),
    "stop": (JobState.SUCCEEDED, ""),  # nobody has told it to
    "callback": (JobState.SUCCEEDED, ""),
}


def test_each_end_writes_all_or_nothing_and_is_reported(tmp_path):
    jobs = {how: enqueue("atomic.end", tmp_path, how, max_attempts=1) for how in ENDS}

    process = run_worker("--drain")

    found = {how: (read(job).job_state, read(job).cause[: len(ENDS[how][1])]) for how, job in jobs.items()}
    assert found == ENDS
    keys = set(Entry.objects.values_list("key", flat=True))
    succeeded = {how for how, (state, _) in ENDS.items() if state is JobState.SUCCEEDED}
    assert keys == {f"{jobs[how].pk} 1" for how in succeeded}
    for how, job in jobs.items():
        words = {"snooze": "snoozed"}.get(how, "succeeded" if how in succeeded else "failed")
        assert outcomes(job) == [(1, words)], how
    assert process.said(f"job={jobs['callback'].pk}", "outcome=succeeded", "note=error_after_commit")
    assert process.said("RuntimeError: in a callback after the commit")
    assert not process.said("action=transaction_left_open")


# After a block.


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("", "the value that it returned"),
        ("raise", "RuntimeError: after the block"),
        ("again", "has completed its job already: context.atomic() works once"),
    ],
)
def test_what_comes_after_the_block_is_only_logged(tmp_path, then, words):
    (tmp_path / "go").touch()
    job = enqueue("atomic.block", tmp_path, then)

    process = run_worker("--drain")

    assert status(job) == (JobState.SUCCEEDED, [(1, "succeeded")], [1])
    assert read(job).output == "attempt 1"
    assert process.said("WARNING", "action=after_completion", f"job={job.pk}")
    assert process.said(words)


def test_heartbeats_end_with_the_block_and_the_slot_does_not(tmp_path):
    with worker(*SHORT, "--concurrency", "1") as process:
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "go").touch()
        job = enqueue("atomic.block", tmp_path / "job", "hold")
        row = wait_for_state(job, JobState.SUCCEEDED)
        assert row.lease_expires_at is None
        next_one = enqueue("atomic.end", tmp_path, "callback")
        time.sleep(1.2)
        assert not process.said("action=lease_expired")
        assert read(next_one).job_state is JobState.READY, "its slot is still taken"
        (tmp_path / "job" / "end").touch()
        wait_for_state(next_one, JobState.SUCCEEDED)

    assert outcomes(job) == [(1, "succeeded")]
    assert "after the block 1" in journal(tmp_path / "job" / "journal")


# SQLite's one lock (§9.7).


@pytest.mark.only_on("sqlite")
def test_atomic_jobs_of_a_process_take_turns(tmp_path):
    (tmp_path / "go").touch()
    jobs = [enqueue("atomic.hold", tmp_path) for _ in range(8)]

    process = run_worker("--drain", "--concurrency", "4")

    assert [outcomes(job) for job in jobs] == [[(1, "succeeded")]] * 8
    assert not process.said("database is locked")


@pytest.mark.only_on("sqlite")
def test_a_database_that_is_busy_at_the_begin_is_no_failure(tmp_path, monkeypatch, caplog):
    job = claimed(name="atomic.end", payload=support._payload([tmp_path, "callback"]), now=None)
    switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
    execution = Execution(job, WORKER, switch, 0.0, using="default", completed=bool)
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.2)

    with second_connection() as other, transaction.atomic(using=other):
        report = execution.run()

    connection.close()
    assert report.outcome == Released(BUSY_DELAY)
    assert report.started_after is None
    assert "action=atomic_put_off" in caplog.text
    assert send(report, now=None) == [Verdict.APPLIED]
    row = read_again(job)
    assert (row.job_state, row.failures) == (JobState.READY, 0)
    assert row.due_at > job.claimed_at
    assert journal(tmp_path / "journal") == []


# Marks.


@pytest.mark.parametrize(
    ("dies", "expected"),
    [
        ("", ["1 first=True done=False result=None", "charged"]),
        (
            "after",
            [
                "1 first=True done=False result=None",
                "charged",
                "2 first=False done=True result={'receipt': 'R-1'}",
            ],
        ),
        (
            "within",
            [
                "1 first=True done=False result=None",
                "charged",
                "2 first=False done=False result=None",
            ],
        ),
    ],
)
def test_a_mark_tells_the_next_attempt_how_far_the_effect_came(tmp_path, dies, expected):
    job = enqueue("once.charge", tmp_path, dies)
    if dies:
        assert run_worker("--drain", *SHORT).code == -signal.SIGKILL
        wait_for_lapse(job)
    assert run_worker("--drain", *SHORT).code == 0

    assert journal(tmp_path / "journal") == expected
    assert read(job).job_state is JobState.SUCCEEDED
    assert read(job).output == (None if dies == "within" else {"receipt": "R-1"})
    [mark] = Mark.objects.all()
    assert mark.done_at is not None


def test_an_exception_leaves_the_mark_begun(tmp_path):
    job = enqueue("once.charge", tmp_path, "raise", max_attempts=1)

    run_worker("--drain")

    assert read(job).cause == "OSError: no answer"
    [mark] = Mark.objects.all()
    assert (mark.done_at, mark.result, mark.attempt) == (None, None, 1)


def test_a_stale_attempt_marks_nothing(tmp_path):
    with worker(*SHORT) as frozen:
        held = Held(tmp_path / "job", "once.charge", "hold")
        held.wait_for("started 1")
        support.wait_for_renewal(held.job)
        frozen.send(signal.SIGSTOP)
        wait_for_lapse(held.job)
        assert run_worker("--drain").code == 0
        before = Mark.objects.values().get()

        held.go()
        frozen.send(signal.SIGCONT)
        frozen.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale")

    assert Mark.objects.values().get() == before
    assert (before["attempt"], before["result"]) == (2, None)
    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]


def test_a_coroutine_has_marks_in_its_own_words(tmp_path):
    job = enqueue("once.async", tmp_path)

    run_worker("--drain")

    assert (read(job).job_state, read(job).output) == (JobState.SUCCEEDED, True)
    assert journal(tmp_path / "journal") == []
    assert Mark.objects.get().result is True


REFUSALS = {
    "transaction": "NotOnce: context.once('charge') in tests.worker.atomics.refused: a transaction is open",
    "block": "NotOnce: context.once('charge') in tests.worker.atomics.refused: a transaction is open",
    "late transaction": "NotOnce: context.once('charge') in tests.worker.atomics.refused: a transaction",
    "no name": "InvalidJob: The name in context.once(name) must have 1 to 100 characters",
    "long name": "InvalidJob: The name in context.once(name) must have 1 to 100 characters",
    "result": "InvalidArguments: Unsupported type object",
    "large result": "InvalidJob: The result of context.once('charge') is",
}


def test_a_mark_that_cannot_be_kept_is_refused_with_the_reason(tmp_path):
    jobs = {how: enqueue("once.refused", how, max_attempts=1) for how in REFUSALS}

    run_worker("--drain")

    causes = {how: read(job).cause[: len(REFUSALS[how])] for how, job in jobs.items()}
    assert causes == REFUSALS
    marked = set(Mark.objects.values_list("job_id", flat=True))
    assert marked == {jobs[how].pk for how in ("late transaction", "result", "large result")}
    assert not Mark.objects.exclude(done_at=None).exists()
