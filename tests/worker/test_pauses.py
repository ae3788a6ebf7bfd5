"""A worker process and what operators pause: claims stop, what runs goes on, and a resume is heard of."""

from __future__ import annotations

import time

import pytest

from django_backwave import operations
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import aside
from tests.processes import journal, wait_until
from tests.worker.support import (
    HANDLERS,
    enqueue,
    enqueue_many,
    read,
    run_worker,
    started,
    wait_for_state,
    worker,
)

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

HEARD = 5.0  # seconds within which a worker has heard of a pause
GRACE = 8.0  # for a busy machine


@pytest.mark.parametrize("kind", ["queue", "name"])
def test_a_pause_stops_claims_within_five_seconds_while_what_runs_goes_on(tmp_path, kind):
    what = {"queue": "mail"} if kind == "queue" else {"name": f"{HANDLERS}.write"}
    file = tmp_path / "journal"
    with worker("--poll", "0.1") as process:
        # Running jobs of the same queue, one of them of the very name that is paused.
        held = started(tmp_path / "held", queue="mail")
        before = enqueue("write", file, "before", queue="mail")
        wait_for_state(before, JobState.SUCCEEDED)

        operations.pause(**what, actor="7 anna")
        paused_at = time.monotonic()
        process.wait_for("action=pauses_changed", deadline=HEARD + GRACE)
        assert time.monotonic() - paused_at < HEARD + GRACE
        waiting = enqueue("write", file, "after", queue="mail")
        other = enqueue("write_slowly", file, "other", queue="reports")

        wait_for_state(other, JobState.SUCCEEDED)
        held.go()
        wait_for_state(held.job, JobState.SUCCEEDED)
        time.sleep(1.0)  # ten polls
        assert read(waiting).job_state is JobState.READY
        assert read(waiting).attempt == 0

        operations.resume(**what)
        resumed_at = time.monotonic()
        wait_for_state(waiting, JobState.SUCCEEDED)
        assert time.monotonic() - resumed_at < HEARD + GRACE

    assert journal(file) == ["before", "other", "after"]


def test_a_worker_that_starts_under_a_pause_claims_nothing_first(tmp_path):
    operations.pause(queue="mail")
    operations.pause(name=f"{HANDLERS}.write_slowly")
    paused = [enqueue("write", tmp_path / "journal", "queue", queue="mail")]
    paused.append(enqueue("write_slowly", tmp_path / "journal", "name"))
    free = enqueue("write", tmp_path / "journal", "free")

    for _ in range(3):
        assert run_worker("--drain").code == 0

    assert journal(tmp_path / "journal") == ["free"]
    assert read(free).job_state is JobState.SUCCEEDED
    assert [(read(job).job_state, read(job).attempt) for job in paused] == [(JobState.READY, 0)] * 2


def test_jobs_behind_thousands_of_paused_ones_run_and_the_worker_rests(tmp_path):
    """A few windows of a paused name stand at the head of the queue."""
    file = tmp_path / "journal"
    enqueue_many("write_slowly", [(file, "paused")] * (3 * aside.WINDOW + 10))
    operations.pause(name=f"{HANDLERS}.write_slowly")
    behind = [enqueue("write", file, str(number)) for number in range(20)]
    with worker("--poll", "0.5") as process:
        wait_until(lambda: {read(job).job_state for job in behind} == {JobState.SUCCEEDED})
        late = enqueue("write", file, "late")
        wait_for_state(late, JobState.SUCCEEDED)
        used = _cpu(process.pid)
        time.sleep(2.0)
        assert _cpu(process.pid) - used < 1.0, "the worker spins"

    assert "paused" not in journal(file)
    assert Job.objects.filter(state=JobState.READY).count() == 3 * aside.WINDOW + 10


def _cpu(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
