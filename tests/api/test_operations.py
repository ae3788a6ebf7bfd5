"""``django_backwave.operations``: what operators do, as functions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import override_settings

from django_backwave import operations
from django_backwave.core.states import JobState
from django_backwave.exceptions import InvalidJob
from django_backwave.ids import new_id
from django_backwave.models import Action, Job, Pause
from tests.app.jobs import add
from tests.factories import claimed, ready, row

pytestmark = pytest.mark.django_db

LATER = datetime(2030, 1, 1, tzinfo=UTC)


def test_every_function_goes_through_its_door_and_is_recorded():
    job = ready(due_at=LATER)
    ids = [str(job.pk), new_id()]
    calls = [
        (operations.reschedule, (ids, LATER), {}, "rescheduled"),
        (operations.run_now, (ids,), {}, "rescheduled"),
        (operations.change, (ids,), {"priority": 5, "queue": "mail"}, "changed"),
        (operations.cancel, (ids,), {}, "cancelled"),
        (operations.requeue, (ids,), {"reset_failures": False}, "requeued"),
    ]
    for call, args, options, result in calls:
        done = call(*args, actor="7 anna", **options)
        assert {job_id: each.value for job_id, each in done.items()} == {job.pk: result}

    now = row(job)
    assert (now.priority, now.queue, now.state) == (5, "mail", JobState.READY)
    verbs = Action.objects.filter(actor="7 anna", job_id=job.pk).order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["reschedule", "run_now", "change", "cancel", "requeue"]


def test_pause_and_resume():
    assert operations.pause(queue="mail", actor="7 anna").value == "paused"
    assert operations.pause(name="shop.send").value == "paused"
    assert operations.pause(queue="mail").value == "already paused"
    assert set(Pause.objects.values_list("kind", "target")) == {("queue", "mail"), ("name", "shop.send")}
    assert operations.resume(queue="mail").value == "resumed"
    assert operations.resume(name="mail").value == "not paused"


@pytest.mark.parametrize("call", [operations.pause, operations.resume])
@pytest.mark.parametrize("options", [{}, {"queue": "a", "name": "b"}])
def test_a_pause_is_of_one_thing(call, options):
    with pytest.raises(ValueError, match="a queue or a name"):
        call(**options)


def test_what_no_column_can_hold_is_refused_before_any_sql(django_assert_num_queries):
    job_id = new_id()
    with django_assert_num_queries(0):
        for options in ({"queue": ""}, {"queue": "q" * 101}, {"queue": "a\0b"}, {"name": "n" * 256}):
            with pytest.raises(InvalidJob):
                operations.pause(**options)
        for options in ({"priority": 101}, {"priority": -101}, {"priority": True}, {"priority": 1.5}, {}):
            with pytest.raises(ValueError, match="priority"):
                operations.change([job_id], **options)
        with pytest.raises(InvalidJob):
            operations.change([job_id], queue="q" * 101)
        with pytest.raises(ValueError, match="must be aware"):
            operations.reschedule([job_id], datetime(2030, 1, 1))
        with pytest.raises(ValueError, match="badly formed"):
            operations.cancel(["nonsense"])
        with pytest.raises(ValueError, match="at least one condition"):
            operations.cancel_matching()


def test_a_naive_time_is_local_without_use_tz():
    job = ready()
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"):
        operations.reschedule([job.pk], datetime(2030, 1, 1, 1))

    assert row(job).due_at == LATER


def test_by_a_filter():
    mail = [ready(queue="mail", name="shop.send").pk for _ in range(3)]
    other = ready(queue="mail", name="shop.other")
    running = claimed(name="shop.send")

    done = operations.cancel_matching(queue="mail", name="shop.send", state=JobState.READY, actor="7 anna")
    assert ({result.value: count for result, count in done.counts.items()}, done.before) == (
        {"cancelled": 3},
        None,
    )
    assert set(Job.objects.filter(state=JobState.CANCELLED).values_list("pk", flat=True)) == set(mail)
    assert row(running).cancel_requested_at is None

    done = operations.requeue_matching(name="shop.send", actor="7 anna")
    assert [result.value for result in done.counts] == ["requeued"]
    assert (
        operations.cancel_matching(queue="mail", enqueued_before=datetime(2020, 1, 1, tzinfo=UTC)).counts
        == {}
    )
    assert operations.cancel_matching(state=JobState.WAITING).counts == {}
    assert row(other).state == JobState.READY
    assert Action.objects.count() == 6


def test_some_slices_and_then_the_rest(monkeypatch):
    from django_backwave.store import matching

    monkeypatch.setattr(matching, "SLICE", 2)
    for _ in range(5):
        ready(queue="mail")

    first = operations.cancel_matching(queue="mail", slices=2)
    assert (sum(first.counts.values()), first.before is None) == (4, False)
    rest = operations.cancel_matching(queue="mail", before=first.before)
    assert (sum(rest.counts.values()), rest.before) == (1, None)


@pytest.mark.django_db(databases=["default", "other"])
def test_on_the_jobs_database_or_another():
    here, there = ready(), ready(using="other")

    operations.cancel([there.pk], using="other")
    assert row(there, using="other").state == JobState.CANCELLED
    with override_settings(BACKWAVE={"DATABASE": "other"}):
        assert operations.cancel([here.pk]) == {}
        operations.pause(queue="mail")

    assert Pause.objects.using("other").count() == 1
    assert not Pause.objects.using("default").exists()


def test_a_result_requeues_its_job():
    result = add.enqueue(1, b=2)
    assert result.requeue().value == "not requeueable"
    result.cancel()
    Job.objects.filter(pk=result.id).update(failures=2)

    assert result.requeue(reset_failures=False).value == "requeued"
    assert result.state is JobState.READY
    assert Job.objects.get(pk=result.id).failures == 2


def test_every_name_is_exported():
    functions = {name for name in operations.__all__ if name[0].islower()}

    assert functions == {
        "cancel", "requeue", "reschedule", "run_now", "change", "pause", "resume",
        "run_again", "cancel_matching", "requeue_matching",
    }  # fmt: skip
    assert all(getattr(operations, name).__doc__ for name in operations.__all__)
