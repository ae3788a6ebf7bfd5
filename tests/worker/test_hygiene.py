"""What a job leaves behind in its thread, the next one never sees."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue

import pytest
from django.core.cache import cache
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone, translation

from django_backwave import registry
from django_backwave.context import StopSwitch
from django_backwave.core.outcome import Failed, Succeeded
from django_backwave.jobs import BackWaveTask
from django_backwave.store import locking
from django_backwave.worker import connections as module
from django_backwave.worker.coroutines import _Threads
from django_backwave.worker.execution import Execution
from django_backwave.worker.handlers import HandlerThreads
from tests.app.models import Entry
from tests.core.bench import claimed
from tests.processes import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

CALLED = contextvars.ContextVar("CALLED", default="by nobody")
LEFT_OPEN = "action=transaction_left_open database=default"


class Thread:
    """The one thread of a worker with a concurrency of 1; runs functions as handlers, one by one."""

    def __init__(self, monkeypatch):
        self._reports = queue.SimpleQueue()
        self._tasks = {}
        self._threads = HandlerThreads(1, ended=self._reports.put)
        monkeypatch.setattr(registry, "resolve", self._tasks.get)
        self._threads.start()

    def outcome(self, handler):
        """Run a handler and return its outcome, once the thread is done with the cleaning up."""
        self._tasks["handler"] = BackWaveTask.unchecked(func=handler, job_name="handler")
        switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
        self._threads.submit(
            Execution(
                claimed(name="handler"), "host:1:a", switch, claimed_at=0.0, using="default", completed=bool
            )
        )
        return self._reports.get(timeout=PATIENCE).outcome

    def run(self, handler):
        """Run a handler that must succeed."""
        outcome = self.outcome(handler)
        assert isinstance(outcome, Succeeded), outcome


@pytest.fixture
def thread(monkeypatch):
    thread = Thread(monkeypatch)
    yield thread
    thread.run(connections.close_all)


def remember(into, value):
    """Return a handler that notes a value that it reads in the thread."""

    def handler():
        into.append(value())

    return handler


def test_an_open_transaction_is_rolled_back(thread, caplog):
    def leave_open():
        transaction.atomic().__enter__()
        Entry.objects.create(key="half", value="done")

    thread.run(leave_open)
    thread.run(lambda: Entry.objects.create(key="whole", value="done") and None)

    assert [entry.key for entry in Entry.objects.all()] == ["whole"]
    assert LEFT_OPEN in caplog.text


def test_a_transaction_begun_behind_djangos_back_is_rolled_back(thread, caplog):
    def leave_open():
        connection.set_autocommit(False)
        Entry.objects.create(key="half", value="done")

    thread.run(leave_open)
    seen = []
    thread.run(remember(seen, lambda: (connection.get_autocommit(), Entry.objects.count())))

    assert seen == [(True, 0)]
    assert LEFT_OPEN in caplog.text


def test_a_raw_begin_is_rolled_back(thread, caplog):
    def leave_open():
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            # `key` is a reserved word of MySQL's, which has quotes of its own.
            insert = "INSERT INTO app_entry (\"key\", value) VALUES ('half', 'done')"
            cursor.execute(insert.replace('"', connection.ops.quote_name("x")[0]))

    thread.run(leave_open)
    thread.run(lambda: Entry.objects.create(key="whole", value="done") and None)

    assert [entry.key for entry in Entry.objects.all()] == ["whole"]
    assert LEFT_OPEN in caplog.text


def test_language_time_zone_and_context_variables_are_those_of_a_fresh_thread(thread):
    def change():
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        CALLED.set("by the job before")

    fresh, seen = [], []

    def look():
        return translation.get_language(), timezone.get_current_timezone_name(), CALLED.get()

    thread.run(remember(fresh, look))
    thread.run(change)
    thread.run(remember(seen, look))

    assert seen == fresh
    assert seen[0][2] == "by nobody"


def test_jobs_of_a_thread_share_its_cache_client(thread):
    """§9.15: an empty context would open a new one for each job."""
    seen = []
    for _ in range(2):
        thread.run(remember(seen, lambda: id(cache._connections[cache._alias])))

    assert seen[0] == seen[1]


def test_a_connection_is_kept_also_when_requests_would_not_keep_it(thread):
    """§9.15: CONN_MAX_AGE is 0 here."""
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    seen = []
    for _ in range(2):
        thread.run(remember(seen, raw_connection))

    assert seen[0] is seen[1]


def test_a_connection_that_broke_is_replaced(thread, caplog):
    """The job in which it breaks fails; the next one works, and nobody is blamed for a transaction."""

    def lose():
        Entry.objects.count()
        if connection.vendor == "sqlite":
            connection.connection.close()
        else:
            postgres = connection.vendor == "postgresql"
            suicide = "SELECT pg_terminate_backend(pg_backend_pid())" if postgres else "KILL CONNECTION_ID()"
            with contextlib.suppress(Exception), connection.cursor() as cursor:
                cursor.execute(suicide)
        Entry.objects.count()

    assert isinstance(thread.outcome(lose), Failed)
    thread.run(lambda: Entry.objects.count() and None)
    assert LEFT_OPEN not in caplog.text


def test_a_connection_that_a_handler_closed_is_opened_again(thread):
    def close():
        Entry.objects.count()
        connection.close()

    thread.run(close)
    thread.run(lambda: Entry.objects.count() and None)


def test_a_connection_that_died_while_its_thread_was_idle_is_replaced(thread):
    seen = []
    thread.run(remember(seen, raw_connection))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ASK_AFTER", 0.0)
        patch.setattr(type(connections["default"]), "is_usable", lambda self: False)
        thread.run(remember(seen, raw_connection))

    assert seen[0] is not seen[1]


def test_a_failed_statement_costs_the_next_job_nothing(thread, caplog):
    caplog.set_level(logging.WARNING, logger="django_backwave")

    def fail():
        with connection.cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")

    assert isinstance(thread.outcome(fail), Failed)
    thread.run(lambda: Entry.objects.count() and None)
    assert caplog.text == ""


def raw_connection():
    connection.ensure_connection()
    return connection.connection


def test_a_connection_that_was_closed_and_opened_again_is_cleaned_like_any_other(thread, caplog):
    def close():
        Entry.objects.count()
        connection.close()

    def leave_open():
        transaction.atomic().__enter__()
        Entry.objects.create(key="half", value="done")

    thread.run(close)
    thread.run(leave_open)
    thread.run(lambda: Entry.objects.create(key="whole", value="done") and None)

    assert [entry.key for entry in Entry.objects.all()] == ["whole"]
    assert LEFT_OPEN in caplog.text


def test_a_connection_of_the_handlers_own_is_left_alone(thread, caplog):
    """Only what an alias stands for is ours to clean."""
    kept, seen = [], []

    def keep():
        own = connections["default"].copy()
        own.set_autocommit(False)
        kept.append(own)

    thread.run(remember(seen, raw_connection))
    thread.run(keep)
    thread.run(remember(seen, raw_connection))
    thread.run(lambda: kept.pop().close())

    assert seen[0] is seen[1]
    assert caplog.text == ""


def test_a_connection_whose_alias_is_gone_stops_nobody(thread):
    kept = []

    def keep():
        name = "for a moment"
        connections[name] = connections["default"].copy(name)
        connections[name].ensure_connection()
        kept.append(connections[name])
        del connections[name]

    thread.run(keep)
    thread.run(lambda: Entry.objects.count() and None)
    thread.run(lambda: kept.pop().close())


def test_a_connection_of_whose_opening_nobody_told_is_found_by_and_by(thread, caplog):
    def leave_open():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection_created, "send", lambda **_: [])
            connection.close()
            transaction.atomic().__enter__()
            Entry.objects.create(key="half", value="done")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ASK_AFTER", 0.0)
        thread.run(leave_open)
    thread.run(lambda: Entry.objects.create(key="whole", value="done") and None)

    assert [entry.key for entry in Entry.objects.all()] == ["whole"]
    assert LEFT_OPEN in caplog.text


class Mute:
    """A driver's connection that raises whatever it is asked, as some do when the server has gone."""

    def __getattr__(self, name):
        raise OperationalError(2006, "Server has gone away")


def test_a_connection_that_cannot_even_be_asked_costs_no_report(thread):
    """G2: the job has succeeded, and its thread goes on."""
    kept, seen = [], []

    def lose():
        connection.ensure_connection()
        kept.append(connection.connection)
        connection.connection = Mute()

    thread.run(lose)
    thread.run(remember(seen, raw_connection))
    thread.run(lambda: kept[0].close())

    assert seen[0] is not kept[0]


class Silent:
    """A driver's connection that does not know whether a transaction is open: mysqlclient's."""

    def __init__(self, raw):
        self.__dict__["raw"] = raw

    def __getattr__(self, name):
        if name == "server_status":
            raise AttributeError(name)
        return getattr(self.raw, name)


@pytest.fixture
def silent():
    """Take the driver's knowledge of transactions away from this thread's connection."""
    connection.ensure_connection()
    raw, connection.connection = connection.connection, Silent(connection.connection)
    yield
    connection.connection = raw
    connection.close()


def begin_and_write():
    with connection.cursor() as cursor:
        cursor.execute("START TRANSACTION")
    Entry.objects.create(key="half", value="done")


def assert_a_transaction_is_noticed_and_goes_on():
    assert not module.in_transaction("default")
    begin_and_write()
    assert module.in_transaction("default")
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")

    assert not module.in_transaction("default")
    assert Entry.objects.count() == 1


@pytest.mark.only_on("mysql")
@pytest.mark.usefixtures("silent")
def test_whether_a_transaction_is_open_is_asked_without_ending_it():
    assert_a_transaction_is_noticed_and_goes_on()


@pytest.mark.only_on("mysql")
@pytest.mark.usefixtures("silent")
def test_on_mysql_it_is_found_out_by_what_is_refused(monkeypatch):
    """MySQL has no variable that says so. MariaDB has one, and refuses the same in the same words."""
    monkeypatch.setattr(type(connections["default"]), "mysql_is_mariadb", False)
    variable = "transaction_isolation"
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'transaction_isolation'")
        if not cursor.fetchall():
            variable = "tx_isolation"  # older MariaDB
    monkeypatch.setattr(locking, "MYSQL_ISOLATION", variable)

    assert_a_transaction_is_noticed_and_goes_on()


@pytest.mark.only_on("mysql")
def test_a_silent_driver_whose_connection_was_killed_costs_no_report(thread):
    """The server has dropped it while the handler was busy elsewhere; it succeeds all the same."""
    seen = []

    def lose():
        connection.ensure_connection()
        number = connection.connection.thread_id()
        connection.connection = Silent(connection.connection)
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("KILL CONNECTION %s", [number])
        other.close()

    thread.run(lose)
    thread.run(remember(seen, lambda: Entry.objects.count()))

    assert seen == [0]


def test_what_a_blocking_call_of_a_coroutine_leaves_open_the_next_one_never_sees(caplog):
    """`asyncio.to_thread` runs them in threads that all handlers share."""

    def leave_open():
        transaction.atomic().__enter__()
        Entry.objects.create(key="half", value="done")

    with _Threads(1) as threads:
        threads.submit(leave_open).result(PATIENCE)
        in_block = threads.submit(lambda: connection.in_atomic_block).result(PATIENCE)
        threads.submit(connections.close_all).result(PATIENCE)

    assert not in_block
    assert not Entry.objects.exists()
    assert LEFT_OPEN in caplog.text


def test_a_connection_that_died_under_blocking_calls_is_replaced(monkeypatch):
    monkeypatch.setattr(module, "ASK_AFTER", 0.0)
    with _Threads(1) as threads:
        before = threads.submit(raw_connection).result(PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(type(connections["default"]), "is_usable", lambda self: False)
            after = threads.submit(raw_connection).result(PATIENCE)
        threads.submit(connections.close_all).result(PATIENCE)

    assert before is not after
