"""Heartbeat: leases are renewed while they live, and lost ones and cancels are told (G3, G8, G9)."""

from __future__ import annotations

import pytest

from django_backwave.core.protocol import AttemptKey, CancelResult, Renewal
from django_backwave.core.states import JobState
from django_backwave.ids import new_id
from django_backwave.models import Worker
from django_backwave.store import heartbeat
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import announce, withdraw
from django_backwave.store.operate import cancel
from tests.factories import (
    LEASE,
    NOW,
    STRANGER,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    lapsed,
    reclaimed,
    report,
    row,
    send,
)

pytestmark = pytest.mark.django_db


def renew(*jobs, started_at=None, worker=WORKER, lease=LEASE, now=NOW):
    held = {job.key: started_at for job in jobs}
    renewals = heartbeat.renew(held, worker=worker, lease=lease, using="default", now=now)
    assert renewals.keys() == held.keys()
    return [renewals[job.key] for job in jobs]


def test_renewal_extends_from_now():
    """G3: a renewed lease runs its full length again, from the instant of the renewal."""
    jobs = [claimed(), claimed()]

    assert renew(*jobs, now=after(20)) == [Renewal.RENEWED] * 2
    assert [row(job).lease_expires_at for job in jobs] == [after(20 + LEASE)] * 2


def test_renewal_writes_nothing_but_the_lease():
    """A heartbeat changes the lease's end and the handler's start, and nothing else."""
    job = claimed()
    before = vars(row(job))

    renew(job, started_at=after(1), now=after(20))

    after_it = vars(row(job))
    changed = {name for name in before if before[name] != after_it[name]}
    assert changed == {"_state", "lease_expires_at", "started_at"}
    assert attempts(job) == []


@pytest.mark.parametrize(("own", "ends"), [(None, 30), (5, 5), (300, 300)])
def test_each_job_keeps_its_own_lease_length(own, ends):
    """A job with a lease of its own is renewed by that; the others by the worker's."""
    job, other = claimed(lease_seconds=own), claimed()

    renew(job, other, lease=30)

    assert row(job).lease_expires_at == after(ends)
    assert row(other).lease_expires_at == after(30)


def test_the_real_clock_renews():
    """G10: without a virtual clock the lease runs from the database's time."""
    job, long = claimed(now=None), claimed(now=None, lease_seconds=1000)
    ends = row(job).lease_expires_at

    assert renew(job, long, lease=120, now=None) == [Renewal.RENEWED] * 2
    assert 59 < (row(job).lease_expires_at - ends).total_seconds() < 119
    assert 800 < (row(long).lease_expires_at - row(job).lease_expires_at).total_seconds() < 890


def test_the_start_is_written_once():
    """The handler's start is written by the first heartbeat that knows it, and kept by the next."""
    job = claimed()

    starts = []
    for started_at in (None, after(2), after(9), None):
        renew(job, started_at=started_at, now=after(10))
        starts.append(row(job).started_at)

    assert starts == [None, after(2), after(2), after(2)]


def test_a_cancel_is_told():
    """G8: the heartbeat after a cancel request renews the lease and says so, each time."""
    job, other = claimed(), claimed()
    assert cancel([job.job_id], using="default", now=NOW) == {job.job_id: CancelResult.ASKED_TO_STOP}

    for seconds in (5, 10):
        told = renew(job, other, now=after(seconds))
        assert told == [Renewal.CANCEL_REQUESTED, Renewal.RENEWED]
    assert row(job).lease_expires_at == after(10 + LEASE)


def test_a_lost_lease_is_told():
    """G9: expired, swept, reclaimed, settled and deleted are all lost; live ones are renewed."""
    live, expired, settled, gone = claimed(), lapsed(), claimed(), claimed()
    swept, again = lapsed(), lapsed()
    foreign = claimed(worker=STRANGER)
    expire(jitter=float, using="default", now=NOW)
    reclaimed(again)
    expired = lapsed()
    send(report(settled))
    row(gone).delete()

    told = renew(live, expired, settled, gone, swept, again, foreign)

    assert told == [Renewal.RENEWED] + [Renewal.LOST] * 6
    assert row(swept).state == JobState.READY


def test_a_renewal_never_revives():
    """G4: what is lost stays as it is, byte for byte."""
    jobs = [lapsed(), claimed(worker=STRANGER), claimed()._replace(attempt=2)]
    before = contents()

    assert renew(*jobs, started_at=NOW) == [Renewal.LOST] * 3
    assert contents() == before


def test_old_and_new_attempt_in_one_heartbeat():
    """G9: a worker that holds a job anew while its old thread still runs hears of both."""
    old = lapsed()
    expire(jitter=float, using="default", now=NOW)
    new = reclaimed(old)

    assert renew(old, new, now=after(1)) == [Renewal.LOST, Renewal.RENEWED]


def test_nothing_held(django_assert_num_queries):
    """G12: an idle worker's heartbeat of no leases asks the database nothing."""
    with django_assert_num_queries(0):
        assert renew() == []


def test_many_leases_cost_few_statements(django_assert_max_num_queries):
    """G12: beside a guarded UPDATE for each lease, where there must be one, nothing grows."""
    jobs = [claimed() for _ in range(20)]

    with django_assert_max_num_queries(20 + 4):
        renew(*jobs)


def test_unknown_keys_are_lost():
    """G9: a job that never was is lost."""
    key = AttemptKey(new_id(), 1)

    renewals = heartbeat.renew({key: None}, worker=WORKER, lease=9, using="default", now=NOW)

    assert renewals == {key: Renewal.LOST}


def say_hello(*, name=WORKER, now=NOW, **changes):
    values = {
        "host": "höst",
        "pid": 7,
        "started_at": NOW,
        "queues": ["mail", "video"],
        "names": ["a", "b"],
        "concurrency": 4,
        "version": "0.1.0",
    }
    announce(name=name, using="default", now=now, **values | changes)


def test_announce_writes_one_row_and_keeps_it_fresh():
    """A worker's row is written by its first heartbeat and says from then on when it was last seen."""
    say_hello()
    say_hello(now=after(10), queues=None, names=["c"], concurrency=8)

    [worker] = Worker.objects.all()
    assert (worker.name, worker.host, worker.pid) == (WORKER, "höst", 7)
    assert (worker.started_at, worker.seen_at) == (NOW, after(10))
    assert (worker.queues, worker.names, worker.concurrency) == (None, ["c"], 8)


def test_announce_keeps_workers_apart():
    """Each worker has its own row; names that differ only in case are two workers."""
    say_hello(name="host:1:a"), say_hello(name="host:1:A")

    assert set(Worker.objects.values_list("name", flat=True)) == {"host:1:a", "host:1:A"}


def test_withdraw_deletes_only_ones_own_row():
    """A worker that ends in order takes its row with it."""
    say_hello(), say_hello(name=STRANGER)

    withdraw(WORKER, using="default")
    withdraw(WORKER, using="default")

    assert [worker.name for worker in Worker.objects.all()] == [STRANGER]
