"""G10: the database's clock decides what is due and over; a worker's own can only end a lease early."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from django_backwave.core.protocol import Renewal, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import clock
from django_backwave.store.claim import claim, scan
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import renew
from tests.factories import LEASE, WORKER, claimed, ready, report, row, second_connection, send
from tests.store.races import locked
from tests.worker.support import outcomes, started, wait_for_state, worker

pytestmark = [pytest.mark.guarantee("G10"), pytest.mark.django_db(transaction=True)]

HOUR = timedelta(hours=1)


@pytest.fixture(params=[-5, 5], ids=["slow", "fast"])
def wrong_clock(request, monkeypatch):
    """Let this host's clock be hours away from the truth."""
    real = clock._local
    monkeypatch.setattr(clock, "_local", lambda: real() + request.param * HOUR)


def take():
    return claim("default", 9, worker=WORKER, lease=LEASE, using="default")


def due(by):
    """Return a ready job that is due so long from now, by the database's clock."""
    job = ready(now=None)
    Job.objects.filter(pk=job.pk).update(due_at=clock.read("default") + by)
    return job


def test_what_is_due_is_claimed_and_nothing_else():
    past, _future = due(-HOUR), due(HOUR)

    assert [job.job_id for job in take()] == [past.pk]
    assert 3500 < scan(None, using="default")["default"] <= 3600


def test_a_job_is_due_at_the_instant_of_its_enqueue():
    ready(now=None)

    assert len(take()) == 1


@pytest.mark.needs("server_clock")
@pytest.mark.usefixtures("wrong_clock")
def test_a_host_whose_clock_is_wrong_claims_the_same():
    past, _future = due(-HOUR), due(HOUR)

    assert [job.job_id for job in take()] == [past.pk]


@pytest.mark.needs("server_clock")
@pytest.mark.usefixtures("wrong_clock")
def test_a_host_whose_clock_is_wrong_sweeps_no_live_lease_and_each_lapsed_one():
    live, over = claimed(now=None), claimed(now=None)
    Job.objects.filter(pk=over.job_id).update(lease_expires_at=clock.read("default") - HOUR)

    assert [swept.key for swept in expire(jitter=lambda: 0.0, using="default")] == [over.key]
    assert row(live).state == JobState.RUNNING


@pytest.mark.needs("server_clock")
@pytest.mark.usefixtures("wrong_clock")
def test_a_host_whose_clock_is_wrong_renews_by_the_right_one():
    job = claimed(now=None)

    assert renew({job.key: None}, worker=WORKER, lease=LEASE, using="default") == {job.key: Renewal.RENEWED}
    left = (row(job).lease_expires_at - clock.read("default")).total_seconds()
    assert LEASE - 20 < left <= LEASE


@pytest.mark.needs("server_clock")
@pytest.mark.usefixtures("wrong_clock")
def test_a_host_whose_clock_is_wrong_is_judged_by_the_right_one():
    live, over = claimed(now=None), claimed(now=None)
    Job.objects.filter(pk=over.job_id).update(lease_expires_at=clock.read("default"))

    assert send(report(live), report(over), now=None) == [Verdict.APPLIED, Verdict.STALE]


def test_the_fence_asks_for_the_instant_of_the_write_and_not_of_the_transaction():
    """On PostgreSQL `now()` stands still from BEGIN; a lease that ended since is over."""
    job = claimed(now=None, lease=0.3)
    with transaction.atomic():
        clock.read("default")
        _wait_for(row(job).lease_expires_at)
        assert send(report(job), now=None) == [Verdict.STALE]


def _wait_for(instant):
    while clock.read("default") < instant:
        pass


@contextmanager
def out_of_reach(job):
    """Keep a worker from renewing a lease: lock the row, or all of a database that has one lock."""
    if connection.vendor != "sqlite":
        with locked(job):
            yield
    else:
        with second_connection() as other, transaction.atomic(using=other):
            yield


@pytest.mark.process
def test_a_workers_own_clock_ends_what_it_could_not_renew_and_its_late_report_is_sent_all_the_same(tmp_path):
    """Its handler is stopped by the monotonic clock; only the fence refuses."""
    with worker("--poll", "0.1", "--lease", "2") as process:
        held = started(tmp_path / "job", "watch_lease")
        with out_of_reach(held.job):
            held.wait_for("ended 1")
            assert row(held.job).attempt == 1
            # By the database's clock it lasts a little longer, and could be renewed yet.
            _wait_for(row(held.job).lease_expires_at + timedelta(seconds=0.1))
        held.go()
        wait_for_state(held.job, JobState.SUCCEEDED)
        process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale", "refused=")

    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]


@pytest.mark.process
def test_a_worker_keeps_a_lease_for_many_times_its_length(tmp_path):
    with worker("--poll", "0.1", "--lease", "4") as process:
        held = started(tmp_path / "job")
        _wait_for(datetime.now(UTC) + timedelta(seconds=12))
        held.go()
        wait_for_state(held.job, JobState.SUCCEEDED)
        process.wait_for(f"job={held.job.pk}", "outcome=succeeded")

    assert outcomes(held.job) == [(1, "succeeded")]
