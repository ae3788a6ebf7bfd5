"""Idle workers wake up for what is enqueued on PostgreSQL, and do without where they cannot listen."""

from __future__ import annotations

import queue
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.db.backends.postgresql import psycopg_any

from django_backwave.core.driver import Options
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.enqueue import insert_one
from django_backwave.worker.listener import Listener, listening_alias
from tests import processes
from tests.factories import new_job, second_connection
from tests.processes import journal, wait_until
from tests.worker.proxy import Proxy
from tests.worker.support import enqueue, wait_for_state

# After some silence a listener asks for a sign of life, and nobody else sends just that.
LISTENERS = """
    SELECT pid FROM pg_stat_activity
     WHERE (query LIKE 'LISTEN %%' OR query = 'SELECT 1') AND datname = current_database()
"""
UNAVAILABLE = "action=notify_unavailable"
BACK = "action=notify_back"

on_postgres = [
    pytest.mark.process,
    pytest.mark.only_on("postgres"),
    pytest.mark.django_db(transaction=True),
]


def listeners():
    """Return the server's processes that serve somebody who listens."""
    with connection.cursor() as cursor:
        cursor.execute(LISTENERS)
        return [pid for (pid,) in cursor.fetchall()]


@contextmanager
def worker(*arguments, **environment):
    """Run a worker that, when idle, looks for jobs twice a minute at most."""
    with processes.worker(
        "--poll", "60", *arguments, DJANGO_SETTINGS_MODULE="tests.worker.listening", **environment
    ) as process:
        yield process


@contextmanager
def idle_worker(**environment):
    """Run such a worker until it listens and has nothing to do."""
    with worker(**environment) as process:
        wait_until(listeners)
        first = enqueue("write", "/dev/null", "settled in")
        wait_for_state(first, JobState.SUCCEEDED)
        yield process


class TestListening:
    """On PostgreSQL, with real workers."""

    pytestmark = on_postgres

    def test_an_enqueue_wakes_an_idle_worker(self, tmp_path):
        """The worker would look again in half a minute; the queue's name is new to it."""
        with idle_worker():
            began = time.monotonic()
            job = enqueue("write", tmp_path / "journal", "woken", queue="never used before")
            wait_until(lambda: journal(tmp_path / "journal") == ["woken"])
            took = time.monotonic() - began
            wait_for_state(job, JobState.SUCCEEDED)

        assert took < 15  # a busy machine; without a notification it is at least 20

    def test_the_commit_wakes_it_and_not_the_insert(self, tmp_path):
        """G1: the worker comes when there is something to see."""
        with idle_worker():
            with transaction.atomic():
                job = enqueue("write", tmp_path / "journal", "woken")
                assert Job.objects.get(pk=job.pk).job_state is JobState.READY
            wait_for_state(job, JobState.SUCCEEDED)

    def test_a_lost_connection_is_told_once_and_comes_back(self, tmp_path):
        """What was enqueued meanwhile is found when the listener is back."""
        with idle_worker(BACKWAVE_TEST_MODULES="tests.worker.impatient") as process:
            with connection.cursor() as cursor:
                cursor.execute(LISTENERS.replace("SELECT pid", "SELECT pg_terminate_backend(pid)"))
            process.wait_for(UNAVAILABLE, "the worker only polls for now")
            process.wait_for(BACK)
            for number in range(2):
                job = enqueue("write", tmp_path / "journal", f"after {number}")
                wait_for_state(job, JobState.SUCCEEDED)

            assert len(process.said(UNAVAILABLE)) == 1
            assert len(process.said(BACK)) == 1
            process.send(signal.SIGTERM)
            assert process.wait() == 0

    def test_a_worker_that_cannot_listen_polls_and_says_so_once(self, tmp_path):
        """The alias in NOTIFY leads nowhere, then to the server: the worker works all the time."""
        with Proxy(int(connection.settings_dict["PORT"])) as proxy:
            proxy.cut()
            with worker(
                "--poll",
                "0.1",
                BACKWAVE_TEST_PORT=str(proxy.port),
                BACKWAVE_TEST_MODULES="tests.worker.impatient",
            ) as process:
                process.wait_for(UNAVAILABLE, "database=listening")
                for number in range(5):
                    job = enqueue("write", tmp_path / "journal", f"polled {number}")
                    wait_for_state(job, JobState.SUCCEEDED)
                assert len(process.said(UNAVAILABLE)) == 1
                assert not process.said(BACK)

                proxy.restore()
                process.wait_for(BACK, "database=listening")
                assert len(process.said(UNAVAILABLE)) == 1

    def test_a_silent_network_is_noticed(self):
        """§9.14: the socket stays open and says nothing; the listener asks, and does not wait for ever."""
        with (
            Proxy(int(connection.settings_dict["PORT"])) as proxy,
            worker(
                BACKWAVE_TEST_PORT=str(proxy.port),
                BACKWAVE_TEST_MODULES="tests.worker.impatient",
                BACKWAVE_TEST_ANSWER_IN="0.5",
            ) as process,
        ):
            wait_until(listeners)
            proxy.hold()
            process.wait_for(UNAVAILABLE, "the server has not answered for 0.5 seconds")
            proxy.restore()
            process.wait_for(BACK)
            job = enqueue("write", "/dev/null", "after")
            wait_for_state(job, JobState.SUCCEEDED)

    def test_switched_off_it_polls(self, tmp_path):
        """NOTIFY False: there is no connection that listens, and nothing is said of it."""
        with worker("--poll", "0.1", BACKWAVE_TEST_NOTIFY="no") as process:
            job = enqueue("write", tmp_path / "journal", "polled")
            wait_for_state(job, JobState.SUCCEEDED)

            assert listeners() == []
            assert not process.said("action=notify")

    def test_a_worker_that_drains_does_not_listen(self):
        """It never idles."""
        drained = processes.run_command(
            "backwave_worker", "--drain", DJANGO_SETTINGS_MODULE="tests.worker.listening"
        )

        assert (drained.code, drained.said("action=notify")) == (0, [])


class Waker:
    """What a listener knows of its worker; `pump` keeps what it is given."""

    name = "host:1:a"
    options = Options()

    def __init__(self):
        self.exited = threading.Event()
        self.pump = queue.SimpleQueue()


@pytest.mark.only_on("postgres")
@pytest.mark.django_db(transaction=True)
def test_it_tells_the_queue_and_stops_at_once():
    """The first word is to look everywhere; a listener that waits ends when it is told to."""
    worker = Waker()
    listener = Listener(worker, "default")
    thread = threading.Thread(target=listener.run)
    thread.start()
    heard = [worker.pump.get(timeout=processes.PATIENCE).queue]
    insert_one(new_job(queue="mail"), using="default")
    heard.append(worker.pump.get(timeout=processes.PATIENCE).queue)

    worker.exited.set()
    listener.stop()
    thread.join(5)

    assert heard == [None, "mail"]
    assert not thread.is_alive()
    wait_until(lambda: not listeners())


@pytest.mark.only_on("sqlite", "mysql")
def test_other_databases_have_nothing_to_listen_to(caplog):
    """No thread, and no word."""
    assert listening_alias("default") is None
    assert caplog.text == ""


@pytest.mark.only_on("postgres")
@pytest.mark.parametrize(("setting", "alias"), [(True, "default"), ("direct", "direct"), (False, None)])
def test_the_setting_chooses_the_alias(settings, setting, alias):
    """Where the jobs' alias leads through PgBouncer, another one goes past it."""
    settings.BACKWAVE = {"NOTIFY": setting}

    with second_connection("direct"):
        assert listening_alias("default") == alias


@pytest.mark.only_on("postgres")
def test_an_alias_of_another_database_is_told(settings, caplog):
    """The worker polls, and says why."""
    settings.BACKWAVE = {"NOTIFY": "other"}

    assert listening_alias("default") is None
    assert caplog.messages == [
        "action=notify_unavailable database=other error=it is no PostgreSQL: the worker polls"
    ]


@pytest.mark.only_on("postgres")
def test_psycopg2_cannot_listen(monkeypatch, caplog):
    """The worker polls, and says why."""
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)

    assert listening_alias("default") is None
    assert caplog.messages == [
        "action=notify_unavailable database=default error=listening needs psycopg 3, and this is psycopg2: "
        "the worker polls"
    ]
