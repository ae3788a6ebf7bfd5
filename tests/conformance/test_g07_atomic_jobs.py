"""G7: an atomic job's writes and its fenced completion are one transaction."""

from __future__ import annotations

import signal

import pytest
from django.db import connection

from django_backwave.core.outcome import Succeeded
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.atomic import Gate, LeaseGone, completing
from django_backwave.store.expire import expire
from tests.app.models import Entry
from tests.factories import (
    LEASE,
    NOW,
    STRANGER,
    WORKER,
    after,
    claimed,
    outcomes,
    reclaimed,
    report,
    row,
    second_connection,
)
from tests.store.races import behind
from tests.worker import support
from tests.worker.test_atomic import Held, enqueue, run_worker, worker, written

pytestmark = [pytest.mark.guarantee("G7"), pytest.mark.django_db(transaction=True)]


def complete(job, during=lambda: None, *, worker_name=WORKER, now=NOW):
    """Run an atomic job that writes an entry, and what comes `during` it."""
    gate = Gate()
    success = Succeeded('"done"')
    with completing(
        gate, job, worker=worker_name, report=lambda: report(job, success), using="default", now=now
    ):
        Entry.objects.create(key=str(job.job_id), value="written")
        during()
    return gate.written


def test_writes_and_success_are_seen_together():
    job = claimed()
    with second_connection() as other:

        def look():
            assert Entry.objects.using(other).count() == 0
            assert Job.objects.using(other).get().state == JobState.RUNNING

        assert complete(job, look)
        assert Entry.objects.using(other).count() == 1
        assert Job.objects.using(other).get().state == JobState.SUCCEEDED
    assert (row(job).output, outcomes(job)) == ("done", [(1, "succeeded")])


def test_a_handler_that_fails_leaves_none_of_its_writes():
    job = claimed()

    def fail():
        raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        complete(job, fail)

    assert Entry.objects.count() == 0
    assert (row(job).state, outcomes(job)) == (JobState.RUNNING, [])


@pytest.mark.parametrize("case", ["expired", "stranger", "earlier attempt"])
def test_without_the_lease_everything_is_rolled_back(case):
    job = claimed()
    if case == "earlier attempt":
        expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
        reclaimed(job, now=after(LEASE))

    with pytest.raises(LeaseGone):
        complete(
            job,
            worker_name=STRANGER if case == "stranger" else WORKER,
            now=after(LEASE) if case == "expired" else NOW,
        )

    assert Entry.objects.count() == 0
    assert "succeeded" not in dict(outcomes(job)).values()


@pytest.mark.needs("row_locks")
def test_a_lease_that_is_taken_while_the_completion_waits_for_the_row_is_lost():
    """The guard is checked again on the row as it is after the wait."""
    job = claimed()

    def take_over(other):
        Job.objects.using(other).filter(pk=job.job_id).update(worker=STRANGER, attempt=2)

    def late():
        with pytest.raises(LeaseGone):
            complete(job)
        return True

    assert behind(take_over, late)
    assert Entry.objects.count() == 0


@pytest.mark.process
@pytest.mark.parametrize("name", ["atomic.hold", "atomic.block"])
def test_a_worker_that_is_killed_within_leaves_nothing(tmp_path, name):
    """With `@job(atomic=True)`, and with `context.atomic()` inside a handler."""
    with worker("--lease", "1", "--poll", "0.1") as killed:
        held = Held(tmp_path / "job", name)
        held.wait_for("started 1")
        killed.send(signal.SIGKILL)
        killed.wait()
    assert written() == []
    support.wait_for_lapse(held.job)

    run_worker("--drain")

    assert written() == [2]
    assert support.outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]


@pytest.mark.process
def test_a_worker_that_was_frozen_within_writes_at_most_once(tmp_path):
    """Where rows are locked singly another worker takes over; SQLite's one lock keeps it for the first."""
    with worker("--lease", "1", "--poll", "0.1") as frozen:
        held = Held(tmp_path / "job")
        held.wait_for("started 1")
        if connection.vendor != "sqlite":
            support.wait_for_renewal(held.job)  # between two heartbeats no lock is held but that of the job
        frozen.send(signal.SIGSTOP)
        support.wait_for_lapse(held.job)
        if connection.vendor != "sqlite":
            assert run_worker("--drain").code == 0
        held.go()
        frozen.send(signal.SIGCONT)
        frozen.wait_for(f"job={held.job.pk}", "action=attempt_ended", "attempt=1")

    succeeded = [number for number, outcome in support.outcomes(held.job) if outcome == "succeeded"]
    assert written() == succeeded
    assert len(succeeded) == 1


@pytest.mark.process
def test_ten_atomic_jobs_write_exactly_ten_times(tmp_path):
    folders = [tmp_path / str(number) for number in range(10)]
    for folder in folders:
        folder.mkdir()
        (folder / "go").touch()
    jobs = [enqueue("atomic.hold", folder) for folder in folders]

    assert run_worker("--drain").code == 0

    assert {support.read(job).job_state for job in jobs} == {JobState.SUCCEEDED}
    assert sorted(entry.key for entry in Entry.objects.all()) == sorted(f"{job.pk} 1" for job in jobs)
