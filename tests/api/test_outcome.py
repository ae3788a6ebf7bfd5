"""Receipts, what an enqueue's errors say, and blocks that know their enqueues."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import threading
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission
from django.core.exceptions import SynchronousOnlyOperation
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.test.utils import CaptureQueriesContext

import django_backwave
from django_backwave import Disposition, EnqueueOutcomeUnknown, Resolution, enqueue_many
from django_backwave.compat import InvalidTask, task_enqueued
from django_backwave.exceptions import DuplicateKey, ForeignTransaction, InvalidArguments, OperationExpired
from django_backwave.models import Job
from django_backwave.store import enqueue as door
from django_backwave.store.committing import is_durable
from django_backwave.store.errors import in_doubt
from tests.api import handlers
from tests.app.models import Entry
from tests.databases import parse_url
from tests.postgres import CONFIGURATION, PostgresServer
from tests.store.races import needs_row_locks

pytestmark = pytest.mark.django_db(transaction=True)


def copied(value):
    """Return what another process would get of it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def confirmed(result):
    """Return what a receipt says, whatever disk the tests have."""
    return str(result.receipt.confirmed).removesuffix("_durable")


# Receipts.


def test_a_receipt_costs_no_statement_until_it_is_read():
    with CaptureQueriesContext(connection) as queries:
        result = handlers.send_receipt.enqueue(7)
        assert repr(result.receipt) == "<Receipt committed>"
    assert len(queries) == 1

    with CaptureQueriesContext(connection) as queries:
        assert result.receipt.confirmed == result.receipt.confirmed
    assert 1 <= len(queries) <= 2


def test_a_coroutine_can_read_a_receipt_too():
    async def ask():
        result = await handlers.send_receipt.aenqueue(7)
        return await result.receipt.aconfirmed(), result.receipt.confirmed

    first, again = async_to_sync(ask)()
    assert first == again != "in_transaction"


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(("level", "expected"), [(1, "committed"), (2, "committed_durable")])
def test_sqlite_is_durable_when_it_syncs(level, expected):
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA synchronous = {level}")
        try:
            assert handlers.send_receipt.enqueue(7).receipt.confirmed == expected
        finally:
            cursor.execute("PRAGMA synchronous = 1")


@pytest.mark.only_on("sqlite")
def test_sqlite_in_memory_is_not_durable():
    memory = connection.copy("memory")
    memory.settings_dict["NAME"] = ":memory:"
    memory.settings_dict["OPTIONS"] = {"init_command": "PRAGMA synchronous = 2"}
    connections["memory"] = memory
    try:
        assert is_durable("memory") is False
    finally:
        memory.connection.close()  # Django itself keeps one in memory open
        del connections["memory"]


@pytest.mark.only_on("postgres")
def test_postgres_is_durable_when_it_syncs():
    with PostgresServer(CONFIGURATION.replace("fsync = off", "fsync = on")) as server:
        connection = connections["default"].copy("synced")
        connection.settings_dict |= parse_url(server.url("postgres"))
        connections["synced"] = connection
        try:
            assert is_durable("synced") is True
            with connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
            assert is_durable("synced") is False
        finally:
            connection.close()
            del connections["synced"]
    assert is_durable("default") is False, "the tests' own server does not sync"


@pytest.mark.only_on("mysql")
def test_mysql_is_durable_when_it_flushes():
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
        assert is_durable("default") is (cursor.fetchone()[0] == 1)


def test_a_result_that_no_enqueue_returned_has_none():
    result = handlers.send_receipt.enqueue(7)
    assert handlers.send_receipt.get_result(result.id).receipt is None
    result.refresh()
    assert (confirmed(result), result.created) == ("committed", True)


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"tags": ["vip"]}])
def test_every_way_to_enqueue_gives_one(options):
    task = handlers.send_receipt.using(**options)
    results = [task.enqueue(7), *enqueue_many(task, [((8,), {})]), task.prepare(9).enqueue()]
    assert [confirmed(result) for result in results] == ["committed"] * 3


def test_djangos_own_block_does_not_tell_of_its_end():
    with transaction.atomic():
        result = handlers.send_receipt.enqueue(7)
        assert repr(result.receipt) == "<Receipt pending>"
    assert result.receipt.confirmed == "in_transaction"


def test_without_autocommit_the_commit_is_the_callers():
    transaction.set_autocommit(False)
    try:
        assert handlers.send_receipt.enqueue(7).receipt.confirmed == "in_transaction"
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=False)
def test_the_transaction_around_a_test_does_not_count():
    assert confirmed(handlers.send_receipt.enqueue(7)) == "committed"
    with django_backwave.atomic():
        result = handlers.send_receipt.enqueue(7)
        assert confirmed(result) == "in_transaction"
    assert confirmed(result) == "committed"


def test_a_receipt_can_be_pickled():
    done = handlers.send_receipt.enqueue(7)
    with django_backwave.atomic():
        pending = handlers.send_receipt.enqueue(7)
        copy = copied(pending)
    assert confirmed(copied(done)) == "committed"
    assert (copy.receipt.confirmed, confirmed(pending)) == ("in_transaction", "committed")


# Blocks.


def test_a_block_tells_of_its_commit():
    with django_backwave.atomic():
        first = handlers.send_receipt.enqueue(7)
        [second] = enqueue_many(handlers.send_receipt, [((8,), {})])
        with transaction.atomic(), django_backwave.atomic(savepoint=False):
            third = handlers.send_receipt.prepare(9).enqueue()
        assert {confirmed(one) for one in (first, second, third)} == {"in_transaction"}
    assert {confirmed(one) for one in (first, second, third)} == {"committed"}
    assert Job.objects.count() == 3


@pytest.mark.parametrize("block", [transaction.atomic, django_backwave.atomic], ids=["django's", "ours"])
def test_what_a_savepoint_took_back_was_not_committed(block):
    with django_backwave.atomic():
        kept = handlers.send_receipt.enqueue(7)
        with pytest.raises(LookupError), block():
            lost = handlers.send_receipt.enqueue(8)
            with block():
                with_it = handlers.send_receipt.enqueue(8)
            raise LookupError
        also_kept = handlers.send_receipt.enqueue(9)
    assert [confirmed(one) for one in (kept, also_kept)] == ["committed"] * 2
    assert [confirmed(one) for one in (lost, with_it)] == ["in_transaction"] * 2


def test_a_block_that_rolls_back_tells_nothing():
    with pytest.raises(LookupError), django_backwave.atomic():
        first = handlers.send_receipt.enqueue(7)
        raise LookupError
    with django_backwave.atomic():
        second = handlers.send_receipt.enqueue(7)
        transaction.set_rollback(True)
    assert [confirmed(one) for one in (first, second)] == ["in_transaction"] * 2
    assert Job.objects.count() == 0


def test_inside_djangos_block_it_is_a_savepoint():
    with transaction.atomic():
        with django_backwave.atomic():
            result = handlers.send_receipt.enqueue(7)
        with pytest.raises(RuntimeError, match="durable"):
            django_backwave.atomic(durable=True).__enter__()
    assert confirmed(result) == "in_transaction"


def test_one_block_leaves_nothing_to_the_next():
    with django_backwave.atomic():
        handlers.send_receipt.enqueue(7)
    with transaction.atomic():
        result = handlers.send_receipt.enqueue(7)
    assert confirmed(result) == "in_transaction"
    assert connection.execute_wrappers == []


@django_backwave.atomic
def recursive(depth):
    return [handlers.send_receipt.enqueue(depth), *(recursive(depth - 1) if depth else [])]


@django_backwave.atomic(durable=True)
def durably():
    return handlers.send_receipt.enqueue(7)


def test_it_decorates():
    assert [confirmed(result) for result in recursive(2)] == ["committed"] * 3
    assert confirmed(durably()) == "committed"
    with pytest.raises(RuntimeError, match="durable"), django_backwave.atomic():
        durably()


def test_threads_have_blocks_of_their_own():
    needs_row_locks()
    inside, done = threading.Event(), threading.Event()
    results = []

    def other():
        try:
            with transaction.atomic():
                assert inside.wait(60)
                results.append(handlers.send_receipt.enqueue(7))
        finally:
            done.set()
            connections.close_all()

    thread = threading.Thread(target=other)
    thread.start()
    with django_backwave.atomic():
        own = handlers.send_receipt.enqueue(8)
        inside.set()
        assert done.wait(60)
    thread.join(60)
    assert (confirmed(own), confirmed(results[0])) == ("committed", "in_transaction")


def test_a_callback_that_fails_comes_after_the_commit():
    def fail():
        raise OperationalError("the mail server has gone away")

    with pytest.raises(OperationalError) as caught, django_backwave.atomic():
        transaction.on_commit(fail)
        result = handlers.send_receipt.enqueue(7)
    assert confirmed(result) == "committed"
    assert not hasattr(caught.value, "disposition")

    # It leaves nothing behind that a lost commit could be taken for.
    with losing_commit(landed=False), pytest.raises(EnqueueOutcomeUnknown), django_backwave.atomic():
        lost = handlers.send_receipt.enqueue(8)
    assert confirmed(lost) == "in_transaction"


@pytest.mark.only_on("sqlite", "postgres")
def test_a_commit_that_a_constraint_refuses_is_known_not_to_be_applied():
    with pytest.raises(IntegrityError) as caught, django_backwave.atomic():
        handlers.send_receipt.enqueue(7)
        Permission.objects.create(codename="none", name="none", content_type_id=2**30)
    assert caught.value.disposition == "known_not_applied"
    assert Job.objects.count() == 0


# Connections that are lost, on every database; `test_lost.py` cuts real ones.


@contextmanager
def losing_commit(*, landed):
    """Let the next COMMIT be sent and its answer be lost, or the COMMIT itself."""
    commit = connection._commit

    def lose():
        del connection._commit
        commit() if landed else connection._rollback()
        raise OperationalError("the connection is gone")

    connection._commit = lose
    yield


@contextmanager
def losing_statement(error=None, *, landed=True):
    """Let each INSERT of a job be carried out, or not, and its answer be lost."""

    def lose(execute, sql, *rest):
        if "INSERT" not in sql:
            return execute(sql, *rest)
        if landed:
            execute(sql, *rest)
        raise error or OperationalError("the connection is gone")

    with connection.execute_wrapper(lose):
        yield


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_insert(landed):
    with losing_statement(landed=landed), pytest.raises(EnqueueOutcomeUnknown) as caught:
        handlers.send_receipt.enqueue(7)
    error = copied(caught.value)

    assert error.disposition is Disposition.UNKNOWN
    assert str(error).startswith("The connection to 'default' was lost while 1 job was being enqueued: ")
    assert isinstance(caught.value.__cause__, OperationalError)
    [prepared] = error.prepared
    assert prepared.enqueue().created
    assert Job.objects.count() == 1


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_commit_of_many(landed):
    with losing_commit(landed=landed), pytest.raises(EnqueueOutcomeUnknown, match="3 jobs were") as caught:
        enqueue_many(handlers.send_receipt, [((number,), {}) for number in range(3)])

    expected = Resolution.APPLIED if landed else Resolution.NOT_APPLIED
    assert [each.resolve() for each in caught.value.prepared] == [expected] * 3


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_commit_of_a_block(landed):
    with (
        losing_commit(landed=landed),
        pytest.raises(EnqueueOutcomeUnknown) as caught,
        django_backwave.atomic(),
    ):
        Entry.objects.create(key="order", value="7")
        results = [handlers.send_receipt.enqueue(7), handlers.send_receipt.prepare(8).enqueue()]

    assert [each.id for each in caught.value.prepared] == [result.id for result in results]
    assert [each.enqueue().created for each in caught.value.prepared] == [True, True]
    assert (Job.objects.count(), Entry.objects.count()) == (2, landed)


def test_the_deadline_of_what_was_lost_counts_from_its_id(settings):
    """A connection that is lost cannot be asked for the time."""
    settings.BACKWAVE = {"KEEP_DONE": 60}
    with losing_statement(), pytest.raises(EnqueueOutcomeUnknown) as caught:
        handlers.send_receipt.enqueue(7)
    [prepared] = caught.value.prepared
    made = prepared.deadline - Job.objects.get().enqueued_at
    assert 50 < made.total_seconds() < 60, "after that its job may be pruned, and prove nothing"


def test_an_error_after_the_write_does_not_say_that_it_was_not_applied(monkeypatch):
    def broken(*_, **__):
        raise OperationalError("the connection is gone")

    handlers.send_receipt.using(key="k").enqueue(7)
    monkeypatch.setattr("django_backwave.store.monitor.find_all", broken)
    with pytest.raises(EnqueueOutcomeUnknown):
        handlers.send_receipt.using(key="k", on_conflict="replace").enqueue(8)


# What errors say.


def known(call):
    """Return the disposition of the error that a call raises."""
    try:
        call()
    except BaseException as error:
        return error.disposition
    raise AssertionError("it raised nothing")


def test_what_is_refused_is_known_not_to_be_applied():
    handlers.send_receipt.using(key="k").enqueue(7)
    refusals = {
        InvalidArguments: lambda: handlers.send_receipt.enqueue(),
        DuplicateKey: lambda: handlers.send_receipt.using(key="k", on_conflict="reject").enqueue(7),
    }
    for kind, call in refusals.items():
        with pytest.raises(kind):
            call()
        assert known(call) == "known_not_applied"


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_foreign_transaction_is_known_not_to_be_applied():
    with transaction.atomic(using="other"):
        with pytest.raises(ForeignTransaction) as caught:
            handlers.send_receipt.enqueue(7)
        assert caught.value.disposition == "known_not_applied"
        assert known(handlers.send_receipt.prepare(7).enqueue) == "known_not_applied"


def test_djangos_own_refusals_are_known_too(settings):
    settings.TASKS = {"mine": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": []}}
    task = handlers.send_receipt.using(backend="mine", queue_name="other")
    settings.TASKS = {"mine": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": ["mail"]}}
    with pytest.raises(InvalidTask):
        task.enqueue(7)
    assert known(lambda: task.enqueue(7)) == "known_not_applied"
    assert known(lambda: enqueue_many(task, [((7,), {})])) == "known_not_applied"


class Frozen(Exception):
    """One that takes no attributes."""

    def __setattr__(self, name, value):
        if name == "disposition":
            raise AttributeError(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DataError("too long"), "known_not_applied"),
        (IntegrityError("twice"), "known_not_applied"),
        (ValueError("NUL"), "known_not_applied"),
        (SynchronousOnlyOperation("in a coroutine"), "known_not_applied"),
        (KeyboardInterrupt(), "unknown"),
        (TimeoutError("from a signal"), "unknown"),
    ],
)
def test_errors_of_a_plain_insert(error, expected):
    with losing_statement(error, landed=False):
        assert known(lambda: handlers.send_receipt.enqueue(7)) == expected


def test_an_error_that_takes_no_attribute_passes_as_it_is():
    with losing_statement(Frozen("x")), pytest.raises(Frozen):
        handlers.send_receipt.enqueue(7)


def test_inside_a_transaction_nothing_that_was_lost_was_applied():
    with pytest.raises(OperationalError) as caught, transaction.atomic(), losing_statement():
        handlers.send_receipt.enqueue(7)
    assert caught.value.disposition == "known_not_applied"


def test_before_its_commit_a_batch_is_known_not_to_be_applied():
    with losing_statement():
        assert known(lambda: enqueue_many(handlers.send_receipt, [((7,), {})])) == "known_not_applied"
        assert known(lambda: handlers.send_receipt.using(key="k").enqueue(7)) == "known_not_applied"
    assert Job.objects.count() == 0


def test_an_interruption_after_the_write():
    def interrupt(**_):
        raise KeyboardInterrupt

    task_enqueued.connect(interrupt)
    try:
        assert known(lambda: handlers.send_receipt.enqueue(7)) == "unknown"
    finally:
        task_enqueued.disconnect(interrupt)
    assert Job.objects.count() == 1


def test_a_coroutine_that_is_cancelled_meanwhile_does_not_know(monkeypatch):
    begun, go = threading.Event(), threading.Event()
    insert_one = door.insert_one

    def slowly(*args, **kwargs):
        begun.set()
        assert go.wait(60)
        return insert_one(*args, **kwargs)

    monkeypatch.setattr(door, "insert_one", slowly)

    async def cancelled():
        task = asyncio.ensure_future(handlers.send_receipt.aenqueue(7))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return caught.value.disposition

    assert async_to_sync(cancelled)() == "unknown"


def test_expired_errors_pickle():
    error = OperationExpired("late", Disposition.UNKNOWN)
    copy = copied(error)
    assert (str(copy), copy.disposition) == ("late", "unknown")


class Cause(Exception):
    """A driver's error."""

    def __init__(self, **codes):
        vars(self).update(codes)


@pytest.mark.parametrize(
    ("error", "codes", "expected"),
    [
        (OperationalError("server closed the connection unexpectedly"), {"sqlstate": None}, True),
        (OperationalError("terminating connection"), {"sqlstate": "57P01"}, True),
        (OperationalError("the same of psycopg2"), {"pgcode": "57P01"}, True),
        (OperationalError("connection failure"), {"sqlstate": "08006"}, True),
        (OperationalError("completion unknown"), {"sqlstate": "40003"}, True),
        (InternalError("PANIC"), {"sqlstate": "XX000"}, True),
        (OperationalError("canceling statement"), {"sqlstate": "57014"}, False),
        (OperationalError("could not serialize"), {"sqlstate": "40001"}, False),
        (OperationalError("lock timeout"), {"sqlstate": "55P03"}, False),
        (IntegrityError("deferred"), {"sqlstate": "23503"}, False),
        (OperationalError(2006, "server has gone away"), {}, True),
        (OperationalError(2013, "lost connection during query"), {}, True),
        (InterfaceError(0, ""), {}, True),
        (OperationalError(1053, "server shutdown in progress"), {}, True),
        (OperationalError(1205, "lock wait timeout"), {}, False),
        (OperationalError(1213, "deadlock"), {}, False),
        (OperationalError("database is locked"), {"sqlite_errorcode": sqlite3.SQLITE_BUSY}, False),
        (OperationalError("database is full"), {"sqlite_errorcode": sqlite3.SQLITE_FULL}, False),
        (OperationalError("disk I/O error"), {"sqlite_errorcode": sqlite3.SQLITE_IOERR_FSYNC}, True),
        (InterfaceError("connection already closed"), {}, True),
    ],
)
def test_which_errors_leave_a_doubt(error, codes, expected):
    error.__cause__ = Cause(**codes)
    assert in_doubt(error) is expected
