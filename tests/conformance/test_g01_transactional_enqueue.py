"""G1: inside your transaction on the jobs' database, the job exists if and only if that one commits."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_backwave import enqueue_many
from django_backwave.core.states import JobState
from django_backwave.exceptions import ForeignTransaction
from django_backwave.models import Job, Tag
from tests.app.jobs import add
from tests.app.models import Entry
from tests.factories import second_connection
from tests.worker.support import run_worker

pytestmark = [pytest.mark.guarantee("G1"), pytest.mark.django_db(transaction=True)]
two_databases = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def seen(using="default") -> int:
    """Return how many jobs there are."""
    return Job.objects.using(using).count()


def test_a_job_is_seen_by_others_once_the_transaction_commits_and_not_before():
    with second_connection() as other:
        with transaction.atomic():
            add.enqueue(1)
            assert (seen(), seen(other)) == (1, 0)

        assert seen(other) == 1
        assert Job.objects.using(other).get().state == JobState.READY


def test_a_transaction_that_rolls_back_leaves_no_job():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        add.enqueue(1)
        raise ZeroDivisionError

    assert seen() == 0


def test_a_savepoint_that_rolls_back_takes_its_job_along_and_no_other():
    with transaction.atomic():
        kept = add.enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            add.enqueue(2)
            raise ZeroDivisionError

    assert [str(job.pk) for job in Job.objects.all()] == [str(kept.id)]


def test_the_job_and_the_callers_own_rows_share_one_fate():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Entry.objects.create(key="order", value="")
        add.enqueue(1)
        raise ZeroDivisionError
    with transaction.atomic():
        Entry.objects.create(key="order", value="")
        add.enqueue(1)

    assert (Entry.objects.count(), seen()) == (1, 1)


def test_without_a_transaction_the_job_is_there_when_enqueue_returns():
    with second_connection() as other:
        add.enqueue(1)
        assert seen(other) == 1


def test_many_are_enqueued_all_or_none():
    with pytest.raises(TypeError):
        enqueue_many(add, [((1,), {}), ((2,), {"no_such_argument": 3})])
    assert seen() == 0

    enqueue_many(add, [((1,), {}), ((2,), {})])
    assert seen() == 2


def test_tags_belong_to_the_same_transaction():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        add.using(tags=["urgent"]).enqueue(1)
        assert Tag.objects.count() == 1
        raise ZeroDivisionError

    assert (seen(), Tag.objects.count()) == (0, 0)


def test_nothing_waits_for_the_commit():
    with transaction.atomic():
        add.enqueue(1)
        assert connection.run_on_commit == []


@two_databases
def test_a_transaction_on_another_database_alone_is_refused_by_name():
    with (
        transaction.atomic(using="other"),
        pytest.raises(ForeignTransaction, match="A transaction is open on 'other', but jobs are stored on"),
    ):
        add.enqueue(1)

    assert seen() == 0


@two_databases
def test_transactions_on_both_databases_are_fine():
    with transaction.atomic(using="other"), transaction.atomic():
        add.enqueue(1)

    assert seen() == 1


@two_databases
def test_who_really_wants_two_databases_says_so(settings):
    settings.BACKWAVE = {"ALLOW_SEPARATE_TRANSACTION": True}

    with pytest.raises(ZeroDivisionError), transaction.atomic(using="other"):
        add.enqueue(1)
        raise ZeroDivisionError

    assert seen() == 1, "and has given up this guarantee"


@pytest.mark.process
def test_a_worker_runs_what_was_committed_and_nothing_else():
    with transaction.atomic():
        committed = add.enqueue(1, b=2)
    with transaction.atomic():
        add.enqueue(3)
        transaction.set_rollback(True)

    process = run_worker("--drain")

    committed.refresh()
    assert (process.code, committed.output, seen()) == (0, 3, 1)
    assert len(process.said("action=attempt_ended")) == 1
