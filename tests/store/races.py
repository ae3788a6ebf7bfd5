"""Threads that really race, and strangers who hold row locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_backwave.core.protocol import Claimed, Report, Verdict
from django_backwave.models import Job
from django_backwave.store.locking import has_row_locks
from tests.factories import second_connection, send
from tests.report import only_on_reason

PATIENCE = 60.0  # seconds until a race that hangs is given up


def needs_row_locks() -> None:
    """Skip a test about two open transactions where only one can write at a time."""
    if not has_row_locks("default"):
        pytest.skip(only_on_reason(("postgres", "mysql")))


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make all calls at one instant, each in a thread of its own, and return their results."""
    return [result for [result] in race(1, *(lambda _, call=call: call() for call in calls))]


def race(rounds: int, *calls: Callable[[int], Any]) -> list[list[Any]]:
    """Make all calls at one instant with 0, then with 1 …; return a list of results for each call.

    Each has its own thread and so its own connection.
    """
    barrier = Barrier(len(calls))

    def run(call: Callable[[int], Any]) -> list[Any]:
        try:
            results = []
            for number in range(rounds):
                barrier.wait(PATIENCE)
                results.append(call(number))
            return results
        except BaseException:
            barrier.abort()
            raise
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(run, call) for call in calls]
        return [future.result(PATIENCE) for future in futures]


@contextmanager
def locked(*jobs: Job | Claimed) -> Iterator[None]:
    """Hold the locks of jobs' rows in a stranger's transaction."""
    needs_row_locks()
    ids = [job.job_id if isinstance(job, Claimed) else job.pk for job in jobs]
    with second_connection() as other, transaction.atomic(using=other):
        rows = Job.objects.using(other).filter(pk__in=ids).select_for_update()
        assert len(rows) == len(ids)
        yield


def behind(first: Callable[[str], Any], then: Callable[[], Any]) -> Any:
    """Return what `then` gives if it comes while the transaction of `first` is open, and must wait."""
    started = Event()

    def run() -> Any:
        try:
            started.set()
            return then()
        finally:
            connections.close_all()

    with second_connection() as other, ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=other):
            first(other)
            future = pool.submit(run)
            assert started.wait(PATIENCE)
            while not somebody_waits() and not future.done():
                pass
            assert not future.done(), "the call did not wait"
        return future.result(PATIENCE)


def somebody_waits() -> bool:
    """Tell whether a transaction of this database waits for a lock, after a moment."""
    match connection.vendor:
        case "sqlite":
            return True  # It cannot be seen there; but nobody can write before the transaction ends.
        case "postgresql":
            look = (
                "SELECT count(*) FROM pg_stat_activity, (SELECT pg_sleep(0.02)) AS pause"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(_ask(look))
        case _:
            look = (
                "SELECT count(*) FROM information_schema.innodb_trx"
                " JOIN information_schema.processlist ON id = trx_mysql_thread_id"
                " WHERE trx_state = 'LOCK WAIT' AND db = database()"
            )
            with fresh_transactions():
                return bool(_ask(look))


@contextmanager
def fresh_transactions() -> Iterator[None]:
    """Give MySQL's list of transactions, as it is now, to whoever reads it first within.

    The server makes it anew only for one who asks when nobody has for 0.1 s, about whatever database: test
    processes beside each other take turns, or neither would ever see anything new.
    """
    if connection.vendor != "mysql":
        yield
        return
    assert _ask("SELECT get_lock('backwave: who waits', 60)") == 1
    try:
        _ask("SELECT sleep(0.12)")
        yield
    finally:
        _ask("SELECT release_lock('backwave: who waits')")


def _ask(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def send_until_answered(report: Report, **options: Any) -> Verdict:
    """Settle a report as a worker does: again and again while its row is locked."""
    while (verdict := send(report, **options)[0]) is Verdict.LOCKED:
        pass
    return verdict
