"""Millions of jobs of django_backwave: copies, made by the server itself, of rows that the package wrote.

A job is enqueued and run, and another one enqueued, through the package. The copies differ from these two
in id, number, due time and what a case asks for, so that they follow the tables, whatever columns these
have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from benchmarks.site import START, Place

JOB, ATTEMPT = "django_backwave_job", "django_backwave_attempt"
#: Rows of one INSERT.
SLICE = 250_000

# Tables of one row each: a job that is due, one that succeeded, and its attempt.
MODELS = f"""
CREATE TABLE bench_ready AS SELECT * FROM {JOB} WHERE finished_at IS NULL;
CREATE TABLE bench_finished AS SELECT * FROM {JOB} WHERE finished_at IS NOT NULL;
CREATE TABLE bench_attempt AS SELECT * FROM {ATTEMPT};
"""
# Ascending like real ids, and each once: the time in the model's id, a digit for the kind of copy, and n.
ID = "(left(replace({model}.id::text, '-', ''), 12) || '{kind}' || lpad(to_hex(n), 19, '0'))::uuid"
PAYLOAD = """format('{"args":[%s],"kwargs":{}}', n)"""
# Over the last six days: a day less than what workers prune.
AGO = "- (n % 518400) * interval '1 second'"


@dataclass(slots=True)
class Rows:
    """Adds copies to the database of a place."""

    place: Place
    made_ready: int = 0
    made_finished: int = 0
    made_future: int = 0

    def prepare(self) -> None:
        """Write the rows that are copied."""
        self.place.stamps(1).open()
        self.place.client("each", 1)
        with self.place.workers(1, "--drain") as running:
            running.wait(START)
        self.place.client("each", 1)
        with self.place.connection() as connection:
            connection.execute(MODELS)

    def ready(self, count: int, *, queue: str = "t.queue") -> None:
        """Add jobs that are due; `queue` is an expression over n."""
        changes = {"due_at": "t.due_at + n * interval '1 microsecond'", "queue": queue}
        self._jobs("bench_ready", "a", self.made_ready, count, changes)
        self.made_ready += count

    def future(self, count: int) -> None:
        """Add jobs that are due tomorrow, at ten higher priorities."""
        changes = {"due_at": "t.due_at + interval '1 day'", "priority": "1 + n % 10"}
        self._jobs("bench_ready", "b", self.made_future, count, changes)
        self.made_future += count

    def finished(self, count: int) -> None:
        """Add jobs that succeeded over the last six days, with their attempts."""
        first = self.made_finished
        instants = ("enqueued_at", "due_at", "started_at", "finished_at")
        self._jobs("bench_finished", "c", first, count, {name: f"t.{name} {AGO}" for name in instants})
        changes = {name: f"t.{name} {AGO}" for name in ("started_at", "finished_at")}
        changes["job_id"] = ID.format(model="m", kind="c")
        self._insert(ATTEMPT, "bench_attempt t CROSS JOIN bench_finished m", first, count, changes, ("id",))
        self.made_finished += count

    def _jobs(self, model: str, kind: str, first: int, count: int, changes: Mapping[str, str]) -> None:
        known = {"id": ID.format(model="t", kind=kind), "payload": PAYLOAD}
        self._insert(JOB, f"{model} t", first, count, known | changes)

    def _insert(
        self,
        table: str,
        models: str,
        first: int,
        count: int,
        changes: Mapping[str, str],
        left_out: tuple[str, ...] = (),
    ) -> None:
        with self.place.connection() as connection:
            names = [name for name in columns(connection, table) if name not in left_out]
            values = ", ".join(changes.get(name, f"t.{name}") for name in names)
            for start in range(first, first + count, SLICE):
                end = min(start + SLICE, first + count) - 1
                connection.execute(
                    f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} "
                    f"FROM {models} CROSS JOIN generate_series({start}, {end}) n"
                )


def columns(connection: psycopg.Connection, table: str) -> list[str]:
    """Return the names of a table's columns."""
    rows = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
        [table],
    )
    return [name for (name,) in rows]
