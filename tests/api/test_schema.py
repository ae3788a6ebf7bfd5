"""Schemas through the API: stored with each job, and no reader gets a job that it would read wrongly."""

from __future__ import annotations

import pickle
from io import StringIO

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.management import call_command
from django.urls import reverse

from django_backwave import enqueue_many, job, operations, registry
from django_backwave.backend import first_of_ours
from django_backwave.checks import check_handlers
from django_backwave.compat import TaskResultDoesNotExist, TaskResultMismatch
from django_backwave.core.outcome import Succeeded
from django_backwave.core.protocol import CancelResult
from django_backwave.exceptions import BackWaveError, InvalidJob, SchemaMismatch
from django_backwave.ids import new_id
from django_backwave.models import Job
from django_backwave.store.claim import claim
from tests.api import handlers
from tests.factories import WORKER, report, send

HERE = "tests.api.test_schema.receipt"


def receipt(order_id: int, copies: int = 1) -> int:
    return order_id


def other(order_id: int) -> int:
    return order_id


@pytest.fixture
def code(monkeypatch):
    """Return a function that puts another version of the code in the place of the one before."""

    def deploy(**options):
        monkeypatch.setattr(registry._registry, "_tasks", {})
        return job(**options)(receipt)

    return deploy


def stored(schema: str | None) -> str:
    """Return the id of a job of `receipt` that was stored with this schema."""
    result = handlers.echo.enqueue(7)
    Job.objects.filter(pk=result.id).update(name=HERE, schema=schema)
    return result.id


ACCEPTED = [
    ("a", (), "a"),
    ("a", ("b",), "b"),
    ("a", ("b", "c"), "c"),
    ("a", (None,), None),
    (None, (), None),
    (None, ("a",), "a"),
    (None, ("a",), None),
]
REFUSED = [
    ("a", (), "b", "with schema 'a'"),
    ("a", (), "A", "with schema 'a'"),
    ("a", (), None, "with schema 'a'"),
    ("a", ("b",), "c", "with schema 'a' or with schema 'b'"),
    ("a", ("b",), None, "with schema 'a' or with schema 'b'"),
    (None, (), "a", "without a schema"),
    (None, ("a",), "b", "without a schema or with schema 'a'"),
]


@pytest.mark.django_db
class TestWhatIsStored:
    def test_each_job_has_the_schema_of_its_task(self, code):
        task = code(schema="receipt/2", accepts=["receipt/1"])

        one = task.enqueue(1)
        many = enqueue_many(task, [((2,), {}), ((3,), {})])

        assert {each.schema for each in (one, *many)} == {"receipt/2"}
        assert set(Job.objects.values_list("schema", flat=True)) == {"receipt/2"}
        assert task.get_result(one.id).schema == "receipt/2"

    def test_a_task_without_one_stores_none(self):
        assert handlers.echo.enqueue().schema is None
        assert Job.objects.get().schema is None

    def test_it_survives_every_attempt_and_a_requeue(self, code):
        task = code(schema="receipt/2")
        result = task.enqueue(1)
        [taken] = claim("default", 1, worker=WORKER, lease=60.0, using="default")
        result.cancel()
        send(report(taken), now=None)
        assert taken.schema == "receipt/2"

        result.requeue()
        result.refresh()

        assert result.schema == "receipt/2"

    def test_a_replaced_generation_has_the_schema_of_what_replaced_it(self, code):
        first = code(schema="receipt/1", key="k").enqueue(1)

        again = code(schema="receipt/2", key="k", on_conflict="replace").enqueue(2)

        assert (again.id, again.schema) == (first.id, "receipt/2")

    def test_a_generation_of_another_schema_is_returned_as_it_is(self, code):
        """The handle says what it is; it is the output that must not be read wrongly."""
        first = code(schema="receipt/1", key="k").enqueue(1)
        task = code(schema="receipt/2", key="k")

        again = task.enqueue(2)

        assert (again.id, again.schema, again.created) == (first.id, "receipt/1", False)
        for read in (
            again.refresh,
            again.wait,
            async_to_sync(again.await_),
            lambda: task.get_result(again.id),
        ):
            with pytest.raises(SchemaMismatch, match="stored with schema 'receipt/1'"):
                read()


@pytest.mark.django_db
class TestWhoReads:
    @pytest.mark.parametrize(("schema", "accepts", "of_job"), ACCEPTED)
    def test_the_own_schema_and_those_that_are_accepted(self, code, schema, accepts, of_job):
        task = code(schema=schema, accepts=accepts)
        job_id = stored(of_job)

        result = task.get_result(job_id)
        result.refresh()

        assert (result.id, result.schema) == (job_id, of_job)
        assert async_to_sync(task.aget_result)(job_id).id == job_id

    @pytest.mark.parametrize(("schema", "accepts", "of_job", "takes"), REFUSED)
    def test_no_other_one(self, code, schema, accepts, of_job, takes):
        task = code(schema=schema, accepts=accepts)
        job_id = stored(of_job)
        own = "without a schema" if of_job is None else f"with schema {of_job!r}"

        with pytest.raises(SchemaMismatch) as caught:
            task.get_result(job_id)
        with pytest.raises(SchemaMismatch) as told:
            async_to_sync(task.aget_result)(job_id)

        assert str(caught.value) == str(told.value)
        assert str(caught.value) == (
            f"Job {job_id}: the job was stored {own}, but {HERE} takes only jobs stored {takes}; use code "
            f"that takes it, for example with accepts=({of_job!r},)."
        )
        assert (caught.value.schema, caught.value.expected) == (of_job, (schema, *accepts))
        assert isinstance(caught.value, BackWaveError)

    def test_the_error_survives_pickling_and_carries_nothing_else(self, code):
        task = code(schema="a")
        with pytest.raises(SchemaMismatch) as caught:
            task.get_result(stored("b"))

        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes

        assert (str(again), again.schema, again.expected) == (str(caught.value), "b", ("a",))
        assert vars(caught.value) == {"schema": "b", "expected": ("a",)}

    def test_an_unknown_job_and_another_tasks_job_are_told_first(self, code):
        task = code(schema="a")
        foreign = job(schema="b")(other).enqueue(1)

        with pytest.raises(TaskResultDoesNotExist):
            task.get_result(str(new_id()))
        with pytest.raises(TaskResultMismatch):
            task.get_result(foreign.id)

    def test_a_result_is_not_refreshed_with_what_its_task_cannot_read(self, code):
        result = code(schema="a").enqueue(1)
        [taken] = claim("default", 1, worker=WORKER, lease=60.0, using="default")
        send(report(taken, Succeeded('"in other units"')), now=None)
        Job.objects.update(schema="b")

        with pytest.raises(SchemaMismatch, match="stored with schema 'b'"):
            result.refresh()
        with pytest.raises(SchemaMismatch, match="stored with schema 'b'"):
            async_to_sync(result.arefresh)()

        assert (result.schema, result.output, result.is_finished) == ("a", None, False)

    def test_a_result_that_was_kept_over_a_deploy_asks_the_new_code(self, code):
        kept = pickle.dumps(handlers.echo.enqueue(1))
        result = pickle.loads(kept)  # noqa: S301 - our own bytes
        object.__setattr__(result, "task", code(schema="new"))

        with pytest.raises(SchemaMismatch, match="stored without a schema"):
            result.refresh()

    def test_a_result_of_a_task_without_a_schema_expects_nothing(self):
        result = handlers.echo.enqueue(1)
        Job.objects.update(schema="b")

        result.refresh()

        assert result.schema == "b"

    def test_the_backend_expects_nothing(self, code):
        code(schema="a")
        job_id = stored("b")

        result = first_of_ours().get_result(job_id)

        assert (result.schema, result.args) == ("b", [7])
        assert result.cancel() is CancelResult.CANCELLED

    def test_a_handle_gives_no_output_of_another_schema(self, code):
        """Another release has replaced the generation since, before it ran."""
        result = code(schema="a").enqueue(1)
        [taken] = claim("default", 1, worker=WORKER, lease=60.0, using="default")
        send(report(taken, Succeeded('"in other units"')), now=None)
        Job.objects.update(schema="b")

        for read in (result.handle.get_result, result.handle.wait, async_to_sync(result.handle.await_)):
            with pytest.raises(SchemaMismatch, match="'b' by now") as caught:
                read()
            assert (caught.value.schema, caught.value.expected) == ("b", ("a",))

    def test_pages_and_commands_read_jobs_of_any_schema(self, code, admin_client):
        code(schema="a")
        job_id = stored("b")

        page = admin_client.get(reverse("admin:django_backwave_job_change", args=[job_id]))
        call_command("backwave_status", stdout=(status := StringIO()))

        assert page.status_code == 200
        assert "default" in status.getvalue()

    def test_operators_work_on_jobs_of_any_schema(self, code):
        code(schema="a")
        job_id = stored("b")

        assert list(operations.cancel([job_id]).values()) == [CancelResult.CANCELLED]
        assert len(operations.requeue([job_id])) == 1


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"schema": ""}, "schema of .* must have 1 to 100 characters, got 0"),
            ({"schema": "x" * 101}, "must have 1 to 100 characters, got 101"),
            ({"schema": 2}, r"schema of .* must be a string, got 2\. For example: \"receipt/2\"\."),
            ({"schema": "a\0b"}, "must be plain text, got: NUL character"),
            ({"accepts": "receipt/1"}, "accepts of .* must be a list or tuple of schemas, got 'receipt/1'"),
            ({"accepts": (1,)}, "accepts of .* must be a string, got 1"),
        ],
    )
    def test_what_cannot_be_stored_or_compared_is_refused(self, code, options, message):
        with pytest.raises(InvalidJob, match=message):
            code(**options)

    def test_an_enqueue_cannot_change_it(self, code):
        """It is the code's: whoever enqueues knows no more than the code does."""
        with pytest.raises(TypeError, match="schema"):
            code(schema="a").using(schema="b")


class TestChecks:
    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"schema": "a", "accepts": ("a", "b")}, "the schema 'a', which is its own"),
            ({"schema": "a", "accepts": ("b", "b")}, "the schema 'b', twice"),
            ({"schema": "a", "accepts": (None, None)}, "None, jobs without a schema, twice"),
            ({"accepts": (None,)}, "None, jobs without a schema, which is its own"),
        ],
    )
    def test_what_is_accepted_twice_is_reported(self, code, options, named):
        code(name="receipt", **options)

        [warning] = [message for message in run_checks() if message.id == "django_backwave.W007"]

        assert warning.msg == f"accepts of the job 'receipt' names {named}."
        assert "the schema that was meant is not accepted" in warning.hint

    @pytest.mark.parametrize("options", [{}, {"schema": "a"}, {"schema": "a", "accepts": ("b", None)}])
    def test_others_are_not(self, code, options):
        code(**options)

        assert [message for message in check_handlers() if message.id == "django_backwave.W007"] == []
