"""Operate on jobs that wait: reschedule, run now, change; one door each, guarded, recorded, under races."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_backwave.core.protocol import ChangeResult, RescheduleResult
from django_backwave.core.states import JobState
from django_backwave.ids import new_id
from django_backwave.models import Action, Job
from django_backwave.store import adjust
from django_backwave.store.claim import claim
from tests.factories import NOW, WORKER, after, claimed, contents, ready, row, second_connection
from tests.store.races import behind, needs_row_locks, race

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

ROUNDS = 30
PENDING = [JobState.WAITING, JobState.READY]
OTHERS = sorted(set(JobState) - {*PENDING, JobState.RUNNING})

LATER = after(3600)
CALLS = {
    "reschedule": lambda ids, **options: adjust.reschedule(ids, LATER, **options),
    "run_now": adjust.run_now,
    "change": lambda ids, **options: adjust.change(ids, priority=7, queue="mail", **options),
}
WRITTEN = {
    "reschedule": {"due_at": LATER},
    "run_now": {"due_at": after(9)},
    "change": {"priority": 7, "queue": "mail"},
}
every_call = pytest.mark.parametrize("verb", CALLS)


def run(verb, *job_ids, using="default", now=NOW, actor=""):
    results = CALLS[verb](job_ids, using=using, now=now, actor=actor)
    return [results.get(job_id) and results[job_id].value for job_id in job_ids]


def done(verb):
    return "changed" if verb == "change" else "rescheduled"


@every_call
@pytest.mark.parametrize("state", PENDING)
def test_what_waits_is_changed_and_nothing_else_of_it(verb, state):
    job, bystander = ready(state=state, due_at=after(60)), ready()
    before = Job.objects.values().get(pk=job.pk)

    assert run(verb, job.pk, new_id(), now=after(9)) == [done(verb), None]

    assert Job.objects.values().get(pk=job.pk) == before | WRITTEN[verb]
    assert row(bystander).due_at == NOW
    assert row(bystander).queue == "default"


@every_call
def test_a_running_job_is_left_alone(verb):
    """G3: nothing takes a running job from its worker, nor moves it."""
    job = claimed()
    before = contents()

    assert run(verb, job.job_id, actor="7 anna") == ["running"]
    assert contents() == before
    assert not Action.objects.exists()


@every_call
@pytest.mark.parametrize("state", OTHERS)
def test_a_finished_job_is_left_alone(verb, state):
    """G8: no terminal job is changed."""
    job = ready(state=state)
    before = contents()

    assert run(verb, job.pk, actor="7 anna") == ["already finished"]
    assert contents() == before
    assert not Action.objects.exists()


def test_priority_and_queue_change_alone():
    job = ready(priority=3, queue="mail")

    adjust.change([job.pk], priority=-100, using="default")
    assert (row(job).priority, row(job).queue) == (-100, "mail")
    adjust.change([job.pk], queue="other", using="default")
    assert (row(job).priority, row(job).queue) == (-100, "other")
    with pytest.raises(ValueError, match="a priority, a queue, or both"):
        adjust.change([job.pk], using="default")


def test_each_effect_is_recorded_under_the_operators_name():
    job, other = ready(), claimed()
    for verb in CALLS:
        run(verb, job.pk, other.job_id, actor="7 anna", now=after(1))
        run(verb, job.pk)  # by nobody in particular

    assert list(
        Action.objects.order_by("pk").values_list("actor", "verb", "job_id", "queue", "result", "at")
    ) == [
        ("7 anna", "reschedule", job.pk, "", "rescheduled to 2026-03-01 13:00:00 UTC", after(1)),
        ("7 anna", "run_now", job.pk, "", "due now", after(1)),
        ("7 anna", "change", job.pk, "mail", "changed to priority 7", after(1)),
    ]


def test_a_rescheduled_job_is_claimed_at_its_new_time():
    job = ready()
    run("reschedule", job.pk)

    assert claim("default", 1, worker=WORKER, lease=9, using="default", now=after(3599)) == []
    run("run_now", job.pk, now=after(10))
    assert [
        each.job_id for each in claim("default", 1, worker=WORKER, lease=9, using="default", now=after(10))
    ] == [job.pk]


def test_the_real_clock():
    """G10: without a virtual clock the database's is written."""
    job = ready(now=None, due_at=after(-99))

    run("run_now", job.pk, now=None)

    assert row(job).due_at >= row(job).enqueued_at


@committing
@pytest.mark.slow
@every_call
def test_a_claim_at_the_same_instant(verb):
    """Of the two one comes first, and the answer says which: never is a claimed job moved."""
    jobs = [ready(queue=f"queue-{number}") for number in range(ROUNDS)]

    def ask(number):
        return claim(f"queue-{number}", 1, worker=WORKER, lease=9, using="default", now=NOW)

    told, claims = race(ROUNDS, lambda number: run(verb, jobs[number].pk)[0], ask)

    for number, (job, answer, taken) in enumerate(zip(jobs, told, claims, strict=True)):
        now = row(job)
        if answer == "running":
            assert [each.job_id for each in taken] == [job.pk]
            assert (now.due_at, now.queue, now.priority) == (NOW, f"queue-{number}", 0)
        else:
            assert answer == done(verb)
            # A claim that came after it met the changed row; one that met the lock passed over it.
            assert not taken or verb == "run_now"
            if verb != "run_now":
                assert now.state == JobState.READY


@committing
@every_call
def test_it_waits_for_an_open_claim_and_finds_the_job_running(verb):
    job = ready()

    told = behind(
        lambda other: claim("default", 1, worker=WORKER, lease=9, using=other, now=NOW),
        lambda: run(verb, job.pk),
    )

    assert told == ["running"]
    assert (row(job).due_at, row(job).queue) == (NOW, "default")


@committing
def test_a_claim_passes_over_what_is_open_and_then_obeys():
    needs_row_locks()
    job = ready()
    with second_connection() as other, transaction.atomic(using=other):
        run("change", job.pk, using=other)
        assert claim("default", 1, worker=WORKER, lease=9, using="default", now=NOW) == []

    assert claim("default", 1, worker=WORKER, lease=9, using="default", now=NOW) == []
    assert len(claim("mail", 1, worker=WORKER, lease=9, using="default", now=NOW)) == 1


@committing
def test_it_joins_the_callers_transaction():
    job = ready()
    before = contents()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        for verb in CALLS:
            run(verb, job.pk, actor="7 anna")
        raise ZeroDivisionError

    assert contents() == before
    assert not Action.objects.exists()


def test_results_have_no_other_members():
    assert {result.value for result in RescheduleResult} == {"rescheduled", "running", "already finished"}
    assert {result.value for result in ChangeResult} == {"changed", "running", "already finished", "keyed"}
