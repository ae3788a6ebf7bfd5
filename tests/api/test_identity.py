"""Keys through the API: what names logical work, and what an enqueue comes to that meets a generation."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta
from functools import partial

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_backwave import JobState, enqueue_many, job
from django_backwave.compat import task_enqueued
from django_backwave.core.identity import OnConflict, Window
from django_backwave.exceptions import (
    BackWaveError,
    DuplicateKey,
    ForeignTransaction,
    InvalidArguments,
    InvalidJob,
    KeyBusy,
    KeyConflict,
)
from django_backwave.jobs import OURS, BackWaveTask, aenqueue_many
from django_backwave.models import Job, Key
from django_backwave.store.claim import claim
from django_backwave.store.retention import prune
from tests.api import handlers, keyed
from tests.factories import WORKER, report, send

pytestmark = pytest.mark.django_db
without_database = pytest.mark.django_db(databases=[])

send_receipt = handlers.send_receipt


def settle_next(queue="mail"):
    """Run the next job of a queue to its success."""
    [taken] = claim(queue, 1, worker=WORKER, lease=60.0, using="default")
    send(report(taken), now=None)
    return taken


def key_of(task, *args, **kwargs):
    return task.enqueue(*args, **kwargs).key


def defined(**options):
    """Define a job that nobody else knows."""
    return BackWaveTask(func=handlers.plain, name="defined-for-a-test", backend=OURS, **options)


# What makes a key.


def test_a_format_of_the_arguments_defaults_included():
    assert key_of(keyed.receipt, 7) == "receipt:7:1"
    assert key_of(keyed.receipt, order_id="A b", copy=2.5) == "receipt:A b:2.5"
    assert key_of(keyed.receipt, True) == "receipt:True:1"
    assert key_of(keyed.padded, 7) == "000007-{}"


def test_what_comes_out_of_json_alike_makes_the_same_key():
    """The members of an enum are their values in the payload, too."""
    assert keyed.receipt.enqueue(keyed.Size.LARGE).id == keyed.receipt.enqueue("large").id
    assert keyed.receipt.enqueue(keyed.Level.HIGH).id == keyed.receipt.enqueue(3).id


def test_braces_and_percents_in_an_argument_mean_nothing():
    for text in ("{copy}", "{0}", "%s", "{copy.__class__}", "{"):
        assert key_of(keyed.receipt, text) == f"receipt:{text}:1"


def test_a_function_of_the_arguments():
    first = keyed.report.enqueue("sales", year=2026, pages=["x" * 9999])
    assert len(first.key) == 64
    with pytest.raises(DuplicateKey):
        keyed.report.enqueue("sales", pages=["x" * 9999], year=2026)
    assert keyed.report.enqueue("sales", year=2027).created


def test_a_key_for_one_enqueue_is_taken_as_it_stands():
    assert key_of(keyed.receipt.using(key="{order_id}"), 7) == "{order_id}"
    assert key_of(keyed.receipt.using(key=keyed.key_of_report), "7") == keyed.key_of_report("7")
    assert key_of(keyed.keyless.using(key="k"), 7) == "k"
    assert key_of(keyed.keyless, 7) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([1], "must be a string or a number, got [1]"),
        (None, "must be a string or a number, got None"),
        ("x" * 300, "must have 1 to 255 characters, got 310"),
    ],
)
def test_an_argument_that_makes_no_key_is_refused(value, told, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(InvalidJob) as caught:
        keyed.receipt.enqueue(value)

    assert told in str(caught.value)
    assert "key of tests.api.keyed.receipt" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("{order_id:d}", "x"), ("{order_id:c}", 10**10), ("{order_id:f}", 10**400)],
    ids=["text", "sign", "number"],
)
def test_an_argument_that_does_not_fit_its_format_is_refused(text, value, django_assert_num_queries):
    task = defined(key=text)
    with django_assert_num_queries(0), pytest.raises(InvalidArguments, match="cannot be made"):
        task.enqueue(value)


def test_a_function_that_fails_or_makes_no_key_is_told_by_its_name(django_assert_num_queries):
    with django_assert_num_queries(0):
        with pytest.raises(InvalidArguments, match=r"ZeroDivisionError.* raised by number_of\."):
            keyed.numbered.enqueue(0)
        with pytest.raises(InvalidJob, match=r"key of tests\.api\.keyed\.numbered must be a string, got 7"):
            keyed.numbered.enqueue(1)


def test_of_many_it_is_told_which():
    with pytest.raises(InvalidArguments) as caught:
        enqueue_many(keyed.numbered.using(key=keyed.reciprocal), [((7,), {}), ((0,), {})])

    assert caught.value.__notes__ == ["It is number 1 of the calls, counted from 0."]
    assert not Job.objects.exists()


# What is refused where it is written.


@without_database
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{order}", "names 'order', which is no parameter of the function. The parameters are: order_id."),
        ("{order_id.real}", "may name arguments only"),
        ("{order_id.__class__}", "may name arguments only"),
        ("{order_id[0]}", "may name arguments only"),
        ("{order_id!r}", "may name arguments only"),
        ("{order_id:{order_id}}", "may name arguments only"),
        ("{}", "may name arguments only"),
        ("{0}", "may name arguments only"),
        ("{order_id", "is no format"),
        ("}", "is no format"),
    ],
)
def test_a_format_names_parameters_and_nothing_else(text, told):
    with pytest.raises(InvalidJob) as caught:
        defined(key=text)

    assert str(caught.value).startswith("key of tests.api.handlers.plain ")
    assert told in str(caught.value)


@without_database
@pytest.mark.parametrize(
    "function",
    [lambda order_id: "k", partial(keyed.key_of_report, "x"), keyed.later],
    ids=["lambda", "partial", "coroutine"],
)
def test_a_function_is_a_plain_one_at_module_level(function):
    with pytest.raises(InvalidJob, match="must be a plain module-level function"):
        defined(key=function)


@without_database
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("key", 7, "must be a string or a function, got 7"),
        ("on_conflict", "ignore", "one of 'return', 'new_generation', 'reject', 'replace', got 'ignore'"),
        ("unique_for", "always", "one of 'forever', 'unfinished', 'pending', or from 1 to 1,000,000,000"),
        ("unique_for", 0.5, "got 0.5"),
        ("unique_for", True, "got True"),
        ("unique_for", float("nan"), "got nan"),
        ("unique_for", timedelta(seconds=-1), "got -1.0"),
        ("unique_for", None, "got None"),
    ],
)
def test_other_options_are_refused(option, value, told):
    with pytest.raises(InvalidJob) as caught:
        defined(**{option: value})

    assert str(caught.value).startswith(f"{option} of tests.api.handlers.plain must be ")
    assert told in str(caught.value)


@without_database
@pytest.mark.parametrize("key", ["", "k" * 256, "a\0b", "\ud800"])
def test_a_text_that_no_column_holds_is_refused(key):
    with pytest.raises(InvalidJob):
        keyed.receipt.using(key=key)


@without_database
def test_options_are_words_or_seconds():
    assert keyed.report.unique_for == 3600.0
    assert keyed.report.on_conflict is OnConflict.REJECT
    assert keyed.receipt.unique_for is Window.FOREVER
    assert keyed.receipt.on_conflict is OnConflict.RETURN
    assert keyed.receipt.using(unique_for="pending").unique_for is Window.PENDING
    assert keyed.receipt.using(unique_for=90).unique_for == 90.0


@without_database
def test_a_task_with_a_key_can_be_pickled():
    task = keyed.report.using(key="k", unique_for="pending", on_conflict="replace")
    for one in (task, keyed.report, keyed.receipt.using(key=keyed.key_of_report)):
        assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own


# What an enqueue comes to.


def test_an_enqueue_again_returns_the_generation_that_exists():
    first = send_receipt.using(key="receipt:7").enqueue(7)
    again = send_receipt.using(key="receipt:7").enqueue(8)
    assert (first.created, first.generation, first.key) == (True, 1, "receipt:7")
    assert (again.created, again.generation, again.id) == (False, 1, first.id)
    assert again.args == [7]
    assert Job.objects.count() == 1
    found = send_receipt.get_result(first.id)
    assert (found.key, found.generation, found.created) == ("receipt:7", 1, False)


def test_a_new_generation_once_the_last_is_settled():
    task = send_receipt.using(key="k", on_conflict="new_generation")
    first = task.enqueue(7)
    with pytest.raises(KeyBusy) as caught, transaction.atomic():
        task.enqueue(7)
    assert caught.value.result.id == first.id
    assert str(caught.value) == (
        f"Key 'k' of queue 'mail' has generation 1, ready: job {first.id}. on_conflict='new_generation' "
        "needs one that is settled. The error's result is that job's."
    )
    settle_next()
    second = task.enqueue(9)
    assert (second.created, second.generation) == (True, 2)
    assert second.id != first.id
    assert Key.objects.get().generation == 2


def test_reject_and_replace():
    first = send_receipt.using(key="k").enqueue(7)
    with pytest.raises(DuplicateKey, match="has generation 1, ready"):
        send_receipt.using(key="k", on_conflict="reject").enqueue(7)
    replaced = send_receipt.using(key="k", on_conflict="replace", priority=5).enqueue(9)
    assert (replaced.id, replaced.args, replaced.created) == (first.id, [9], False)
    assert Job.objects.get().priority == 5
    settle_next()
    with pytest.raises(DuplicateKey, match="succeeded"):
        send_receipt.using(key="k", on_conflict="replace").enqueue(9)


def test_a_started_generation_is_not_replaced():
    send_receipt.using(key="k").enqueue(7)
    claim("mail", 1, worker=WORKER, lease=60.0, using="default")
    with pytest.raises(KeyBusy, match=r"has generation 1, running: .* needs one that has never started"):
        send_receipt.using(key="k", on_conflict="replace").enqueue(9)


def test_unfinished():
    task = send_receipt.using(key="k", unique_for="unfinished")
    first = task.enqueue(7)
    assert task.enqueue(7).id == first.id
    settle_next()
    assert task.enqueue(7).generation == 2


def test_a_window_of_time():
    task = send_receipt.using(key="k", unique_for=timedelta(hours=1))
    task.enqueue(7)
    assert not task.enqueue(7).created
    Key.objects.update(enqueued_at=datetime.fromisoformat("2020-01-01T00:00Z"))
    assert task.enqueue(7).generation == 2


def test_the_key_of_another_job_is_taken():
    first = keyed.keyless.using(key="k").enqueue(7)
    with pytest.raises(DuplicateKey) as caught:
        send_receipt.using(key="k", queue_name="default").enqueue(7)
    assert caught.value.result.id == first.id
    assert str(caught.value) == (
        "Key 'k' of queue 'default' belongs to jobs named 'tests.api.keyed.keyless', and one named "
        "'send-receipt' was to be enqueued. Give it another key, or another queue."
    )


def test_the_key_of_another_job_that_was_pruned_is_taken_by_that_one():
    first = keyed.keyless.using(key="k", queue_name="mail").enqueue(7)
    Job.objects.all().delete()
    with pytest.raises(DuplicateKey) as caught:
        send_receipt.using(key="k").enqueue(7)

    there = caught.value.result
    assert (there.handle, there.handle.name, there.handle.queue) == (
        first.handle,
        "tests.api.keyed.keyless",
        "mail",
    )
    assert there.task.module_path == "tests.api.keyed.keyless"


def test_a_pruned_generation_is_still_told():
    """By its key: how it ended; its arguments are gone, and those of the enqueue stand for them."""
    first = send_receipt.using(key="k", tags=["vip"]).enqueue(7)
    settle_next()
    assert prune(keep_done=0.0, keep_dead=0.0, using="default") == 1

    again = send_receipt.using(key="k").enqueue(8)

    assert (again.id, again.generation, again.created, again.key) == (first.id, 1, False, "k")
    assert (again.state, again.is_finished, again.cause) == (JobState.SUCCEEDED, True, "pruned")
    assert (again.args, again.tags, again.enqueued_at) == ([8], (), Key.objects.get().enqueued_at)
    with pytest.raises(DuplicateKey, match="has generation 1, succeeded") as caught:
        send_receipt.using(key="k", on_conflict="reject").enqueue(8)
    assert caught.value.result.id == first.id


def test_a_job_that_is_pruned_while_it_is_looked_at_is_told_as_it_ended(monkeypatch):
    """Between the answer of the store and the reading of the row."""
    from django_backwave.store import monitor

    first = send_receipt.using(key="k").enqueue(7)
    settle_next()
    monkeypatch.setattr(monitor, "find_all", lambda *_, **__: {})

    again = send_receipt.using(key="k").enqueue(7)

    assert (again.id, again.state) == (first.id, JobState.SUCCEEDED)


def test_an_enqueue_that_is_led_to_a_job_costs_a_few_statements(django_assert_max_num_queries):
    task = send_receipt.using(key="k")
    task.enqueue(7)
    with django_assert_max_num_queries(12):  # those of the store; a savepoint; the job, its attempts and tags
        task.enqueue(7)


def test_seconds_until_it_expires_count_from_the_enqueue():
    result = send_receipt.using(key="k", expires=60).enqueue(7)
    row = Job.objects.get()
    assert row.expires_at - row.enqueued_at == timedelta(seconds=60)

    send_receipt.using(key="k", expires=600, on_conflict="replace").enqueue(7)
    row = Job.objects.get(pk=result.id)
    assert row.expires_at - row.due_at == timedelta(seconds=600)


def test_headers_are_those_of_the_enqueue_that_wrote(settings):
    from tests.api import hooks

    settings.BACKWAVE = {"ON_ENQUEUE": ["tests.api.hooks.tenant"]}
    told = []
    for on_conflict, tenant in (("return", "acme"), ("return", "other"), ("replace", "third")):
        token = hooks.TENANT.set(tenant)
        try:
            send_receipt.using(key="k", on_conflict=on_conflict).enqueue(7)
        finally:
            hooks.TENANT.reset(token)
        told.append(json.dumps(Job.objects.get().headers))

    assert "acme" in told[0]
    assert told[1] == told[0]
    assert "third" in told[2]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_without_use_tz(settings, zone):
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    task = send_receipt.using(key="k", unique_for=timedelta(hours=1), expires=60)
    first, again = task.enqueue(7), task.enqueue(7)

    assert (again.id, again.created) == (first.id, False)
    assert first.enqueued_at.tzinfo is None
    assert abs(first.enqueued_at - again.enqueued_at) < timedelta(seconds=1)
    Key.objects.update(enqueued_at=Key.objects.get().enqueued_at - timedelta(hours=1))
    assert task.enqueue(7).generation == 2


# Many.


def test_many_with_one_key_are_one_job():
    results = enqueue_many(send_receipt.using(key="k"), [((n,), {}) for n in range(3)])
    assert [result.created for result in results] == [True, False, False]
    assert len({result.id for result in results}) == 1
    assert results[2].args == [0]


def test_many_with_keys_of_their_arguments():
    keyed.receipt.enqueue(2)
    results = enqueue_many(keyed.receipt, [((n,), {}) for n in (3, 2, 1, 3)])
    assert [(result.args, result.created) for result in results] == [
        ([3], True),
        ([2], False),
        ([1], True),
        ([3], False),
    ]
    assert enqueue_many(keyed.receipt, []) == []


def test_of_many_with_one_key_the_last_replaces_the_first():
    results = enqueue_many(send_receipt.using(key="k", on_conflict="replace"), [((n,), {}) for n in range(3)])
    assert [(result.args, result.created) for result in results] == [([2], True), ([2], False), ([2], False)]


@pytest.mark.parametrize(("on_conflict", "error"), [("reject", DuplicateKey), ("new_generation", KeyBusy)])
def test_of_many_all_or_none_is_written(on_conflict, error):
    """And the caller's transaction stays usable."""
    first = keyed.receipt.enqueue(2)
    task = keyed.receipt.using(on_conflict=on_conflict)
    with transaction.atomic():
        with pytest.raises(error) as caught:
            enqueue_many(task, [((n,), {}) for n in (1, 2, 3)])
        assert Job.objects.count() == 1
        with pytest.raises(error):
            task.enqueue(2)
        keyed.receipt.enqueue(4)

    assert caught.value.result.id == first.id
    assert caught.value.__notes__ == ["It is number 1 of the calls, counted from 0."]
    assert Job.objects.count() == 2


@pytest.mark.parametrize(("on_conflict", "error"), [("reject", DuplicateKey), ("new_generation", KeyBusy)])
def test_two_of_many_may_be_in_each_others_way(on_conflict, error):
    """Then no job is: the error has no result."""
    with pytest.raises(error) as caught:
        enqueue_many(keyed.receipt.using(on_conflict=on_conflict), [((n,), {}) for n in (1, 2, 1)])

    assert caught.value.result is None
    assert str(caught.value) == (
        f"Key 'receipt:1:1' of queue 'mail' is that of number 0, too, and on_conflict={on_conflict!r} admits "
        "one of them. Nothing was enqueued."
    )
    assert caught.value.__notes__ == ["It is number 2 of the calls, counted from 0."]
    assert not Job.objects.exists()


# Errors.


@pytest.mark.parametrize("error", [DuplicateKey, KeyBusy])
def test_conflicts_are_ours_and_can_be_pickled(error):
    result = send_receipt.using(key="k").enqueue(7)
    conflict = pickle.loads(pickle.dumps(error("it is there", result)))  # noqa: S301 - our own

    assert isinstance(conflict, KeyConflict)
    assert isinstance(conflict, BackWaveError)
    assert (str(conflict), conflict.result.id) == ("it is there", result.id)


def test_a_requeue_is_refused_while_another_generation_is_unfinished():
    task = send_receipt.using(key="k", on_conflict="new_generation")
    first = task.enqueue(7)
    first.cancel()
    second = task.enqueue(7)

    with pytest.raises(KeyBusy) as caught:
        first.requeue()

    assert caught.value.result.id == second.id
    assert str(caught.value) == (
        f"Job {first.id} is generation 1 of key 'k' of queue 'mail', and generation 2 of it is ready. Wait "
        "for that one, or cancel it, before you requeue another."
    )
    second.cancel()
    first.requeue()
    assert send_receipt.using(key="k").enqueue(7).id == first.id


# The caller's surroundings.


@pytest.fixture
def heard():
    """Return the results with which `task_enqueued` was sent."""
    results = []

    def hear(task_result, **_):
        results.append((task_result.id, task_result.args))

    task_enqueued.connect(hear)
    yield results
    task_enqueued.disconnect(hear)


def test_the_signal_is_sent_for_what_was_written_alone(heard):
    task = send_receipt.using(key="k")
    first = task.enqueue(1)
    task.enqueue(2)
    assert heard == [(first.id, [1])]

    task.using(on_conflict="replace").enqueue(3)
    assert heard[1:] == [(first.id, [3])]

    with pytest.raises(DuplicateKey):
        task.using(on_conflict="reject").enqueue(4)
    [second, _] = enqueue_many(keyed.receipt, [((5,), {}), ((5,), {})])
    assert heard[2:] == [(second.id, [5])]


def test_a_rollback_forgets_the_key():
    with transaction.atomic():
        send_receipt.using(key="k").enqueue(7)
        transaction.set_rollback(True)

    assert send_receipt.using(key="k").enqueue(7).created


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_transaction_on_another_database_alone_is_refused(django_assert_num_queries):
    with transaction.atomic(using="other"), django_assert_num_queries(0):
        for call in (
            lambda: keyed.receipt.enqueue(7),
            lambda: enqueue_many(keyed.receipt, [((7,), {})]),
        ):
            with pytest.raises(ForeignTransaction):
                call()


def view(request):
    result = keyed.receipt.using(on_conflict=request.GET["on_conflict"]).enqueue(7)
    if "fail" in request.GET:
        raise RuntimeError("the view failed")
    return HttpResponse(f"{result.created} {result.generation}")


def careful_view(request):
    try:
        keyed.receipt.using(on_conflict="reject").enqueue(7)
    except DuplicateKey as conflict:
        return HttpResponse(f"{conflict.result.generation} of {Job.objects.count()}")


urlpatterns = [path("view", view), path("careful", careful_view)]


@pytest.mark.django_db(transaction=True)
def test_under_atomic_requests(monkeypatch, settings):
    """A view that fails forgets the key; one that catches a conflict goes on in its transaction."""
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(raise_request_exception=False)

    def get(where):
        answer = client.get(where)
        return answer.status_code, answer.content.decode() if answer.status_code == 200 else ""

    assert get("/view?on_conflict=return&fail") == (500, "")
    assert not Job.objects.exists()
    assert get("/view?on_conflict=return") == (200, "True 1")
    assert get("/view?on_conflict=return") == (200, "False 1")
    assert get("/view?on_conflict=reject")[0] == 500
    assert get("/careful") == (200, "1 of 1")


@pytest.mark.django_db(transaction=True)
def test_from_a_coroutine():
    async def ask():
        first = await keyed.receipt.aenqueue(7)
        again = await keyed.receipt.aenqueue(7)
        many = await aenqueue_many(keyed.receipt, [((7,), {}), ((8,), {})])
        with pytest.raises(DuplicateKey):
            await keyed.receipt.using(on_conflict="reject").aenqueue(7)
        await first.acancel()
        second = await keyed.receipt.using(on_conflict="new_generation").aenqueue(7)
        with pytest.raises(KeyBusy):
            await first.arequeue()
        return [one.created for one in (first, again, *many)], second.generation

    assert async_to_sync(ask)() == ([True, False, False, True], 2)


def test_a_virtual_copy_of_a_job_has_its_options():
    """Whoever defines a job by wrapping another's function takes over its key, too."""
    assert job(name="copied", key="k:{order_id}")(handlers.plain).enqueue(7).key == "k:7"


@pytest.mark.parametrize(
    "said", [{"on_conflict": "reject"}, {"unique_for": "unfinished"}, {"unique_for": 60}], ids=str
)
def test_what_is_said_of_a_key_that_there_is_not_is_refused(said):
    """Somebody relies on it, and there would be two jobs."""
    task = handlers.send_receipt.using(**said)
    ways = (lambda: task.enqueue(7), lambda: enqueue_many(task, [((7,), {})]), lambda: task.prepare(7))
    for enqueue in ways:
        with pytest.raises(InvalidJob, match="has no key, so its on_conflict and unique_for would do"):
            enqueue()
    assert Job.objects.count() == 0
    assert task.using(key="k").enqueue(7).created
