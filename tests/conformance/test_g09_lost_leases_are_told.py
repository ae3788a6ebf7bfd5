"""G9: a running handler learns that its lease is lost, and nothing that it reports is recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_backwave.core.protocol import Renewal
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import renew
from tests.factories import LEASE, NOW, STRANGER, WORKER, after, claimed, reclaimed
from tests.worker import support
from tests.worker.support import Held, outcomes, read, started, wait_for_state, worker

pytestmark = [pytest.mark.guarantee("G9"), pytest.mark.django_db(transaction=True)]


def beat(job, now=NOW):
    return renew({job.key: None}, worker=WORKER, lease=LEASE, using="default", now=now)


def take_away(job):
    """Give a running job to a stranger, as after a sweep and a claim."""
    end = datetime.now(UTC) + timedelta(hours=1)
    Job.objects.filter(pk=job.pk).update(worker=STRANGER, attempt=2, lease_expires_at=end)


def test_the_heartbeat_of_a_lease_that_is_gone_says_so():
    job = claimed()
    expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
    assert beat(job, after(LEASE)) == {job.key: Renewal.LOST}

    reclaimed(job, now=after(LEASE))
    assert beat(job, after(LEASE)) == {job.key: Renewal.LOST}, (
        "another attempt of the same worker is another's"
    )


def test_one_lost_lease_says_nothing_of_the_others():
    lost, kept = claimed(now=after(-LEASE)), claimed()

    learnt = renew(dict.fromkeys((lost.key, kept.key)), worker=WORKER, lease=LEASE, using="default", now=NOW)

    assert learnt == {lost.key: Renewal.LOST, kept.key: Renewal.RENEWED}


@pytest.mark.process
def test_a_handler_sees_it_in_its_context_and_its_result_is_not_recorded(tmp_path):
    with worker("--poll", "0.1", "--lease", "2") as process:
        held = started(tmp_path / "job", "watch_lease")
        take_away(held.job)
        held.wait_for("ended 1")
        held.go()
        process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale", "refused=")

    assert outcomes(held.job) == []
    assert (read(held.job).worker, read(held.job).output) == (STRANGER, None)


@pytest.mark.process
def test_a_handler_that_asks_is_stopped(tmp_path):
    """`raise_if_stopped()` raises, so that it ends although nobody says `go`."""
    with worker("--poll", "0.1", "--lease", "2") as process:
        held = started(tmp_path / "job", "hold_obediently")
        take_away(held.job)
        process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale")

    assert held.journal == ["started 1"]


@pytest.mark.process
def test_an_async_handler_is_cancelled(tmp_path):
    with support.worker("--poll", "0.1", "--lease", "2", BACKWAVE_TEST_MODULES="tests.worker.coroutines"):
        held = HeldCoroutine(tmp_path / "job")
        held.wait_for("started 1")
        take_away(held.job)
        held.wait_for("cancelled")

    assert read(held.job).output is None


class HeldCoroutine(Held):
    """An async job that waits for its file `go`."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        name = "tests.worker.coroutines.hold"
        self.job = support.ready(now=None, name=name, payload=support._payload([folder]))


@pytest.mark.process
def test_the_next_attempt_knows_nothing_of_it(tmp_path):
    with worker("--poll", "0.1", "--lease", "2"):
        held = started(tmp_path / "job", "watch_lease")
        Job.objects.filter(pk=held.job.pk).update(lease_expires_at=datetime.now(UTC) - timedelta(seconds=1))
        wait_for_state(held.job, JobState.SUCCEEDED)
        held.go()

    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]
