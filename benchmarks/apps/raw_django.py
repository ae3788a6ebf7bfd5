"""The limit of a threaded worker in Django: the raw loop on Django's cursor, with the jobs on ten threads."""

from __future__ import annotations

import queue
import sys
import threading

import django
from django.db import connection

from benchmarks.apps import concurrency
from benchmarks.apps.raw import (
    BATCH,
    CLAIM,
    INSERT,
    SETTLE,
    disconnect,
    enqueue_many,
    forget,
    number_in,
    payload,
    prepare,
    stop_on_sigterm,
    wait,
)
from benchmarks.apps.raw import connect as connect_raw
from benchmarks.stamps import record

__all__ = ["connect", "disconnect", "enqueue", "enqueue_many", "prepare"]

django.setup()

#: Jobs in the hands of the threads, at most.
AHEAD = 2 * BATCH


def connect() -> None:
    """Connect, both ways."""
    connect_raw()
    connection.ensure_connection()


def enqueue(number: int) -> None:
    """Insert a row and tell the workers."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [payload(number)])


def handle(jobs: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    """Run jobs in a thread."""
    while True:
        identity, attempt, text = jobs.get()
        record(number_in(text))
        done.put((identity, attempt))


def work(worker: str) -> None:
    """Claim, hand over, settle until told to stop."""
    stopping = stop_on_sigterm()
    jobs, done = queue.SimpleQueue(), queue.SimpleQueue()
    for _ in range(concurrency()):
        threading.Thread(target=handle, args=(jobs, done), daemon=True).start()
    connection.ensure_connection()
    handed = 0  # to the threads, and not back yet
    finished: dict[int, int] = {}
    with connection.cursor() as cursor:
        cursor.execute("LISTEN bench_job")
        while not stopping.is_set():
            if handed <= AHEAD - BATCH:
                cursor.execute(CLAIM, [worker])
                rows = cursor.fetchall()
                for row in rows:
                    jobs.put(row)
                handed += len(rows)
            if not handed and not finished:
                wait(connection.connection)
                continue
            back = [done.get() for _ in range(min(handed, BATCH))]
            handed -= len(back)
            finished.update(back)
            cursor.execute(SETTLE, [list(finished), list(finished.values()), worker])
            forget(finished, cursor.fetchall())


if __name__ == "__main__":
    work(sys.argv[1])
