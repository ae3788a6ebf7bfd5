"""Handles: what is written into one, what comes out of it again, and to which generation it leads."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from django.core.signing import Signer, dumps
from django.db import connection

from django_backwave import JobHandle, job
from django_backwave.backend import first_of_ours
from django_backwave.compat import TaskResultDoesNotExist
from django_backwave.exceptions import BackWaveError, InvalidHandle, SchemaMismatch
from django_backwave.handles import SALT
from django_backwave.models import Job
from django_backwave.store.claim import claim
from tests.api import handlers
from tests.factories import WORKER, report, send

pytestmark = pytest.mark.django_db


@job(name="tests-handles-bill", queue_name="mail", schema="bill/1")
def bill(amount: int) -> int:
    return amount


KEYED = bill.using(key="bill:7", on_conflict="new_generation")


def settle_next(queue="mail"):
    """Run the next job of a queue to its success."""
    [taken] = claim(queue, 1, worker=WORKER, lease=60.0, using="default")
    send(report(taken), now=None)


def signed(**changes):
    """Return a text that is signed as ours are, and says something else."""
    values = {"id": handle().id, "queue": "q", "key": None, "generation": None, "name": "n", "schema": None}
    return Signer(salt=SALT).sign_object({**values, "version": 1, **changes})


def handle(**changes):
    return replace(
        JobHandle(id="01930000-0000-7000-8000-000000000000", queue="mail", name="shop.send"), **changes
    )


class TestOfAResult:
    def test_it_names_the_generation(self):
        result = KEYED.enqueue(7)
        assert result.handle == JobHandle(id=result.id, queue="", name="")
        found = result.handle
        assert (found.queue, found.key, found.generation) == ("mail", "bill:7", 1)
        assert (found.name, found.schema, found.version) == ("tests-handles-bill", "bill/1", 1)

    def test_a_job_without_a_key_has_one(self):
        found = handlers.echo.enqueue().handle
        assert (found.key, found.generation, found.schema) == (None, None, None)

    def test_it_is_the_same_after_the_row_was_read(self):
        """Whether a result comes from an enqueue or from the row, its handle says the same."""
        result = KEYED.enqueue(7)
        before = result.handle
        result.refresh()
        assert repr(result.handle) == repr(before)
        assert result.handle.dumps() == before.dumps() == result.dumps()

    def test_the_id_decides(self):
        """Two readings of one job are equal, whatever was changed meanwhile; two generations are not."""
        first = KEYED.enqueue(7).handle
        settle_next()
        second = KEYED.enqueue(7).handle
        assert first == replace(first, queue="elsewhere", schema=None)
        assert hash(first) == hash(replace(first, queue="elsewhere"))
        assert len({first, second, replace(first, name="renamed")}) == 2


class TestAsText:
    def test_there_and_back(self):
        found = KEYED.enqueue(7).handle
        again = JobHandle.loads(found.dumps())
        assert again == found
        fields = ("queue", "key", "generation", "name", "schema", "version")
        assert all(getattr(again, name) == getattr(found, name) for name in fields)

    def test_odd_words_survive(self):
        found = handle(key='a "b": ü 中 \u2028', queue="with space", generation=3)
        again = JobHandle.loads(found.dumps())
        assert (again.key, again.queue) == (found.key, found.queue)

    def test_equal_handles_are_equal_texts(self):
        """It carries no time stamp, so that it may serve as a key of a cache."""
        assert handle().dumps() == handle().dumps()

    @pytest.mark.parametrize("place", [0, 5, -1])
    def test_a_changed_text_is_refused(self, place):
        text = list(handle().dumps())
        text[place] = "A" if text[place] != "A" else "B"
        with pytest.raises(InvalidHandle, match="changed or cut off"):
            JobHandle.loads("".join(text))

    @pytest.mark.parametrize("text", ["", ":", "nonsense", "{}", "a:b:c", "\0", "ü" * 50])
    def test_nonsense_is_refused(self, text):
        with pytest.raises(InvalidHandle, match="no handle that this project has signed"):
            JobHandle.loads(text)

    @pytest.mark.parametrize("text", [None, 7, b"bytes", handle()])
    def test_what_is_no_text_is_refused(self, text):
        with pytest.raises(InvalidHandle, match="read from the text that dumps"):
            JobHandle.loads(text)

    def test_it_is_an_error_of_ours_and_of_the_value(self):
        assert issubclass(InvalidHandle, BackWaveError)
        assert issubclass(InvalidHandle, ValueError)

    def test_another_signature_of_the_project_is_none(self):
        """What the project signs elsewhere, even with the same words in it, is no handle."""
        with pytest.raises(InvalidHandle):
            JobHandle.loads(dumps({"id": handle().id}))

    def test_another_secret_key(self, settings):
        text = handle().dumps()
        settings.SECRET_KEY = "another"
        with pytest.raises(InvalidHandle, match="SECRET_KEY_FALLBACKS"):
            JobHandle.loads(text)
        settings.SECRET_KEY_FALLBACKS = ["only for tests"]
        assert JobHandle.loads(text) == handle()

    @pytest.mark.parametrize("version", [2, 0, None, "1"])
    def test_an_unknown_version_says_so(self, version):
        with pytest.raises(InvalidHandle, match=rf"of version {version!r}, and this release reads version 1"):
            JobHandle.loads(signed(version=version))

    def test_what_a_later_release_adds_within_a_version_is_ignored(self):
        assert JobHandle.loads(signed(more="words")) == handle()

    @pytest.mark.parametrize(
        "changes",
        [
            {"id": "7"},
            {"id": None},
            {"id": handle().id.upper() + " "},
            {"queue": None},
            {"key": 7},
            {"generation": "1"},
            {"name": None},
            {"schema": []},
        ],
    )
    def test_signed_nonsense_is_refused(self, changes):
        with pytest.raises(InvalidHandle, match="what it says is no job"):
            JobHandle.loads(signed(**changes))

    def test_signed_json_that_is_no_object_is_refused(self):
        with pytest.raises(InvalidHandle, match="version None"):
            JobHandle.loads(Signer(salt=SALT).sign_object([1, 2]))


class TestTheValue:
    def test_it_is_frozen(self):
        with pytest.raises(FrozenInstanceError):
            handle().id = "other"

    def test_it_pickles(self):
        found = handle(key="k", generation=2)
        again = pickle.loads(pickle.dumps(found))  # noqa: S301
        assert (again, again.key) == (found, "k")

    def test_its_key_stays_out_of_logs(self):
        found = handle(key="receipt:ann@example.org", generation=2)
        assert repr(found) == f"<JobHandle {found.id} shop.send, generation 2>"
        assert str(handle()) == f"{found.id} shop.send"


class TestGetResult:
    def test_it_reads_that_generation(self):
        first = KEYED.enqueue(7)
        settle_next()
        KEYED.enqueue(8)
        found = JobHandle.loads(first.dumps()).get_result()
        assert (found.id, found.generation, found.args) == (first.id, 1, [7])

    def test_a_handler_that_is_gone_leaves_the_result_readable(self):
        result = handlers.echo.enqueue(1)
        Job.objects.update(name="gone.away")
        found = replace(result.handle, name="gone.away").get_result()
        assert (found.id, found.args) == (result.id, [1])

    def test_a_pruned_job(self):
        result = handlers.echo.enqueue()
        Job.objects.all().delete()
        with pytest.raises(TaskResultDoesNotExist):
            result.handle.get_result()

    def test_a_job_that_was_replaced_by_another_schema(self):
        """The handle says what its reader expects, so that nothing is read wrongly."""
        old = KEYED.enqueue(7).handle
        Job.objects.update(schema="bill/2")  # as an enqueue of the next release does
        with pytest.raises(SchemaMismatch, match="has the schema 'bill/2' by now") as caught:
            old.get_result()
        assert (caught.value.schema, caught.value.expected) == ("bill/2", ("bill/1",))
        assert replace(old, schema="bill/2").get_result().args == [7]

    def test_it_takes_as_few_statements_as_a_result_by_id(self, django_assert_num_queries):
        found = handlers.echo.enqueue().handle
        with django_assert_num_queries(3, connection=connection):
            first_of_ours().get_result(found.id)
        with django_assert_num_queries(3, connection=connection):
            found.get_result()
