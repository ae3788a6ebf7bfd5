"""Release: what a worker holds without knowing it goes back, at no cost (G2, G11)."""

from __future__ import annotations

import pytest

from django_backwave.core.protocol import AttemptKey
from django_backwave.core.states import JobState
from django_backwave.store.release import release_unknown
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
    ready,
    reclaimed,
    row,
)

pytestmark = pytest.mark.django_db


def release(*known, worker=WORKER, now=NOW):
    return release_unknown([job.key for job in known], worker=worker, using="default", now=now)


def test_unknown_jobs_go_back_at_no_cost():
    """G11: a job of a lost claim is READY again, due as before, without a failure or an attempt."""
    job = claimed(now=after(-9), failures=1)

    assert release() == [job.key]

    back = row(job)
    assert (back.state, back.failures, back.attempt) == (JobState.READY, 1, 1)
    assert (back.due_at, back.cause, back.finished_at) == (after(-9), "", None)
    assert (back.worker, back.lease_expires_at) == ("", None)
    assert attempts(job) == []
    assert reclaimed(job).attempt == 2


def test_known_jobs_stay():
    """G2: what the worker knows is running, and stays."""
    known, unknown = claimed(), claimed()
    before = row(known)

    assert release(known) == [unknown.key]
    assert vars(row(known)) | {"_state": 0} == vars(before) | {"_state": 0}
    assert row(known).state == JobState.RUNNING


def test_an_old_attempt_does_not_make_a_job_known():
    """G2: it is the attempt that is known, so that a lost claim of a job held before goes back."""
    old = lapsed()
    new = AttemptKey(old.job_id, 2)
    row(old).delete()
    claimed(id=old.job_id, attempt=1)

    assert release(old) == [new]


@pytest.mark.parametrize("failures", [0, 2])
def test_cancel_requested(failures):
    """G8: an unknown job whose cancel was requested is CANCELLED."""
    job = claimed(cancel_requested_at=NOW, failures=failures)

    assert release(now=after(1)) == [job.key]

    ended = row(job)
    assert (ended.state, ended.cause) == (JobState.CANCELLED, "cancel requested")
    assert (ended.finished_at, ended.failures) == (after(1), failures)
    assert attempts(job) == []


def test_other_workers_jobs_stay():
    """G4: a worker hands back under its own name only."""
    claimed(worker=STRANGER), claimed(worker=WORKER.upper()), ready()
    before = contents()

    assert release() == []
    assert contents() == before


def test_lapsed_leases_stay_for_the_sweep():
    """G6: a lease that is over counts as a failure, so it is not handed back."""
    claimed(now=after(-LEASE))
    before = contents()

    assert release() == []
    assert contents() == before


def test_the_real_clock_releases():
    """G10: without a virtual clock the database's tells which leases are live."""
    live, _dead = claimed(now=None, cancel_requested_at=NOW), claimed(now=None, lease=0)

    assert release(now=None) == [live.key]
    assert row(live).finished_at > row(live).enqueued_at


def test_repeated_release_finds_nothing():
    """G2: a release whose reply was lost is simply repeated."""
    claimed()
    release()
    before = contents()

    assert release() == []
    assert contents() == before
