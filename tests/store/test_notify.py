"""Notifications: sent at commit, not at rollback, and not too many (G1)."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.core.checks import run_checks
from django.db import connection, connections, transaction

from django_backwave.core.states import JobState
from django_backwave.store import notify
from django_backwave.store.adjust import change, reschedule, run_now
from django_backwave.store.enqueue import insert_many, insert_one
from django_backwave.store.notify import BURST, CHANNEL, MOST_QUEUES, SPACING, Subscription, Throttle
from django_backwave.store.operate import requeue
from tests.factories import NOW, new_job, ready, row, second_connection
from tests.processes import wait_until

END = "the end of what this test says"


@pytest.fixture(autouse=True)
def _unthrottled(monkeypatch):
    """Let no test suffer from what the one before has sent."""
    monkeypatch.setattr(notify, "_throttle", Throttle(lambda: 0.0))


class Ear:
    """Hears what is committed while a test runs."""

    def __init__(self, alias):
        self._subscription = Subscription(alias)

    def heard(self):
        """Return the payloads so far: a last one is sent, and waited for, after which nothing can come."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, END])
        payloads = set()
        wait_until(lambda: END in payloads or payloads.update(self._subscription.heard()))
        return payloads - {END}


@contextmanager
def listening():
    """Listen on a connection of its own."""
    with second_connection() as alias:
        yield Ear(alias)


@pytest.mark.only_on("postgres")
@pytest.mark.django_db(transaction=True)
class TestWhatIsSent:
    """On PostgreSQL, through real connections."""

    @pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
    def test_an_enqueue_names_its_queue(self, many):
        """A committed enqueue is heard of, with its queue, once."""
        with listening() as ear:
            if many:
                insert_many(
                    [new_job(queue="mail"), new_job(queue="mail"), new_job(queue="b")], using="default"
                )
            else:
                insert_one(new_job(queue="mail"), using="default")

            assert ear.heard() == ({"mail", "b"} if many else {"mail"})

    @pytest.mark.parametrize(
        "queue", ["q" * 100, "ü" * 100, "😀" * 100, "a'b\\c\"%s $1"], ids=["long", "wide", "wider", "odd"]
    )
    def test_any_name_arrives_as_it_is(self, queue):
        """The longest name of the widest characters fits, and nothing needs quoting."""
        with listening() as ear:
            insert_one(new_job(queue=queue), using="default")

            assert ear.heard() == {queue}

    @pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
    def test_nothing_before_the_commit(self, many):
        """G1: as long as the job does not exist for others, they hear nothing of it."""
        insert = insert_many if many else lambda jobs, using: insert_one(jobs[0], using=using)
        with listening() as ear, second_connection("third") as third:
            with transaction.atomic(using=third):
                insert([new_job(queue="mail")], using=third)
                before = ear.heard()

            assert before == set()
            assert ear.heard() == {"mail"}

    def test_nothing_after_a_rollback(self):
        """G1: what rolls back wakes nobody, and the next enqueue wakes all the same."""
        with listening() as ear:
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                insert_one(new_job(queue="mail"), using="default")
                raise ZeroDivisionError
            after_rollback = ear.heard()
            insert_one(new_job(queue="mail"), using="default")

            assert after_rollback == set()
            assert ear.heard() == {"mail"}

    def test_a_savepoint_that_rolls_back_takes_only_its_own(self):
        """G1: the next enqueue in the same transaction is heard of."""
        with listening() as ear:
            with transaction.atomic():
                with pytest.raises(ZeroDivisionError), transaction.atomic():
                    insert_one(new_job(queue="mail"), using="default")
                    raise ZeroDivisionError
                insert_one(new_job(queue="mail"), using="default")

            assert ear.heard() == {"mail"}

    def test_what_is_due_later_wakes_nobody(self):
        """A worker learns of it from its next look, and would find nothing now."""
        later = datetime.now(UTC) + timedelta(hours=1)
        with listening() as ear:
            insert_one(new_job(run_after=later), using="default")
            insert_many([new_job(run_after=later)], using="default")

            assert ear.heard() == set()

    def test_it_can_be_switched_off(self, settings):
        """NOTIFY False: nothing is sent."""
        settings.BACKWAVE = {"NOTIFY": False}
        with listening() as ear:
            insert_one(new_job(), using="default")
            insert_many([new_job()], using="default")

            assert ear.heard() == set()

    def test_it_costs_no_statement(self, django_assert_num_queries):
        """G12: the notification rides in the INSERT."""
        with listening() as ear:
            with django_assert_num_queries(1) as queries:
                insert_one(new_job(queue="mail"), using="default")

            assert "PG_NOTIFY" in queries.captured_queries[0]["sql"]
            assert ear.heard() == {"mail"}

    def test_it_changes_nothing_in_the_row(self):
        """Both ways of enqueueing give the instant that they return, with a notification and without."""
        one = insert_one(job := new_job(), using="default")
        timed = insert_one(expiring := new_job(expires=90.0), using="default")

        assert row(job).enqueued_at == one
        assert (row(expiring).enqueued_at, row(expiring).expires_at) == (timed, timed + timedelta(seconds=90))

    def test_after_a_burst_there_is_one_in_a_while(self):
        """G12: ten go through, for the clock of this test stands still."""
        with listening() as ear:
            for _ in range(BURST):
                insert_one(new_job(queue="mail"), using="default")
            first = ear.heard()
            insert_one(new_job(queue="mail"), using="default")
            insert_many([new_job(queue="mail")], using="default")

            assert first == {"mail"}
            assert ear.heard() == set()

    @pytest.mark.parametrize(
        "act",
        [
            lambda job: requeue([job.pk], using="default"),
            lambda job: run_now([job.pk], using="default"),
            lambda job: reschedule([job.pk], NOW, using="default"),
            lambda job: change([job.pk], queue="other", using="default"),
        ],
        ids=["requeue", "run now", "reschedule", "change"],
    )
    def test_an_operator_wakes_workers(self, act):
        """What an operator makes due is looked for at once; an action without effect says nothing."""
        act_on = {"state": JobState.DEAD_LETTERED.value} if "requeue" in act.__code__.co_names else {}
        job = ready(**act_on)
        done = ready(state=JobState.SUCCEEDED.value)
        with listening() as ear:
            act(done)
            nothing = ear.heard()
            act(job)

            assert nothing == set()
            assert ear.heard() == {notify.ANYWHERE}


@pytest.mark.only_on("sqlite", "mysql")
@pytest.mark.django_db
def test_other_databases_send_nothing(django_assert_num_queries):
    """Where there are no notifications, none is thought of."""
    statements = 1 if connection.features.can_return_columns_from_insert else 2

    with django_assert_num_queries(statements) as queries:
        insert_one(new_job(), using="default")

    assert "notify" not in str(queries.captured_queries).lower()


class Time:
    """A clock for the throttle."""

    now = 100.0

    def __call__(self):
        return self.now


def test_the_throttle_lets_a_burst_through_and_then_one_in_a_while():
    """§8: one for each queue and 25 ms, but for a burst: some of it may roll back."""
    time = Time()
    throttle = Throttle(time)

    at_once = [throttle.permits("default", "mail") for _ in range(BURST + 5)]
    time.now += SPACING * 1.01
    later = [throttle.permits("default", "mail") for _ in range(3)]
    time.now += 60
    after_a_pause = [throttle.permits("default", "mail") for _ in range(BURST + 5)]

    assert at_once == [True] * BURST + [False] * 5
    assert later == [True, False, False]
    assert after_a_pause == at_once


def test_the_throttle_counts_each_queue_and_database_for_itself():
    """A busy queue delays no other."""
    throttle = Throttle(Time())
    for _ in range(BURST + 1):
        throttle.permits("default", "mail")

    assert not throttle.permits("default", "mail")
    assert throttle.permits("default", "pictures")
    assert throttle.permits("replica", "mail")


def test_the_throttle_sends_no_more_than_its_rate():
    """§8: over ten seconds of enqueues every millisecond there is one every 25 ms."""
    time = Time()
    throttle = Throttle(time)

    sent = 0
    for _ in range(10_000):
        sent += throttle.permits("default", "mail")
        time.now += 0.001

    assert sent <= 10 / SPACING + BURST


def test_the_throttle_does_not_grow_for_ever():
    """Names of queues may be made of customers' numbers."""
    throttle = Throttle(Time())

    for number in range(3 * MOST_QUEUES):
        assert throttle.permits("default", f"customer-{number}")

    assert len(throttle._used_until) <= MOST_QUEUES


@pytest.mark.parametrize("value", [True, False, "other"])
def test_good_settings_pass(settings, value):
    """NOTIFY is yes, no, or the alias to listen over."""
    settings.BACKWAVE = {"NOTIFY": value}

    assert [error for error in run_checks() if "NOTIFY" in error.msg] == []


@pytest.mark.parametrize("value", [None, 1, "nowhere", ["default"]])
def test_bad_settings_are_reported(settings, value):
    """What cannot be used is told with the rule."""
    assert "nowhere" not in connections
    settings.BACKWAVE = {"NOTIFY": value}

    [error] = [error for error in run_checks() if "NOTIFY" in error.msg]

    assert error.id == "django_backwave.E002"
    assert error.msg == f"BACKWAVE['NOTIFY'] must be True, False, or an alias of DATABASES, got {value!r}."
