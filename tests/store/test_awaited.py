"""Awaited: a mark on a job whose end is to be told, and what tells it on PostgreSQL, with the end itself."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_backwave.core.outcome import Snoozed, Succeeded, Unroutable
from django_backwave.core.states import JobState
from django_backwave.ids import new_id
from django_backwave.models import Job
from django_backwave.store import awaited, operate
from django_backwave.store.atomic import Gate, completing
from django_backwave.store.awaited import MOST_EARS, Ear, mark
from django_backwave.store.claim import Order, take
from django_backwave.store.expire import expire, expire_dead, expire_waiting
from django_backwave.store.notify import ENDED, Subscription
from django_backwave.store.release import release_unknown
from django_backwave.store.settle import settle_and_take
from tests.factories import (
    FAILED,
    GRACE,
    LEASE,
    NOW,
    WORKER,
    after,
    claimed,
    lapsed,
    ready,
    report,
    row,
    second_connection,
    send,
)
from tests.processes import wait_until
from tests.store.races import locked

pytestmark = pytest.mark.django_db(transaction=True)

END = "the end of what this test says"

on_postgres = pytest.mark.only_on("postgres")


class Listening:
    """Hears of the ends that are told while a test runs."""

    def __init__(self, alias):
        self._subscription = Subscription(alias, channel=ENDED)

    def heard(self):
        """Return the ids so far: a last word is sent, and waited for, after which nothing can come."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [ENDED, END])
        words = set()
        wait_until(lambda: END in words or words.update(self._subscription.heard()))
        return words - {END}


@pytest.fixture
def listening():
    with second_connection() as alias:
        yield Listening(alias)


def wanted(job):
    """Return a job once somebody waits for it."""
    assert mark(getattr(job, "job_id", None) or job.pk, using="default")
    return job


def ident(job):
    return str(getattr(job, "job_id", None) or job.pk)


def cancelled_while_running(**changes):
    job = claimed(**changes)
    operate.cancel([job.job_id], using="default", now=NOW)
    return wanted(job)


def succeeded(job):
    return send(report(job, Succeeded("1")))


def completed(job):
    final = report(job, Succeeded("1"))
    with completing(Gate(), job, worker=WORKER, report=lambda: final, using="default", now=NOW):
        pass


def settled_while_claiming(job):
    order = Order("nowhere", 1, 1, LEASE)
    settle_and_take([report(job)], order, worker=WORKER, unroutable_grace=GRACE, using="default", now=NOW)


def swept(_):
    expire(jitter=float, using="default", now=NOW)


#: Ways to end, each with the job and what ends it.
ENDS = {
    "success": (claimed, succeeded),
    "success of an atomic job": (claimed, completed),
    "success with a claim": (claimed, settled_while_claiming),
    "dead letter": (lambda: claimed(max_attempts=1), lambda job: send(report(job, FAILED))),
    "quarantine": (
        lambda: claimed(unroutable_since=after(-2 * GRACE)),
        lambda job: send(report(job, Unroutable("who?"))),
    ),
    "cancel of a waiting job": (ready, lambda job: operate.cancel([job.pk], using="default", now=NOW)),
    "cancel of a running job": (cancelled_while_running, lambda job: send(report(job, FAILED))),
    "late for a claim": (
        lambda: ready(queue="late", expires=1.0),
        lambda _: take(Order("late", 1, 1, LEASE), worker=WORKER, using="default", now=after(2)),
    ),
    "late where nobody claims": (
        lambda: ready(expires=1.0),
        lambda _: expire_waiting(using="default", now=after(2)),
    ),
    "lost lease of the last try": (lambda: lapsed(max_attempts=1), swept),
    "dead worker of the last try": (
        lambda: claimed(max_attempts=1),
        lambda _: expire_dead(WORKER, ordered=False, jitter=float, using="default", now=NOW),
    ),
    "cancel of a job that was handed back": (
        cancelled_while_running,
        lambda _: release_unknown([], worker=WORKER, using="default", now=NOW),
    ),
}

#: What ends no job.
GOES_ON = {
    "failure with tries left": (claimed, lambda job: send(report(job, FAILED))),
    "snooze": (claimed, lambda job: send(report(job, Snoozed(5)))),
    "unroutable within the grace": (claimed, lambda job: send(report(job, Unroutable("who?")))),
    "claim": (
        lambda: ready(queue="due"),
        lambda _: take(Order("due", 1, 1, LEASE), worker=WORKER, using="default", now=NOW),
    ),
    "lost lease": (lapsed, swept),
    "request to cancel": (claimed, lambda job: operate.cancel([job.job_id], using="default", now=NOW)),
    "hand-back": (claimed, lambda _: release_unknown([], worker=WORKER, using="default", now=NOW)),
    "stale success": (lapsed, succeeded),
}


@on_postgres
class TestWhatIsTold:
    @pytest.mark.parametrize("way", ENDS)
    def test_each_end_of_a_job_that_somebody_waits_for(self, listening, way):
        """Nobody waits any more then, until somebody says so again."""
        make, end = ENDS[way]
        job = wanted(make())
        end(job)
        assert Job.objects.get().job_state.is_terminal
        assert listening.heard() == {ident(job)}
        assert Job.objects.get().awaited is False

    @pytest.mark.parametrize("way", ENDS)
    def test_nothing_of_a_job_that_nobody_waits_for(self, listening, way):
        make, end = ENDS[way]
        job = make()
        Job.objects.update(awaited=None)
        end(job)
        assert Job.objects.get().job_state.is_terminal
        assert listening.heard() == set()
        assert Job.objects.get().awaited is None

    @pytest.mark.parametrize("way", GOES_ON)
    def test_nothing_that_is_no_end(self, listening, way):
        """And the mark stays."""
        make, event = GOES_ON[way]
        job = wanted(make())
        event(job)
        assert not Job.objects.get().job_state.is_terminal
        assert listening.heard() == set()
        assert Job.objects.get().awaited is True

    def test_only_those_of_a_batch_for_which_somebody_waits(self, listening):
        jobs = [claimed() for _ in range(4)]
        wanted(jobs[1])
        wanted(jobs[3])
        send(report(jobs[0]), report(jobs[1]), report(jobs[2], FAILED), report(jobs[3], FAILED))
        assert listening.heard() == {ident(jobs[1])}

    def test_nothing_of_what_is_rolled_back(self, listening):
        job = wanted(ready())
        with transaction.atomic():
            operate.cancel([job.pk], using="default", now=NOW)
            transaction.set_rollback(True)
        assert listening.heard() == set()
        assert row(job).awaited is True


@on_postgres
@pytest.mark.parametrize("way", ENDS)
def test_switched_off_no_statement_asks_for_a_notification(way, settings):
    """NOTIFY False is for databases that speak PostgreSQL's language and have none."""
    make, end = ENDS[way]
    job = wanted(make())
    settings.BACKWAVE = {"NOTIFY": False}
    with CaptureQueriesContext(connection) as queries:
        end(job)
    assert Job.objects.get().job_state.is_terminal
    assert [each["sql"] for each in queries if "pg_notify" in each["sql"].lower()] == []


@pytest.mark.parametrize("way", ENDS)
def test_every_end_is_one_with_the_mark_as_well(way):
    """On every database, whether or not anybody can be told."""
    make, end = ENDS[way]
    end(wanted(make()))
    assert Job.objects.get().job_state.is_terminal


class TestMark:
    def test_an_unfinished_job_is_marked_once_and_for_all(self):
        job = ready()
        assert mark(job.pk, using="default")
        assert mark(job.pk, using="default")
        assert row(job).awaited is True

    def test_what_has_ended_is_left_alone(self):
        job = claimed()
        send(report(job))
        before = row(job).awaited
        assert not mark(job.job_id, using="default")
        assert row(job).awaited is before is None

    def test_what_is_gone(self):
        assert not mark(new_id(), using="default")

    @pytest.mark.only_on("postgres", "mysql")
    def test_it_waits_for_nobody(self):
        """A row that somebody else has locked is not marked, and the wait goes on by looking."""
        job = ready()
        with locked(job):
            assert not mark(job.pk, using="default")
        assert row(job).awaited is None

    def test_it_disturbs_no_attempt(self):
        """The fence compares other columns."""
        job = claimed()
        assert mark(job.job_id, using="default")
        send(report(job, Succeeded("1")))
        assert row(job).job_state is JobState.SUCCEEDED


@contextmanager
def ears():
    """Give a list, and close what is in it at the end."""
    held: list[Ear] = []
    try:
        yield held
    finally:
        for ear in held:
            ear.close()


def connections_that_listen():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s",
            [f"LISTEN {ENDED}%"],
        )
        return cursor.fetchone()[0]


@on_postgres
class TestEars:
    def test_it_hears_of_its_job_and_of_no_other(self):
        with ears() as held:
            held.append(ear := Ear.lent("default"))
            mine, other = wanted(claimed()), wanted(claimed())
            send(report(other))
            wait_until(lambda: not ear.hears_of(mine.job_id))
            send(report(mine))
            ear.wait_for(mine.job_id, 20)  # what was not for it is behind it

    def test_another_jobs_end_does_not_wake_it(self):
        """It waits for as long as it was told, and is not woken by what others wait for."""
        with ears() as held:
            held.append(ear := Ear.lent("default"))
            other = wanted(claimed())
            send(report(other))
            began = threading.Event()
            threading.Thread(target=lambda: (ear.wait_for(new_id(), 2.0), began.set())).start()
            assert not began.wait(0.05)
            assert began.wait(20)

    def test_there_are_so_many_and_no_more(self):
        """The others look from time to time; what is closed makes room."""
        with ears() as held:
            held += [Ear.lent("default") for _ in range(MOST_EARS)]
            assert Ear.lent("default") is None
            held[0].close()
            held[0].close()  # as often as you like
            held.append(Ear.lent("default"))
            assert held[-1] is not None
            assert Ear.lent("default") is None
        wait_until(lambda: connections_that_listen() == 0)

    def test_one_that_cannot_connect_takes_no_room(self, monkeypatch):
        def refuse(*_, **__):
            raise OSError("no route to host")

        monkeypatch.setattr(awaited.notify, "Subscription", refuse)
        for _ in range(MOST_EARS + 1):
            with pytest.raises(OSError, match="no route"):
                Ear.lent("default")
        monkeypatch.undo()
        with ears() as held:
            held.append(Ear.lent("default"))
            assert held[0] is not None

    def test_it_is_no_connection_of_this_thread(self):
        """The thread's own can be closed, and a pool is left alone."""
        with ears() as held:
            held.append(ear := Ear.lent("default"))
            job = wanted(claimed())
            connection.close()
            send(report(job))
            ear.wait_for(job.job_id, 20)
