"""A lock is asked for the rows that are wanted, and waits for no other, however small the table is."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_backwave.core.states import JobState
from django_backwave.ids import new_id
from django_backwave.models import Job, Key
from django_backwave.store.locking import unlocked, waiting, writing
from django_backwave.store.operate import cancel, requeue
from tests.factories import NOW, ready, second_connection
from tests.store.generations import enqueue, keyed
from tests.store.races import locked, needs_row_locks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def impatient():
    """Let a wait for a lock fail, and soon."""
    settings = {"postgresql": "SET lock_timeout = '3s'", "mysql": "SET innodb_lock_wait_timeout = 3"}
    needs_row_locks()
    with connection.cursor() as cursor:
        cursor.execute(settings[connection.vendor])
    yield
    connection.close()


@pytest.mark.parametrize("operation", [cancel, requeue])
def test_an_operator_waits_for_no_other_job(operation):
    state = JobState.READY if operation is cancel else JobState.DEAD_LETTERED
    first, *wanted = (ready(state=state) for _ in range(4))
    with locked(first):
        assert len(operation([job.pk for job in wanted], using="default", now=NOW)) == 3


@pytest.mark.parametrize("lock", [waiting, unlocked])
def test_no_other_job_stays_locked(lock):
    """MySQL would look for these by their states, and keep whatever it has seen on its way."""
    wanted, *others = (ready() for _ in range(9))
    states = [JobState.WAITING, JobState.READY]
    with writing("default"):
        rows = Job.objects.filter(pk__in=[wanted.pk, new_id()], state__in=states).order_by("pk")
        assert len(lock(rows, using="default").values_list("pk")) == 1
        with second_connection() as other, transaction.atomic(using=other):
            free = unlocked(Job.objects.using(other).order_by("pk"), using=other)
            assert [job.pk for job in free] == sorted(job.pk for job in others)


def test_an_enqueue_waits_for_no_job_of_another_key():
    enqueue(*(keyed(key) for key in "abcd"))
    with locked(Job.objects.get(key="a")):
        assert len(enqueue(*(keyed(key) for key in "bcd"))) == 3


def test_a_key_that_changes_waits_for_no_other():
    enqueue(*(keyed(key) for key in "abcd"))
    Job.objects.update(state=JobState.SUCCEEDED)
    with second_connection() as other, transaction.atomic(using=other):
        held = Key.objects.using(other).filter(key="a")
        assert len(waiting(held, using=other)) == 1
        told = enqueue(*(keyed(key, "new_generation") for key in "bcd"))

    assert [number for _, number in told] == [2, 2, 2]
