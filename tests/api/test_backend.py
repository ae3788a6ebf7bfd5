"""The backend: enqueue, get_result and cancel through Django's own interface."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_backwave import (
    Backoff,
    BackWaveBackend,
    CancelResult,
    JobResult,
    JobState,
    enqueue_many,
)
from django_backwave import results as results_module
from django_backwave.backend import jobs_database
from django_backwave.compat import (
    TASKS_PACKAGE,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
    tasks_logger,
)
from django_backwave.exceptions import ForeignTransaction, InvalidArguments, InvalidJob
from django_backwave.jobs import OURS, aenqueue_many
from django_backwave.models import Job
from tests.api import handlers

pytestmark = pytest.mark.django_db
OURS_PATH = "django_backwave.BackWaveBackend"
IMMEDIATE = {"BACKEND": f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend"}

BAD_ENQUEUES = [
    (lambda: handlers.send_receipt.enqueue(), "The arguments do not fit tests.api.handlers.send_r"),
    (lambda: handlers.echo.enqueue({1, 2}), "Unsupported type set ({1, 2}) in args[0] of"),
    (lambda: handlers.echo.enqueue("a\0"), "NUL character"),
    (lambda: handlers.echo.enqueue("x" * 300_000), "bytes of JSON, more than 262,144"),
    (lambda: enqueue_many(handlers.echo, [((), {}), ((set(),), {})]), "Unsupported type set"),
    (
        lambda: enqueue_many(handlers.echo, [((), {}), 7]),
        "takes pairs of arguments such as ((7,), {})",
    ),
    (lambda: enqueue_many(handlers.echo, [(7, {})]), "such as ((7,), {}), got (7, {})"),
    (lambda: enqueue_many(handlers.echo, ["ab"]), "such as ((7,), {}), got 'ab'"),
    (lambda: enqueue_many(handlers.send_receipt, [((7,), {1: 2})]), "keywords must be strings"),
]


def test_a_job_is_one_row():
    """G1, G12: one INSERT with all that a worker must know, and nothing after the commit."""
    with CaptureQueriesContext(
        connection,
    ) as queries:
        result = handlers.send_receipt.enqueue(7, copy=True)

    row = Job.objects.get()
    assert len(queries) == 1
    assert str(row.pk) == result.id
    assert (row.name, row.queue, row.priority) == ("send-receipt", "mail", 7)
    assert row.payload == {"args": [7], "kwargs": {"copy": True}}
    assert (row.max_attempts, row.lease_seconds) == (5, 90.0)
    assert (row.backoff_base, row.backoff_cap, row.backoff_jitter) == (1.0, 9.0, 0.2)
    assert (row.state, row.attempt, row.failures) == (JobState.READY, 0, 0)
    assert timedelta(0) <= row.due_at - row.enqueued_at < timedelta(seconds=1)


def test_the_result_is_a_result_of_django():
    result = handlers.send_receipt.enqueue(7, copy=True)

    assert isinstance(result, JobResult)
    assert result.task is handlers.send_receipt
    assert (result.state, result.status) == (JobState.READY, TaskResultStatus.READY)
    assert (result.args, result.kwargs) == ([7], {"copy": True})
    assert (result.backend, result.attempts, result.errors) == (OURS, 0, [])
    assert result.enqueued_at == Job.objects.get().enqueued_at
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert result.output is None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018


def test_reading_a_result_gives_the_same():
    for enqueued in (
        handlers.send_receipt.enqueue(7),
        handlers.echo.using(run_after=datetime(2030, 1, 1, tzinfo=UTC), priority=2).enqueue((1,)),
    ):
        assert enqueued.task.get_result(enqueued.id) == enqueued


def test_options_for_one_enqueue_are_stored():
    at = datetime(2030, 1, 1, tzinfo=UTC)

    handlers.send_receipt.using(
        queue_name="slow",
        priority=-3,
        run_after=at,
        max_attempts=1,
        backoff=Backoff(cap=5),
        lease=2,
    ).enqueue(7)

    row = Job.objects.get()
    assert (row.queue, row.priority, row.due_at) == ("slow", -3, at)
    assert (row.max_attempts, row.backoff_cap, row.lease_seconds) == (1, 5.0, 2.0)


@pytest.mark.parametrize(("enqueue", "told"), BAD_ENQUEUES)
def test_a_refused_enqueue_leaves_the_callers_transaction_alone(enqueue, told):
    """Nothing is sent to the database, so nothing there can break."""
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        with pytest.raises(InvalidJob) as caught:
            enqueue()
        assert len(queries) == 0
        handlers.echo.enqueue("after")

    assert told in str(caught.value)
    assert [row.payload["args"] for row in Job.objects.all()] == [["after"]]


def test_a_refusal_among_many_says_which_one():
    with pytest.raises(InvalidArguments) as caught:
        enqueue_many(handlers.echo, [((), {}), ((set(),), {})])

    assert caught.value.__notes__ == ["It is number 1 of the calls, counted from 0."]


def test_arguments_are_checked_against_the_signature():
    with pytest.raises(InvalidArguments) as caught:
        handlers.send_receipt.enqueue(7, colour="red")

    assert str(caught.value) == (
        "The arguments do not fit tests.api.handlers.send_receipt: got an unexpected keyword argument "
        "'colour'."
    )


def test_a_naive_run_after_is_refused():
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        handlers.echo.using(run_after=datetime(2030, 1, 1))


def test_an_aware_run_after_is_refused_without_time_zones(settings):
    settings.USE_TZ = False

    with pytest.raises(InvalidJob, match="must be a naive datetime in TIME_ZONE"):
        handlers.echo.using(run_after=datetime(2030, 1, 1, tzinfo=UTC))


def test_without_time_zones_a_run_after_in_a_zone_five_hours_away_is_the_right_instant(settings):
    """Local time in, local time out, and UTC in the column."""
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Karachi"
    at = datetime(2030, 1, 1, 12)

    result = handlers.echo.using(run_after=at).enqueue()

    assert Job.objects.get().due_at == at
    assert result.task.get_result(result.id).task == result.task
    settings.USE_TZ = True
    assert Job.objects.get().due_at == datetime(2030, 1, 1, 7, tzinfo=UTC)


def test_a_task_is_validated_again_when_it_is_enqueued(settings):
    """The settings may have changed since it was defined."""
    settings.TASKS = {"default": {"BACKEND": OURS_PATH, "QUEUES": ["other"]}}

    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid for backend"):
        handlers.send_receipt.enqueue(7)
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid for backend"):
        async_to_sync(handlers.send_receipt.aenqueue)(7)


def test_many_jobs_are_written_together_and_come_back_in_order():
    with CaptureQueriesContext(connection) as queries:
        results = enqueue_many(handlers.echo, [((number,), {"n": number}) for number in range(30)])

    inserts = [query for query in queries if query["sql"].startswith("INSERT")]
    assert len(inserts) == 1
    assert [result.args for result in results] == [[number] for number in range(30)]
    assert [result.id for result in results] == [str(row.pk) for row in Job.objects.order_by("pk")]
    assert len({result.enqueued_at for result in results}) == 1
    assert results[7].task.get_result(results[7].id) == results[7]


def test_the_results_of_many_are_a_sequence_whose_items_are_built_once():
    results = enqueue_many(handlers.echo, [((number,), {}) for number in range(5)])
    assert len(results) == 5
    assert results[-1] is results[4] is results[3:][1]
    assert [result.args for result in results[1:3]] == [[1], [2]]
    assert repr(results) == repr(list(results))
    assert repr(results).count("<JobResult ") == 5
    with pytest.raises(IndexError):
        results[5]


def test_no_result_is_built_for_an_enqueue_of_which_nobody_hears(monkeypatch, caplog):
    built, build = [], results_module._of_new
    monkeypatch.setattr(results_module, "_of_new", lambda *a: built.append(a) or build(*a))
    calls = [((number,), {}) for number in range(5)]
    with caplog.at_level(logging.INFO, tasks_logger.name):
        enqueue_many(handlers.echo, calls)
    assert built == []
    with caplog.at_level(logging.DEBUG, tasks_logger.name):
        enqueue_many(handlers.echo, calls)
    assert len(built) == 5


def test_no_jobs_are_no_work():
    with CaptureQueriesContext(connection) as queries:
        assert list(enqueue_many(handlers.echo, [])) == []
    assert len(queries) == 0


def test_many_need_a_backend_of_ours(settings):
    settings.TASKS = {"default": IMMEDIATE}

    with pytest.raises(InvalidJob, match=r"of tests\.api\.handlers\.echo is ImmediateBackend\. Define"):
        enqueue_many(handlers.echo.using(backend="default"), [])


def test_a_coroutine_can_enqueue():
    async def both():
        one = await handlers.echo.aenqueue(1)
        many = await aenqueue_many(handlers.echo, [((2,), {}), ((3,), {})])
        return [one, *many, await handlers.echo.aget_result(one.id)]

    results = async_to_sync(both)()

    assert [result.args for result in results] == [[1], [2], [3], [1]]


def test_a_plain_task_is_enqueued_with_defaults(settings):
    """A task made for another backend has another class."""
    settings.TASKS = {"default": IMMEDIATE, "own": {"BACKEND": OURS_PATH}}
    plain = task(handlers.plain).using(backend="own")

    result = plain.enqueue(7)

    row = Job.objects.get()
    assert (row.name, row.max_attempts) == ("tests.api.handlers.plain", 10)
    assert (result.task, result.backend) == (plain, "own")
    result.refresh()
    assert result.state is JobState.READY


def test_the_enqueued_signal_is_sent():
    """With the backend's class as its sender, as Django documents it."""
    heard = []

    def receiver(sender, task_result, **_):
        heard.append((sender, task_result))

    task_enqueued.connect(receiver)
    try:
        results = [handlers.echo.enqueue(), *enqueue_many(handlers.echo, [((), {}), ((), {})])]
    finally:
        task_enqueued.disconnect(receiver)

    assert heard == [(BackWaveBackend, result) for result in results]


def test_a_broken_receiver_does_not_deny_the_job(caplog):
    """The row is written: an exception would make the caller enqueue it again."""

    def receiver(**_):
        raise RuntimeError

    task_enqueued.connect(receiver)
    try:
        handlers.echo.enqueue()
    finally:
        task_enqueued.disconnect(receiver)

    assert Job.objects.count() == 1
    assert "Error calling" in caplog.text


def test_djangos_own_log_lines_appear(caplog):
    with caplog.at_level(logging.DEBUG, tasks_logger.name):
        result = handlers.send_receipt.enqueue(7)

    line = f"Task id={result.id} path=tests.api.handlers.send_receipt enqueued backend={OURS}"
    assert line in caplog.messages


@pytest.mark.parametrize("result_id", [str(UUID(int=0)), "", "nonsense", 7, None, "\0", "é" * 36])
def test_unknown_and_malformed_ids_have_no_result(result_id):
    with pytest.raises(TaskResultDoesNotExist):
        handlers.echo.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        handlers.echo.get_backend().cancel(result_id)


def test_a_result_of_another_task_is_a_mismatch():
    result = handlers.echo.enqueue()

    with pytest.raises(TaskResultMismatch):
        handlers.send_receipt.get_result(result.id)


def test_several_aliases_share_the_tables(settings):
    settings.TASKS = {"a": {"BACKEND": OURS_PATH}, "b": {"BACKEND": OURS_PATH, "QUEUES": []}}

    result = handlers.echo.enqueue()

    assert (result.backend, result.task) == ("a", handlers.echo)
    through_b = task_backends["b"].get_result(result.id)
    assert (through_b.backend, through_b.task.backend) == ("b", "b")


def test_cancel_says_what_it_did():
    result = handlers.echo.enqueue()

    assert result.cancel() is CancelResult.CANCELLED
    assert result.cancel() is CancelResult.ALREADY_FINISHED
    result.refresh()
    assert (result.state, result.status) == (JobState.CANCELLED, TaskResultStatus.FAILED)
    assert result.cause == "cancel requested"


def test_the_database_of_jobs_follows_the_settings(settings):
    assert jobs_database() == "default"
    settings.BACKWAVE = {"DATABASE": "other"}
    assert jobs_database() == "other"


class ToOther:
    """A router that sends jobs elsewhere."""

    def db_for_write(self, model, **_):
        return "other" if model is Job else None


def test_the_database_of_jobs_follows_the_router(settings):
    settings.DATABASE_ROUTERS = [ToOther()]

    assert jobs_database() == "other"


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_transaction_elsewhere_alone_is_refused(settings):
    """G1: that job would be committed although the caller's work rolls back."""
    settings.BACKWAVE = {"DATABASE": "other"}

    with (
        transaction.atomic(),
        pytest.raises(ForeignTransaction, match="is open on 'default', but jobs"),
    ):
        handlers.echo.enqueue()

    assert Job.objects.using("other").count() == 0


def test_a_delay_is_added_to_now_by_the_caller():
    with pytest.raises(InvalidJob, match=r"must be a datetime, got datetime\.timedelta"):
        handlers.echo.using(run_after=timedelta(hours=1))
