"""The limit: what a loop over one table reaches, with a claim and a guarded settle of 50 jobs each.

It has the columns that a queue needs, an attempt for the fence, and no history. `work` is the loop on
psycopg, which runs no handler: it only writes the stamps. `benchmarks.apps.raw_django` is the loop on
Django's cursor.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterable, Sequence

import psycopg

from benchmarks.apps import database_url
from benchmarks.stamps import record

BATCH = 50
#: Seconds between two looks at an empty table; a notification cuts them short.
POLL = 1.0

TABLE = """
CREATE TABLE bench_job (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    queue text NOT NULL,
    priority smallint NOT NULL DEFAULT 0,
    payload text NOT NULL,
    state smallint NOT NULL DEFAULT 1,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempt integer NOT NULL DEFAULT 0,
    worker text NOT NULL DEFAULT '',
    lease_expires_at timestamptz,
    finished_at timestamptz
);
CREATE INDEX bench_claim ON bench_job (queue, priority DESC, due_at, id) WHERE state = 1;
"""
# One statement, so that it is one commit.
INSERT = """
WITH made AS (INSERT INTO bench_job (name, queue, payload) VALUES ('noop', 'default', %s) RETURNING id)
SELECT pg_notify('bench_job', '') FROM made
"""
CLAIM = f"""
WITH pick AS MATERIALIZED (
    SELECT id FROM bench_job
    WHERE state = 1 AND queue = 'default' AND due_at <= statement_timestamp()
    ORDER BY priority DESC, due_at, id LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE bench_job j SET state = 2, attempt = attempt + 1, worker = %s,
    lease_expires_at = clock_timestamp() + interval '60 s'
FROM pick WHERE j.id = pick.id RETURNING j.id, j.attempt, j.payload
"""
SETTLE = """
UPDATE bench_job j SET state = 3, lease_expires_at = NULL, finished_at = clock_timestamp()
FROM unnest(%s::bigint[], %s::integer[]) AS done(id, attempt) CROSS JOIN LATERAL (
    SELECT id FROM bench_job l WHERE l.id = done.id AND l.attempt = done.attempt AND l.worker = %s
    AND l.state = 2 AND l.lease_expires_at > clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED
) held WHERE j.id = held.id RETURNING j.id
"""

connection: psycopg.Connection | None = None


def prepare() -> None:
    """Create the table."""
    connection.execute(TABLE)


def connect() -> None:
    """Connect."""
    global connection
    connection = psycopg.connect(database_url(), autocommit=True)


def disconnect() -> None:
    """Disconnect."""
    connection.close()


def enqueue(number: int) -> None:
    """Insert a row and tell the workers."""
    connection.execute(INSERT, [payload(number)])


def enqueue_many(numbers: Sequence[int]) -> None:
    """Copy rows."""
    with (
        connection.transaction(),
        connection.cursor().copy("COPY bench_job (name, queue, payload) FROM STDIN") as copy,
    ):
        for number in numbers:
            copy.write_row(("noop", "default", payload(number)))


def payload(number: int) -> str:
    """Return a payload like those of django_backwave."""
    return json.dumps({"args": [number], "kwargs": {}})


def number_in(text: str) -> int:
    """Return the number in a payload."""
    return json.loads(text)["args"][0]


def work(worker: str) -> None:
    """Claim, stamp and settle until told to stop."""
    stopping = stop_on_sigterm()
    running: dict[int, int] = {}
    with psycopg.connect(database_url(), autocommit=True) as link:
        link.execute("LISTEN bench_job")
        while not stopping.is_set():
            rows = link.execute(CLAIM, [worker], prepare=True).fetchall()
            if not rows and not running:
                wait(link)
                continue
            for identity, attempt, text in rows:
                record(number_in(text))
                running[identity] = attempt
            parameters = [list(running), list(running.values()), worker]
            forget(running, link.execute(SETTLE, parameters, prepare=True).fetchall())


def forget(running: dict[int, int], settled: Iterable[tuple[int]]) -> None:
    """Drop what was settled; what another worker's claim was just passing over is left for the next time."""
    for (identity,) in settled:
        del running[identity]


def wait(link: psycopg.Connection) -> None:
    """Wait for a notification, but no longer than a poll."""
    for _ in link.notifies(timeout=POLL, stop_after=1):
        pass


def stop_on_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    return stopping


if __name__ == "__main__":
    work(sys.argv[1])
