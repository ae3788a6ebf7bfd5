"""Prepared enqueues: fixed, repeatable, and text."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_backwave import Backoff, JobState, PreparedEnqueue, Resolution, job
from django_backwave.compat import TASKS_PACKAGE, task_enqueued
from django_backwave.exceptions import (
    CannotResolve,
    InvalidArguments,
    InvalidJob,
    KeyBusy,
    OperationExpired,
)
from django_backwave.models import Job, Operation
from django_backwave.store import retention
from django_backwave.store.claim import claim
from django_backwave.testing.clock import virtual_clock
from tests.api import handlers
from tests.factories import WORKER, report, send

pytestmark = pytest.mark.django_db
AT = datetime(2030, 1, 1, 12, 30, 0, 5, tzinfo=UTC)

EVERYTHING = {
    "queue_name": "slow",
    "priority": -3,
    "run_after": AT,
    "max_attempts": 2,
    "backoff": Backoff(base=3, cap=7, jitter=0.25),
    "lease": 30,
    "timeout": 20,
    "expires": AT + timedelta(hours=1),
    "tags": ["vip", ("customer", "7")],
    "key": "receipt:{7}",
    "on_conflict": "new_generation",
    "unique_for": 60,
}


def as_text(prepared):
    return PreparedEnqueue.loads(prepared.dumps())


def as_pickle(prepared):
    return pickle.loads(pickle.dumps(prepared))  # noqa: S301 - our own


def columns():
    """Return what the one job's row says of what is to be done."""
    changing = ("id", "enqueued_at", "generation")
    [row] = Job.objects.values()
    return {name: value for name, value in row.items() if name not in changing}


def test_it_makes_the_job_that_an_enqueue_makes(settings):
    settings.BACKWAVE = {"ON_ENQUEUE": ["tests.api.hooks.tenant"]}
    task = handlers.send_receipt.using(**EVERYTHING)
    task.enqueue(7, copy=True)
    plainly = columns()
    tags = sorted(Job.objects.get().tags.values_list("key", "value"))
    Job.objects.all().delete()

    PreparedEnqueue.loads(task.using(key="other").prepare(7, copy=True).dumps()).enqueue()

    assert columns() == plainly | {"key": "other"}
    assert sorted(Job.objects.get().tags.values_list("key", "value")) == tags


@pytest.mark.parametrize("options", [{}, EVERYTHING, {"expires": 90}, {"key": "k", "unique_for": "pending"}])
@pytest.mark.parametrize("copy", [as_text, as_pickle])
def test_it_survives_as_text_and_as_pickle(copy, options):
    prepared = handlers.send_receipt.using(**options).prepare(7, copy=True)
    assert copy(prepared) == prepared
    assert copy(prepared).digest == prepared.digest


def test_repetitions_return_the_same():
    prepared = handlers.send_receipt.prepare(7)
    first, again = prepared.enqueue(), PreparedEnqueue.loads(prepared.dumps()).enqueue()

    assert first == again
    assert first.id == again.id == prepared.id == str(Job.objects.get().pk)
    assert (first.created, again.created) == (True, True)
    assert first.receipt.confirmed == again.receipt.confirmed != "in_transaction"
    assert first.args == [7]


def test_a_key_leads_to_the_generation_that_exists():
    other = handlers.send_receipt.using(key="k").enqueue(7)
    prepared = handlers.send_receipt.using(key="k").prepare(8)

    for _ in range(2):
        result = prepared.enqueue()
        assert (result.id, result.created, result.generation, result.args) == (other.id, False, 1, [7])
    assert prepared.resolve() is Resolution.APPLIED


def test_a_key_that_does_not_admit_it():
    other = handlers.send_receipt.using(key="k").enqueue(7)
    prepared = handlers.send_receipt.using(key="k", on_conflict="new_generation").prepare(8)

    with pytest.raises(KeyBusy) as caught:
        prepared.enqueue()

    assert (caught.value.result.id, caught.value.disposition) == (other.id, "known_not_applied")
    assert prepared.resolve() is Resolution.NOT_APPLIED


def test_a_job_that_goes_on_is_read_as_it_stands():
    prepared = handlers.send_receipt.prepare(7)
    prepared.enqueue()
    [taken] = claim("mail", 1, worker=WORKER, lease=60.0, using="default")
    send(report(taken), now=None)

    assert (prepared.enqueue().state, prepared.enqueue().created) == (JobState.SUCCEEDED, True)


def test_a_job_that_was_pruned_is_told_so():
    prepared = handlers.send_receipt.using(key="k").prepare(7)
    prepared.enqueue()
    [taken] = claim("mail", 1, worker=WORKER, lease=60.0, using="default")
    send(report(taken), now=None)
    with virtual_clock(datetime.now(UTC) + timedelta(minutes=2)):
        retention.prune(keep_done=1.0, keep_dead=1.0, using="default")
    result = prepared.enqueue()

    assert Job.objects.count() == 0
    assert (result.id, result.generation, result.created) == (prepared.id, 1, True)
    assert (result.state, result.cause) == (JobState.SUCCEEDED, "pruned")


def test_a_pruned_job_of_another_queue_is_told_with_its_own():
    """Its handle asks the right key for what came after it."""
    prepared = handlers.send_receipt.using(key="k", queue_name="default").prepare(7)
    handle = prepared.enqueue().handle
    Job.objects.all().delete()

    pruned = prepared.enqueue().handle

    assert (pruned, pruned.queue, pruned.key, pruned.name) == (handle, "default", "k", handle.name)


def test_its_deadline_is_five_minutes_from_now():
    with virtual_clock(AT) as clock:
        prepared = handlers.send_receipt.prepare(7)
        assert prepared.deadline == AT + timedelta(minutes=5)
        clock.advance(seconds=301)
        with pytest.raises(OperationExpired, match="nothing is recorded of it") as caught:
            prepared.enqueue()
        assert caught.value.disposition == "unknown"
        assert prepared.resolve() is Resolution.NOT_APPLIED
    assert Job.objects.count() == 0


def test_its_deadline_may_be_given():
    with virtual_clock(AT) as clock:
        prepared = handlers.send_receipt.using(deadline=timedelta(hours=1)).prepare(7)
        assert prepared.deadline == AT + timedelta(hours=1)
        clock.advance(seconds=3599)
        assert prepared.enqueue().created


def test_what_was_enqueued_in_time_is_found_later():
    with virtual_clock(AT) as clock:
        prepared = handlers.send_receipt.prepare(7)
        first = prepared.enqueue()
        clock.advance(hours=9)
        assert prepared.enqueue().id == first.id


def test_a_deadline_says_nothing_of_a_job():
    with pytest.raises(TypeError, match=r"takes no option 'deadline'. Write using\(deadline=...\)"):
        job(deadline=60)(handlers.plain)
    with pytest.raises(InvalidJob, match=r"deadline of .* must be from 1 to"):
        handlers.send_receipt.using(deadline=0.5)


def test_with_use_tz_off_the_deadline_is_local_time(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    with virtual_clock(datetime(2030, 1, 1, 12, 0, tzinfo=UTC)):
        prepared = handlers.send_receipt.prepare(7)
    assert prepared.deadline == datetime(2030, 1, 1, 13, 5)


def test_a_transaction_that_is_rolled_back_forgets_it():
    prepared = handlers.send_receipt.prepare(7)
    with pytest.raises(LookupError), transaction.atomic():
        assert prepared.enqueue().receipt.confirmed == "in_transaction"
        raise LookupError
    assert (Job.objects.count(), Operation.objects.count()) == (0, 0)
    assert prepared.enqueue().created


def test_what_cannot_be_enqueued_cannot_be_prepared():
    with pytest.raises(InvalidArguments):
        handlers.send_receipt.prepare("7", colour="red")
    with pytest.raises(InvalidArguments):
        handlers.echo.prepare({7})


def test_another_vendors_task_cannot_be_prepared(settings):
    settings.TASKS = {"mine": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": []}}
    task = handlers.echo.using(backend="mine")
    settings.TASKS = {"mine": {"BACKEND": f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend"}}
    with pytest.raises(InvalidJob, match="prepare needs a task of BackWaveBackend"):
        task.prepare(7)


def test_it_is_told_once():
    told = []

    def receiver(task_result, **_):
        told.append(task_result.id)

    task_enqueued.connect(receiver)
    try:
        prepared = handlers.send_receipt.prepare(7)
        assert told == []
        prepared.enqueue()
        prepared.enqueue()
    finally:
        task_enqueued.disconnect(receiver)
    assert told == [prepared.id]


def test_resolving_inside_a_transaction_is_refused():
    prepared = handlers.send_receipt.prepare(7)
    with transaction.atomic(), pytest.raises(CannotResolve, match=f"Operation {prepared.id} cannot be"):
        prepared.resolve()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "7", True, None, timedelta(hours=2)])
def test_a_patience_that_is_none(timeout):
    with pytest.raises(ValueError, match="timeout must be from 0 to 3,600 seconds or a timedelta, got"):
        handlers.send_receipt.prepare(7).resolve(timeout=timeout)


def test_from_coroutines():
    async def all_of_it():
        prepared = await handlers.send_receipt.aprepare(7)
        result = await prepared.aenqueue()
        other = await handlers.send_receipt.aprepare(8)
        return (
            (result.id == prepared.id, await prepared.aresolve()),
            await other.aresolve(timeout=timedelta(seconds=1)),
        )

    assert async_to_sync(all_of_it)() == ((True, Resolution.APPLIED), Resolution.NOT_APPLIED)


def test_an_alias_that_has_left_the_settings(settings):
    settings.TASKS = {"mine": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": []}}
    prepared = handlers.send_receipt.using(backend="mine").prepare(7)
    assert prepared.backend == "mine"
    del settings.TASKS
    assert prepared.enqueue().id == prepared.id


def test_its_repr_keeps_arguments_out_of_logs():
    prepared = handlers.echo.prepare("secret")
    assert repr(prepared) == f"<PreparedEnqueue {prepared.id} tests.api.handlers.echo>"


@pytest.mark.parametrize("text", ["", "7", "null", "[]", "{}", '{"version":1}', "[" * 99_999, None, b"\xff"])
def test_what_is_no_prepared_enqueue(text):
    with pytest.raises(InvalidJob, match=r"is no prepared enqueue\. Give what dumps"):
        PreparedEnqueue.loads(text)


@pytest.mark.parametrize("missing", ["version", "id", "digest", "backend", "deadline", "plain", "job"])
def test_a_part_that_is_missing(missing):
    document = json.loads(handlers.send_receipt.prepare(7).dumps())
    del document[missing]
    with pytest.raises(InvalidJob, match="is no prepared enqueue"):
        PreparedEnqueue.loads(json.dumps(document))


def test_a_text_that_was_changed_is_refused():
    document = json.loads(handlers.send_receipt.prepare(7).dumps())
    for changed in ({"job": document["job"] | {"priority": 9}}, {"version": 2}):
        with pytest.raises(InvalidJob, match="is not as dumps\\(\\) returned it, or not of version 1"):
            PreparedEnqueue.loads(json.dumps(document | changed))
