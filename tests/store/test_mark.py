"""Marks: begun and done are written through the fence, one row for each job and name."""

from __future__ import annotations

import pytest

from django_backwave.core.states import JobState
from django_backwave.models import Mark
from django_backwave.store import mark
from django_backwave.store.expire import expire
from django_backwave.store.mark import Marked
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.retention import prune
from tests.factories import (
    LEASE,
    NOW,
    STRANGER,
    SUCCEEDED,
    WORKER,
    after,
    claimed,
    reclaimed,
    report,
    row,
    send,
)
from tests.store.races import behind, locked, needs_row_locks

pytestmark = pytest.mark.django_db(transaction=True)


def begin(job, name="charge", *, worker=WORKER, now=NOW):
    return mark.begin(job.key, name, worker=worker, using="default", now=now)


def finish(job, name="charge", result='"R-1"', *, worker=WORKER, now=NOW):
    return mark.finish(job.key, name, result, worker=worker, using="default", now=now)


def stored():
    rows = Mark.objects.order_by("pk")
    return [(each.name, each.attempt, each.begun_at, each.done_at, each.result) for each in rows]


def lose(job):
    """Let the lease lapse, and return the next attempt."""
    expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
    return reclaimed(job, worker=STRANGER, now=after(LEASE))


def test_begun_and_done():
    job = claimed()

    assert begin(job) == Marked(first=True)
    assert stored() == [("charge", 1, NOW, None, None)]
    assert finish(job, now=after(2))
    assert stored() == [("charge", 1, NOW, after(2), "R-1")]


def test_the_next_attempt_learns_what_was_done():
    job = claimed()
    begin(job)
    finish(job, result='{"receipt":"R-1"}')
    newer = lose(job)

    marked = begin(newer, worker=STRANGER, now=after(LEASE))

    assert marked == Marked(first=False, done=True, result={"receipt": "R-1"})


def test_the_next_attempt_learns_what_was_only_begun():
    job = claimed()
    begin(job)
    newer = lose(job)

    assert begin(newer, worker=STRANGER, now=after(LEASE)) == Marked(first=False)
    assert finish(newer, worker=STRANGER, now=after(LEASE))
    assert stored() == [("charge", 2, NOW, after(LEASE), "R-1")]


def test_what_is_done_stays_as_it_is():
    job = claimed()
    begin(job)
    finish(job)

    assert finish(job, result='"R-2"', now=after(1))

    assert stored() == [("charge", 1, NOW, NOW, "R-1")]


def test_names_and_jobs_are_apart_byte_for_byte():
    job, other = claimed(), claimed()

    assert [begin(job, name).first for name in ("a", "A", "a ", "ä", "a")] == [True] * 4 + [False]
    assert begin(other, "a").first


@pytest.mark.parametrize(
    "changes",
    [{"worker": STRANGER}, {"now": after(LEASE)}],
    ids=["another worker", "lease over"],
)
def test_the_fence_refuses(changes):
    """G4."""
    job = claimed()
    assert begin(job, **changes) is None
    assert stored() == []

    begin(job)
    assert finish(job, **changes) is False
    assert stored() == [("charge", 1, NOW, None, None)]


def test_a_stale_attempt_writes_nothing():
    job = claimed()
    begin(job)
    lose(job)
    before = stored()

    assert begin(job, "mail", now=after(LEASE)) is None
    assert finish(job, now=after(LEASE)) is False
    assert stored() == before


def test_an_ended_job_has_no_new_marks():
    job = claimed()
    send(report(job))

    assert begin(job) is None


def test_the_fence_is_asked_after_the_wait_for_a_lock():
    needs_row_locks()
    job = claimed()

    marked = behind(
        lambda other: expire(jitter=lambda: 0.0, using=other, now=after(LEASE)), lambda: begin(job)
    )

    assert marked is None
    assert stored() == []


def test_rows_of_others_that_are_locked_delay_nothing():
    others = [claimed() for _ in range(3)]
    job = claimed()

    with locked(*others):
        assert begin(job).first
        assert finish(job)


def test_a_cancel_request_stops_no_mark():
    job = claimed()
    cancel([job.job_id], using="default", now=NOW)

    assert begin(job).first
    assert finish(job)


def test_marks_outlive_a_requeue_and_go_with_the_job():
    job = claimed()
    begin(job)
    finish(job)
    cancel([job.job_id], using="default", now=NOW)
    expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
    assert row(job).job_state is JobState.CANCELLED
    requeue([job.job_id], using="default", now=after(LEASE))
    again = reclaimed(job, now=after(LEASE))

    assert begin(again, now=after(LEASE)).done

    send(report(again, SUCCEEDED), now=after(LEASE))
    assert prune(keep_done=0.0, keep_dead=None, using="default", now=after(LEASE + 9)) == 1
    assert stored() == []
