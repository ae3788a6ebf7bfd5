"""Cancel and requeue by a filter: every job that matches, slice by slice, restartable, and none besides."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.models import Q

from django_backwave.core.protocol import CancelResult, RequeueResult
from django_backwave.core.states import JobState
from django_backwave.models import Action, Job
from django_backwave.store import adjust, matching, operate
from django_backwave.store.enqueue import insert_many
from tests.factories import NOW, claimed, contents, new_job, ready, row

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

MAIL = Q(queue="mail")
CANCELLED, ASKED, _ = CancelResult


@pytest.fixture
def small(monkeypatch):
    """Let a step change two jobs at most, and look at five."""
    monkeypatch.setattr(matching, "SLICE", 2)
    monkeypatch.setattr(matching, "WINDOW", 5)


def steps(step, where, **options):
    """Go to the end; return what each step did."""
    made, before = [], None
    while True:
        one = step(where, before=before, using="default", **options)
        made.append(one.results)
        before = one.before
        if before is None:
            return made
        assert len(made) < 99, "it does not end"


def fill(count, **options):
    jobs = [new_job(**options) for _ in range(count)]
    insert_many(jobs, using="default", now=NOW)
    return [job.id for job in jobs]


@pytest.mark.usefixtures("small")
def test_every_job_that_matches_is_cancelled_from_the_newest_on_and_no_other():
    pending = fill(4, queue="mail")
    others = fill(9, queue="other")
    running = claimed(queue="mail-2")
    Job.objects.filter(pk=running.job_id).update(queue="mail")
    done = ready(queue="mail", state=JobState.SUCCEEDED)

    made = steps(matching.cancel_step, MAIL, actor="7 anna")

    assert [job_id for results in made for job_id in results] == [
        running.job_id, *(sorted(pending[2:])), *sorted(pending[:2])
    ]  # fmt: skip
    assert max(len(results) for results in made) <= 2
    assert set(Job.objects.filter(pk__in=pending).values_list("state", flat=True)) == {JobState.CANCELLED}
    assert row(running).cancel_requested_at is not None
    assert Job.objects.filter(pk__in=others, state=JobState.READY).count() == 9
    assert row(done).state == JobState.SUCCEEDED
    assert Action.objects.filter(actor="7 anna", verb="cancel").count() == 5


@pytest.mark.usefixtures("small")
def test_requeue_sends_back_what_may_be_and_meets_each_job_once():
    dead = [ready(queue="mail", state=JobState.DEAD_LETTERED, failures=3).pk for _ in range(5)]
    ready(queue="mail", state=JobState.SUCCEEDED)

    made = steps(matching.requeue_step, MAIL, reset_failures=False)

    assert [result for results in made for result in results.values()] == [RequeueResult.REQUEUED] * 5
    assert set(Job.objects.filter(pk__in=dead).values_list("state", "failures")) == {(JobState.READY, 3)}
    steps(matching.cancel_step, MAIL)
    steps(matching.requeue_step, MAIL)
    assert set(Job.objects.filter(pk__in=dead).values_list("state", "failures")) == {(JobState.READY, 0)}


def test_a_slice_is_a_thousand_jobs_in_one_transaction():
    fill(2300, queue="mail")

    first = matching.cancel_step(MAIL, using="default", actor="7 anna")
    assert len(first.results) == 1000
    assert Job.objects.filter(state=JobState.CANCELLED).count() == Action.objects.count() == 1000
    assert [len(results) for results in steps(matching.cancel_step, MAIL)] == [1000, 300]
    assert not Job.objects.filter(state=JobState.READY).exists()


@pytest.mark.usefixtures("small")
def test_what_is_enqueued_meanwhile_is_left_alone():
    fill(3, queue="mail")
    first = matching.cancel_step(MAIL, using="default")
    late = fill(3, queue="mail")

    second = matching.cancel_step(MAIL, before=first.before, using="default")

    assert (len(first.results), len(second.results), second.before) == (2, 1, None)
    assert Job.objects.filter(pk__in=late, state=JobState.READY).count() == 3


@pytest.mark.usefixtures("small")
def test_whoever_is_interrupted_begins_anew():
    fill(7, queue="mail")
    matching.cancel_step(MAIL, using="default")

    steps(matching.cancel_step, MAIL)

    assert Job.objects.filter(state=JobState.CANCELLED).count() == 7


def test_the_filter_is_checked_again_under_the_locks(monkeypatch):
    """Between the look and the lock an operator has moved one of the jobs to another queue."""
    moved, stays = fill(2, queue="mail")
    cancel = operate.cancel

    def late(job_ids, **options):
        adjust.change([moved], queue="other", using="default")
        return cancel(job_ids, **options)

    monkeypatch.setattr(operate, "cancel", late)

    step = matching.cancel_step(MAIL, using="default")

    assert step.results == {stays: CANCELLED}
    assert Job.objects.get(pk=moved).state == JobState.READY


def test_a_state_is_checked_again_too(monkeypatch):
    """Who asks for what is ready does not stop what has begun to run since."""
    [job_id] = fill(1, queue="mail")
    cancel = operate.cancel

    def late(job_ids, **options):
        Job.objects.filter(pk=job_id).update(state=JobState.RUNNING, lease_expires_at=NOW)
        return cancel(job_ids, **options)

    monkeypatch.setattr(operate, "cancel", late)

    step = matching.cancel_step(MAIL & Q(state=JobState.READY.value), using="default")

    assert step.results == {}
    assert Job.objects.get(pk=job_id).cancel_requested_at is None


@committing
def test_a_slice_that_fails_has_done_nothing():
    from django_backwave.store import failpoint

    fill(3, queue="mail")
    before = contents()

    def fail():
        raise ZeroDivisionError

    failpoint.arm("cancel: rows written", fail)
    try:
        with pytest.raises(ZeroDivisionError):
            matching.cancel_step(MAIL, actor="7 anna", using="default")
    finally:
        failpoint.disarm()

    assert contents() == before
    assert not Action.objects.exists()


def test_counting_ends_at_its_bounds(monkeypatch):
    fill(12, queue="mail")
    fill(3, queue="other")

    def count(where):
        counted = matching.count(where, using="default")
        return counted.number, counted.exact

    assert count(MAIL) == (12, True)
    monkeypatch.setattr(matching, "WINDOW", 5)
    assert count(MAIL) == (12, True)
    monkeypatch.setattr(matching, "MOST_COUNTED", 12)
    assert count(MAIL) == (12, True)
    monkeypatch.setattr(matching, "MOST_COUNTED", 11)
    assert count(MAIL) == (11, False)
    monkeypatch.setattr(matching, "MOST_WINDOWS", 2)
    assert count(MAIL) == (7, False)


@pytest.mark.usefixtures("small")
def test_nothing_matches():
    assert steps(matching.cancel_step, MAIL) == [{}]
    fill(12, queue="other")
    assert steps(matching.cancel_step, MAIL) == [{}, {}, {}]


@committing
def test_each_step_is_one_transaction_also_for_who_has_none():
    fill(3, queue="mail")
    with transaction.atomic():
        matching.cancel_step(MAIL, using="default")
        transaction.set_rollback(True)

    assert Job.objects.filter(state=JobState.READY).count() == 3
    assert not connection.in_atomic_block
