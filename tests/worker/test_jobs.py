"""A worker process at its everyday work."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from django.db import transaction
from django.utils import timezone

from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import CancelResult
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.operate import cancel, requeue
from tests.app.jobs import add
from tests.processes import journal, wait_until
from tests.worker.support import (
    Held,
    enqueue,
    enqueue_many,
    outcomes,
    read,
    run_worker,
    started,
    wait_for_renewal,
    wait_for_state,
    worker,
)

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


def test_a_committed_job_runs_and_one_rolled_back_never_does():
    """G1."""
    with transaction.atomic():
        committed = add.enqueue(1, b=2)
    with transaction.atomic():
        rolled_back = add.enqueue(3)
        transaction.set_rollback(True)

    process = run_worker("--drain")

    assert process.code == 0
    committed.refresh()
    assert (committed.state, committed.output) == (JobState.SUCCEEDED, 3)
    assert not Job.objects.filter(pk=rolled_back.id).exists()
    assert process.said("outcome=succeeded", f"job={committed.id}", "name=tests.app.jobs.add", "attempt=1")


def test_drain_is_not_held_by_what_is_due_later(tmp_path):
    """A job due in an hour, and one that asked to come back in an hour."""
    later = enqueue("write", tmp_path / "journal", "later", due_in=3600)
    snoozed = enqueue("snooze", tmp_path / "journal")

    assert run_worker("--drain").code == 0
    assert journal(tmp_path / "journal") == ["started 1"]
    assert read(later).job_state is JobState.READY
    assert outcomes(snoozed) == [(1, "snoozed")]
    assert (read(snoozed).job_state, read(snoozed).failures) == (JobState.READY, 0)
    assert 3500 < (read(snoozed).due_at - timezone.now()).total_seconds() <= 3600


def test_failures_are_logged_with_their_traceback_and_counted():
    retried = enqueue("fail", "no stock\nof lamps", max_attempts=2)
    dead = enqueue("give_up", "no such order")

    process = run_worker("--drain")

    assert (read(retried).job_state, read(retried).failures) == (JobState.READY, 1)
    assert read(retried).cause == "ValueError: no stock"
    assert (read(dead).job_state, read(dead).cause) == (
        JobState.DEAD_LETTERED,
        "GiveUp: no such order",
    )
    assert process.said("WARNING", f"job={retried.pk}", "outcome=failed", "failures=1/2", "next=in ")
    assert process.said("ERROR", f"job={dead.pk}", "outcome=failed", "next=dead-lettered")
    assert process.said("ValueError: no stock")


def test_only_the_named_queues_are_served_and_only_so_many_jobs(tmp_path):
    file = tmp_path / "journal"
    mail = [enqueue("write", file, f"mail {n}", queue="mail") for n in range(3)]
    other = enqueue("write", file, "other", queue="other")

    process = run_worker("--queue", "mail", "--max-jobs", "2")

    assert process.code == 0
    assert sorted(journal(file)) == ["mail 0", "mail 1"]
    assert [read(job).job_state for job in mail] == [JobState.SUCCEEDED] * 2 + [JobState.READY]
    assert read(other).job_state is JobState.READY
    assert process.said("action=worker_started", "queues=mail ")


def test_two_workers_run_every_job_once(tmp_path):
    """G3: the journal is written by the handlers themselves."""
    file = tmp_path / "journal"
    few = ("--poll", "0.05", "--concurrency", "5")  # one alone would take two seconds
    with worker(*few) as one, worker(*few) as two:
        enqueue_many("write_slowly", [(file, str(number)) for number in range(500)])
        wait_until(lambda: Job.objects.filter(state=JobState.SUCCEEDED).count() == 500, deadline=60)
        for process in (one, two):
            process.send(signal.SIGTERM)
            assert process.wait() == 0

    assert Counter(journal(file)) == {str(number): 1 for number in range(500)}
    assert Job.objects.filter(failures=0).count() == 500  # what one handed back unbegun has another number
    assert len(one.said("outcome=succeeded")) + len(two.said("outcome=succeeded")) == 500
    assert one.said("outcome=succeeded")
    assert two.said("outcome=succeeded")


def test_what_nobody_can_route_is_released_then_quarantined_then_run_after_a_fix():
    """§9.10."""
    job = enqueue("not_yet")
    with worker("--poll", "0.1", BACKWAVE_TEST_GRACE="0.5") as process:
        process.wait_for(f"job={job.pk}", "outcome=unroutable", "next=released")
        row = wait_for_state(job, JobState.QUARANTINED)
        process.wait_for(f"job={job.pk}", "outcome=unroutable", "next=quarantined")

    assert row.failures == 0
    assert row.cause == "no handler here is named 'tests.worker.handlers.not_yet'"
    assert row.attempt > 1
    assert outcomes(job) == [(1, "unroutable")], "only the first of the series has a row"

    requeue([job.pk], using="default")
    assert run_worker("--drain", BACKWAVE_TEST_MODULES="tests.worker.later").code == 0
    assert (read(job).job_state, read(job).output) == (JobState.SUCCEEDED, "routed")
    assert read(job).attempt == row.attempt + 1


def test_attempts_never_fall_also_while_an_old_thread_of_the_job_still_runs(tmp_path):
    """G4, G6: requeued in the same process; what the old thread reports is stale."""
    with worker("--poll", "0.1", "--lease", "1") as process:
        held = Held(tmp_path / "job", "hold_the_first", max_attempts=1)
        wait_until(lambda: held.journal)
        Job.objects.filter(pk=held.job.pk).update(lease_expires_at=timezone.now())
        assert wait_for_state(held.job, JobState.DEAD_LETTERED).attempt == 1

        requeue([held.job.pk], using="default")
        row = wait_for_state(held.job, JobState.SUCCEEDED)
        held.go()
        process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale")

    assert held.journal[:2] == [f"started {attempt} in {process.pid}" for attempt in (1, 2)]
    assert (row.attempt, row.output) == (2, "attempt 2")
    assert Job.objects.filter(pk=row.pk).values().get() == {
        field.attname: getattr(row, field.attname) for field in Job._meta.concrete_fields
    }
    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]


def test_running_jobs_are_told_of_their_cancel(tmp_path):
    """G8: who ignores it and succeeds has succeeded; any other end is a cancel."""
    with worker("--poll", "0.1", "--lease", "4") as process:
        obedient = started(tmp_path / "obedient", "hold_obediently")
        deaf = started(tmp_path / "deaf", "hold")
        failing = started(tmp_path / "failing", "hold_then_fail")
        all_three = [held.job.pk for held in (obedient, deaf, failing)]
        assert cancel(all_three, using="default") == dict.fromkeys(all_three, CancelResult.ASKED_TO_STOP)
        assert wait_for_state(obedient.job, JobState.CANCELLED).failures == 0
        for held in (deaf, failing):
            held.wait_for("told of the cancel")
            held.go()
        assert wait_for_state(deaf.job, JobState.SUCCEEDED).output == 1
        assert wait_for_state(failing.job, JobState.CANCELLED).cause == "cancel requested"
        process.wait_for(f"job={failing.job.pk}", "outcome=cancelled")

    assert outcomes(obedient.job) == outcomes(failing.job) == [(1, "cancelled")]
    assert outcomes(deaf.job) == [(1, "succeeded")]


def test_a_project_without_time_zones_has_the_same_workers(tmp_path):
    """§9.5: five hours from UTC, and nothing is due five hours early or late."""
    file = tmp_path / "journal"
    now = enqueue("write", file, "now")
    early = enqueue("write", file, "in an hour", due_in=3600)
    failing = enqueue("fail", "twice", max_attempts=2, backoff=Backoff(base=0))
    with worker("--poll", "0.1", "--lease", "4", BACKWAVE_TEST_USE_TZ="no"):
        held = started(tmp_path / "job")
        wait_for_state(failing, JobState.DEAD_LETTERED)
        wait_for_renewal(held.job)
        held.go()
        row = wait_for_state(held.job, JobState.SUCCEEDED)

    assert journal(file) == ["now"]
    assert read(now).job_state is JobState.SUCCEEDED
    assert read(early).job_state is JobState.READY
    assert row.attempt == 1, "its lease was renewed in time"
    assert abs((row.finished_at - timezone.now()).total_seconds()) < 10
    assert outcomes(failing) == [(1, "failed"), (2, "failed")]


def test_a_stop_during_the_work_of_two_loses_nothing_and_costs_no_failure(tmp_path):
    """G11: a deploy."""
    file = tmp_path / "journal"
    enqueue_many("write_slowly", [(file, str(number)) for number in range(120)])
    with worker("--concurrency", "2") as old, worker("--concurrency", "2", "--drain") as new:
        wait_until(lambda: journal(file))
        old.send(signal.SIGTERM)
        assert old.wait() == 0
        assert new.wait() == 0

    assert Counter(journal(file)) == {str(number): 1 for number in range(120)}
    assert Job.objects.filter(state=JobState.SUCCEEDED, failures=0).count() == 120
