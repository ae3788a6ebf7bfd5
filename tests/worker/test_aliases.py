"""A worker whose own connections have another alias than the project's code: past a pooler, say."""

from __future__ import annotations

import pytest
from django.core.management.base import CommandError
from django.db import connections

from django_backwave.core.states import JobState
from django_backwave.management.database import handlers_database
from django_backwave.models import Job, Mark, Worker
from tests.app.models import Entry
from tests.factories import ready
from tests.worker.support import outcomes, read, run_worker

DIRECT = {"BACKWAVE_TEST_DIRECT": "yes", "BACKWAVE_TEST_MODULES": "tests.worker.aliases"}


def drain():
    process = run_worker("--drain", "--database", "direct", **DIRECT)
    assert process.code == 0, str(process)
    assert process.said("action=worker_started", "database=direct")
    assert not process.said("action=other_database")


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("handler", ["write", "block"])
def test_what_a_handler_writes_by_its_own_alias_is_atomic_with_its_success(handler):
    """G7: the first attempt's writes, and what it has enqueued, are rolled back with it."""
    job = ready(now=None, name=f"aliases.{handler}", backoff_base=1.0, backoff_cap=1.0, max_attempts=2)
    drain()
    assert (outcomes(job), Entry.objects.count(), Job.objects.count()) == ([(1, "failed")], 0, 1)

    Job.objects.filter(pk=job.pk).update(due_at=job.enqueued_at)
    drain()

    assert outcomes(job) == [(1, "failed"), (2, "succeeded")]
    assert [entry.key for entry in Entry.objects.all()] == ["attempt 2"]
    later = Job.objects.get(name="aliases.later")
    assert later.job_state is JobState.SUCCEEDED


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_a_mark_is_refused_in_a_transaction_of_the_handlers_alias():
    job = ready(now=None, name="aliases.once")
    drain()

    assert read(job).output == "refused"
    assert [(mark.name, mark.result) for mark in Mark.objects.all()] == [("charge", "charged")]


@pytest.fixture
def second():
    """Give a second alias for the jobs' database."""
    connections["second"] = connections["default"].copy("second")
    yield "second"
    connections["second"].close()
    del connections["second"]


@pytest.mark.django_db(transaction=True)
def test_two_aliases_for_one_database_are_found_out(second):
    assert handlers_database("default", name="host:1:a") == "default"
    assert handlers_database(second, name="host:1:a") == "default"
    assert not Worker.objects.exists()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_two_databases_are_told_apart():
    assert handlers_database("other", name="host:1:a") == "other"
    assert not Worker.objects.exists()
    assert not Worker.objects.using("other").exists()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.only_on("postgres", "mysql")
def test_a_database_of_the_handlers_that_cannot_be_reached_is_told(second, settings):
    other = connections["other"]
    connections["other"] = connections["default"].copy("other")
    connections["other"].settings_dict["PORT"] = 1
    settings.BACKWAVE = {"DATABASE": "other"}
    try:
        with pytest.raises(CommandError, match="Handlers use database 'other', which cannot be reached: "):
            handlers_database(second, name="host:1:a")
    finally:
        connections["other"] = other


@pytest.mark.process
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_worker_of_another_database_says_so():
    process = run_worker("--drain", "--database", "other")

    assert process.code == 0, str(process)
    assert process.said("WARNING", "action=other_database", "database=other", "enqueued_to=default")
