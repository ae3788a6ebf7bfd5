"""The leases of a worker whose process has ended: disposed of at once, and for good (G2, G3, G6, G8, G11)."""

from __future__ import annotations

import pytest

from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import expire as expiring
from tests.factories import (
    NOW,
    STRANGER,
    WORKER,
    after,
    attempts,
    claimed,
    lapsed,
    outcomes,
    ready,
    report,
    row,
    send,
)
from tests.store.races import locked

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


def expire_dead(worker=WORKER, *, ordered=False, jitter=float, limit=100, now=NOW):
    return expiring.expire_dead(worker, ordered=ordered, jitter=jitter, limit=limit, using="default", now=now)


def test_a_live_lease_of_the_dead_is_abandoned():
    """G2, G6: as the sweep would do later, with the same failure and the same history."""
    job = claimed(now=after(-5))

    [settled] = expire_dead()

    assert (settled.key, settled.worker, settled.state) == (job.key, WORKER, JobState.READY)
    back = row(job)
    assert (back.state, back.failures, back.attempt, back.due_at) == (JobState.READY, 1, 1, NOW)
    assert (back.worker, back.lease_expires_at, back.cause) == ("", None, "lease lapsed")
    assert outcomes(job) == [(1, "abandoned")]
    assert expire_dead() == [], "once is enough"


def test_what_others_hold_is_left_alone():
    """G3: their processes live, however long their leases have been over."""
    others = [claimed(worker=STRANGER), lapsed(worker=STRANGER)]
    ready()

    assert expire_dead() == []
    assert {row(job).job_state for job in others} == {JobState.RUNNING}


def test_lapsed_ones_go_along():
    job = lapsed()
    assert [settled.key for settled in expire_dead()] == [job.key]


def test_the_last_failure_is_the_last():
    """G6: a job that kills its processes ends among the dead letters, and not in a loop."""
    job = claimed(failures=2, max_attempts=3)

    [settled] = expire_dead()

    assert settled.state is row(job).job_state is JobState.DEAD_LETTERED


@pytest.mark.parametrize("ordered", [False, True])
def test_cancel_requested(ordered):
    """G8: it never runs again."""
    job = claimed(cancel_requested_at=after(-1))

    [settled] = expire_dead(ordered=ordered)

    assert settled.state is row(job).job_state is JobState.CANCELLED
    assert (row(job).finished_at, row(job).cause) == (NOW, "cancel requested")


def test_after_an_ordered_end_nothing_counts():
    """G11: what had begun is told in the history; what had not leaves no trace."""
    begun, not_begun = claimed(failures=2, max_attempts=3), claimed()
    Job.objects.filter(pk=begun.job_id).update(started_at=after(-9))

    settled = expire_dead(ordered=True)

    assert {lease.key for lease in settled} == {begun.key, not_begun.key}
    assert {lease.state for lease in settled} == {JobState.READY}
    assert (row(begun).failures, row(not_begun).failures) == (2, 0)
    assert (row(begun).worker, row(begun).lease_expires_at) == ("", None)
    assert outcomes(begun) == [(1, "released")]
    assert attempts(begun)[0].started_at == after(-9)
    assert attempts(not_begun) == []


def test_a_report_that_comes_after_it_is_refused():
    """G4: a settle that the dead had sent finds nothing of its own any more."""
    job = claimed()
    expire_dead()

    assert send(report(job)) == [Verdict.STALE]
    assert row(job).job_state is JobState.READY


def test_a_slice_is_bounded():
    for _ in range(5):
        claimed()

    assert [len(expire_dead(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


@committing
def test_a_locked_row_is_passed_over():
    """§9.1: the next look finds it, and the others do not wait."""
    free, stuck = claimed(), claimed()

    with locked(stuck):
        assert [lease.key for lease in expire_dead()] == [free.key]

    assert [lease.key for lease in expire_dead()] == [stuck.key]


def test_a_lease_that_changed_hands_in_between_is_left_alone(monkeypatch):
    """G3: where rows cannot be locked."""
    job = claimed()
    look = expiring._abandoned_before

    def slow_look(job_ids, using):
        Job.objects.filter(pk=job.job_id).update(worker=STRANGER)
        return look(job_ids, using)

    monkeypatch.setattr(expiring, "_abandoned_before", slow_look)

    assert expire_dead() == []
    assert row(job).worker == STRANGER
