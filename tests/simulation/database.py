"""The two databases: how a store call runs on each, what their clocks show, and what they hold.

A call is run by `start`, which gives back control where the scheduler may step in: before each statement,
after each commit, and where the call itself waits. On SQLite, with one connection and one writer, nobody can
come in between: control never leaves, and the scheduler only decides about faults. On PostgreSQL each call
has a thread with a connection of its own; one of them runs at a time, but for those that wait for a lock.
"""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple
from unittest import mock

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_backwave.models import Attempt, Job, Tag
from django_backwave.store import clock as store_clock
from django_backwave.store import notify
from tests.app.models import Entry, Export, Invoice
from tests.databases import parse_url
from tests.simulation.clock import BEGINNING, SECOND, Clock, micros_of

ALIAS = "simulation"

#: Real seconds after which a statement that has not answered may be waiting for a lock, and is given up.
SUSPICION, PATIENCE = 0.004, 60.0


class Row(NamedTuple):
    """What the oracles look at of a job. Instants are microseconds since the beginning."""

    state: int
    attempt: int
    failures: int
    max_attempts: int
    worker: str
    lease: int | None
    cancel: bool
    expires: int | None
    queue: str
    name: str
    cause: str
    output: str | None
    whole: Any


class History(NamedTuple):
    """A row of the history."""

    worker: str
    outcome: str
    whole: Any


class Dump(NamedTuple):
    """All that is committed: jobs, attempts, tags, and the ledger of what atomic jobs wrote."""

    jobs: dict[str, Row]
    attempts: dict[tuple[str, int], History]
    tags: frozenset[tuple[str, str, str]]
    ledger: frozenset[tuple[str, int]]


EMPTY = Dump({}, {}, frozenset(), frozenset())


class Parked(NamedTuple):
    """A call has stopped: at a ``statement`` (a ``write``, if to jobs), ``committed``, or to ``sleep``."""

    why: str
    seconds: float = 0.0


class Ended(NamedTuple):
    """A call is over, with its result or with what it raised."""

    value: Any
    error: BaseException | None


#: What a step of a call brings; None: it waits for a lock.
type Answer = Parked | Ended | None

#: Decides at each place what to raise there, if anything.
type Passing = Callable[[str], BaseException | None]


class Running(ABC):
    """A call that has been started."""

    @abstractmethod
    def resume(self, error: BaseException | None) -> Answer:
        """Let a parked call go on, or raise this where it stands."""

    @abstractmethod
    def look(self) -> Answer:
        """Return how far a call that waited for a lock has come."""

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Be called within the call: let virtual time pass."""


class Database(ABC):
    """A database that the store functions reach under ``ALIAS``."""

    name: str
    clock: Clock

    @abstractmethod
    def reset(self, clock: Clock) -> None:
        """Begin a run with nothing in it."""

    @abstractmethod
    def start(self, work: Callable[[Running], Any], passing: Passing) -> tuple[Running, Answer]:
        """Begin a call."""

    @abstractmethod
    def dump(self) -> Dump:
        """Return what is committed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    @abstractmethod
    def patched(self) -> AbstractContextManager[Any]:
        """Return a context in which the store knows no other time than the virtual one."""

    def tell_time(self) -> None:  # noqa: B027 - on SQLite there is nothing to do
        """Let the database's clock show what the virtual one does, before anybody runs a statement."""

    def free(self, running: Running) -> None:  # noqa: B027 - the same
        """Take back what a call used that is over."""


def _writes(sql: str) -> bool:
    return any(word in sql for word in ("UPDATE ", "INSERT ", "DELETE "))


#: What a statement has in it that changes jobs.
_JOBS_WRITE = f'UPDATE "{Job._meta.db_table}"'


def _hook(connection: Any, pause: Callable[[str], None]) -> None:
    """Call ``pause`` before each statement and COMMIT, and after what has committed."""

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        pause("write" if _JOBS_WRITE in sql else "statement")
        result = run(sql, params, many, context)
        if not connection.in_atomic_block and _writes(sql):
            pause("committed")
        return result

    real_commit, real_rollback = connection._commit, connection._rollback

    def commit() -> None:
        try:
            pause("statement")
        except BaseException:
            real_rollback()
            raise
        real_commit()
        pause("committed")

    connection.execute_wrappers.append(execute)
    connection._commit = commit


def _make_tables() -> None:
    connection = connections[ALIAS]
    executor = MigrationExecutor(connection)
    executor.migrate([node for node in executor.loader.graph.leaf_nodes() if node[0] == "django_backwave"])
    with connection.schema_editor() as editor:
        for model in (Entry, Export, Invoice):  # the pruning asks all that point at a job
            editor.create_model(model)


def _tables() -> list[str]:
    return [table for table in connections[ALIAS].introspection.table_names() if table != "django_migrations"]


# SQLite.


class _Inline(Running):
    """A call on SQLite: it is over as soon as it has begun."""

    def resume(self, error: BaseException | None) -> Answer:
        raise AssertionError("nothing ever parks on SQLite")

    look = resume  # type: ignore[assignment]

    def sleep(self, seconds: float) -> None: ...


class InMemory(Database):
    """SQLite in memory: one connection, on which each call is one step."""

    name = "sqlite"

    def __init__(self) -> None:
        connections.settings[ALIAS] = {
            **connections.settings["default"],
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": ":memory:",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
        self.clock = Clock()
        _make_tables()
        self._names = _tables()
        self._passing: Passing = lambda _: None
        self._raw = connections[ALIAS].connection
        self._seen: dict[str, tuple[Any, Row]] = {}
        _hook(connections[ALIAS], self._pause)

    def reset(self, clock: Clock) -> None:
        self.clock = clock
        self._passing = lambda _: None
        self._seen = {}
        for table in self._names:
            self._raw.execute(f'DELETE FROM "{table}"')  # noqa: S608

    def start(self, work: Callable[[Running], Any], passing: Passing) -> tuple[Running, Answer]:
        self._passing = passing
        running = _Inline()
        try:
            return running, Ended(work(running), None)
        except BaseException as error:
            return running, Ended(None, error)

    def dump(self) -> Dump:
        jobs = {}
        for key, *rest in self._raw.execute(_SQLITE_JOBS).fetchall():
            whole = tuple(rest)
            seen = self._seen.get(key)
            if seen is None or seen[0] != whole:
                seen = self._seen[key] = (whole, _sqlite_row(whole))
            jobs[key] = seen[1]
        attempts = {
            (job, number): History(worker, outcome, tuple(rest))
            for job, number, worker, outcome, *rest in self._raw.execute(_SQLITE_ATTEMPTS).fetchall()
        }
        tags = frozenset(self._raw.execute(_TAGS).fetchall())
        return Dump(jobs, attempts, tags, _ledger(self._raw.execute(_LEDGER).fetchall()))

    def close(self) -> None:
        connection = connections[ALIAS]
        connection.connection.close()
        del connections[ALIAS]
        del connections.settings[ALIAS]

    @contextmanager
    def patched(self) -> Iterator[None]:
        with mock.patch.object(store_clock, "_local", self._local):
            yield

    def _local(self) -> datetime:
        return self.clock.instant

    def _pause(self, why: str) -> None:
        error = self._passing(why)
        if error is not None:
            raise error


_COLUMNS = [str(field.column) for field in Job._meta.concrete_fields if not field.primary_key]
_FIELDS = (
    *("state", "attempt", "failures", "max_attempts", "worker", "lease_expires_at", "cancel_requested_at"),
    *("expires_at", "queue", "name", "cause", "output"),
)
_PLACES = [_COLUMNS.index(name) for name in _FIELDS]
# A plus before a column keeps Python's driver from parsing each instant.
_SQLITE_JOBS = f"SELECT id || '', +{', +'.join(_COLUMNS)} FROM \"{Job._meta.db_table}\""  # noqa: S608
_SQLITE_ATTEMPTS = f"""
    SELECT job_id || '', number, worker, outcome, id, +started_at, +finished_at, error_class, message
      FROM "{Attempt._meta.db_table}" """  # noqa: S608
_TAGS = f'SELECT job_id, "key", "value" FROM "{Tag._meta.db_table}"'  # noqa: S608
_LEDGER = f'SELECT "key" FROM "{Entry._meta.db_table}"'  # noqa: S608


def _sqlite_row(whole: tuple[Any, ...]) -> Row:
    values = [whole[place] for place in _PLACES]
    values[5] = _micros(values[5])
    values[6] = values[6] is not None
    values[7] = _micros(values[7])
    return Row._make((*values, whole))


def _micros(text: str | None) -> int | None:
    if text is None:
        return None
    return micros_of(datetime.fromisoformat(text).replace(tzinfo=UTC))


def _ledger(rows: list[tuple[str]]) -> frozenset[tuple[str, int]]:
    pairs = (key.split(":") for (key,) in rows)
    return frozenset((job, int(attempt)) for job, attempt in pairs)


# PostgreSQL.


class _Stop(Exception):
    """The thread of a session shall end."""


class _Session(Running):
    """A thread with a connection of its own, which runs one call after the other, step by step."""

    def __init__(self, database: Postgres) -> None:
        self._database = database
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Parked | Ended] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.pid = 0
        self.thread.start()
        self._answers.get(timeout=PATIENCE)

    def begin(self, work: Callable[[Running], Any]) -> Answer:
        """Run a call up to where it parks first."""
        self._orders.put(work)
        return self.look()

    def resume(self, error: BaseException | None) -> Answer:
        self._orders.put(error)
        return self.look()

    def look(self) -> Answer:
        waited = 0.0
        while True:
            with suppress(queue.Empty):
                return self._answers.get(timeout=SUSPICION)
            waited += SUSPICION
            if self._database.is_blocked(self.pid):
                with suppress(queue.Empty):  # it had answered before we asked, and the lock is another one's
                    return self._answers.get_nowait()
                return None
            if waited > PATIENCE:
                raise RuntimeError("A statement has neither answered nor is it waiting for a lock.")

    def sleep(self, seconds: float) -> None:
        self._park(Parked("sleep", seconds))

    def end(self) -> None:
        """Close the connection and end the thread."""
        self._orders.put(_Stop())
        self.thread.join(PATIENCE)

    def _pause(self, why: str) -> None:
        self._park(Parked(why))

    def _park(self, parked: Parked) -> None:
        self._answers.put(parked)
        error = self._orders.get()
        if error is not None:
            raise error

    def _serve(self) -> None:
        connection: Any = connections[ALIAS]
        connection.ensure_connection()
        self.pid = connection.connection.info.backend_pid
        _hook(connection, self._pause)
        self._answers.put(Ended(None, None))
        while not isinstance(work := self._orders.get(), _Stop):
            try:
                ended = Ended(work(self), None)
            except BaseException as error:
                ended = Ended(None, error)
            self._answers.put(ended)
        connection.close()


class Postgres(Database):
    """A schema on a server, where everything that tells the time is ours."""

    name = "postgres"

    def __init__(self, url: str) -> None:
        """Make a database of our own on the server that a URL names."""
        self._made = f"simulation_{os.getpid()}"
        self._url = parse_url(url)
        self._on_server(f"DROP DATABASE IF EXISTS {self._made} WITH (FORCE)", f"CREATE DATABASE {self._made}")
        connections.settings[ALIAS] = self._settings(self._made, {"options": _OPTIONS})
        self.clock = Clock()
        self._shown = -1
        self._idle: list[_Session] = []
        self._all: list[_Session] = []
        self._execute(_CLOCK.format(epoch=BEGINNING.isoformat()))
        _make_tables()
        self._names = ", ".join(f'"{table}"' for table in _tables())
        for table in _tables():
            # Layout and so the order of rows that are equal must not depend on when somebody cleans up.
            self._execute(f'ALTER TABLE "{table}" SET (autovacuum_enabled = off)')
        self._raw = connections[ALIAS].connection
        self._raw.prepare_threshold = 3
        self._seen: dict[str, tuple[Any, Row]] = {}

    def reset(self, clock: Clock) -> None:
        self.clock = clock
        self._shown = -1
        self._seen = {}
        for session in [session for session in self._all if session not in self._idle]:
            self._all.remove(session)  # left behind by a run that was cut short
            self._execute(f"SELECT pg_terminate_backend({session.pid:d}, 5000)")
        self._execute(f"TRUNCATE {self._names} RESTART IDENTITY")

    def start(self, work: Callable[[Running], Any], passing: Passing) -> tuple[Running, Answer]:
        session = self._idle.pop() if self._idle else self._new()
        return session, session.begin(work)

    def free(self, session: Running) -> None:
        if isinstance(session, _Session):
            self._idle.append(session)

    def tell_time(self) -> None:
        if self._shown != self.clock.micros:
            self._shown = self.clock.micros
            self._raw.execute("SELECT setval('simulation.clock', %s)", (self._shown + 1,))

    def patched(self) -> AbstractContextManager[Any]:
        # Nobody listens, and how many are left out depends on real time.
        return mock.patch.object(notify, "permitted", return_value=False)

    def is_blocked(self, pid: int) -> bool:
        """Whether a connection waits for a lock that somebody else holds."""
        row = self._raw.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchone()
        return bool(row and row[0])

    def dump(self) -> Dump:
        jobs = {}
        for key, whole, *rest in self._raw.execute(_POSTGRES_JOBS):
            seen = self._seen.get(key)
            if seen is None or seen[0] != whole:
                seen = self._seen[key] = (whole, Row._make((*rest, whole)))
            jobs[key] = seen[1]
        attempts = {
            (job, number): History(worker, outcome, whole)
            for job, number, worker, outcome, whole in self._raw.execute(_POSTGRES_ATTEMPTS)
        }
        tags = frozenset(self._raw.execute(_POSTGRES_TAGS).fetchall())
        return Dump(jobs, attempts, tags, _ledger(self._raw.execute(_LEDGER).fetchall()))

    def close(self) -> None:
        for session in self._idle:
            session.end()
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]
        self._on_server(f"DROP DATABASE IF EXISTS {self._made} WITH (FORCE)")

    def _new(self) -> _Session:
        session = _Session(self)
        self._all.append(session)
        return session

    def _settings(self, name: str, options: dict[str, str]) -> dict[str, Any]:
        return {**connections.settings["default"], **self._url, "NAME": name, "OPTIONS": options}

    def _on_server(self, *statements: str) -> None:
        """Run statements where no database of ours is needed."""
        connections.settings[ALIAS] = self._settings("postgres", {})
        try:
            for statement in statements:
                self._execute(statement)
        finally:
            connections[ALIAS].close()
            del connections[ALIAS]
            del connections.settings[ALIAS]

    def _execute(self, sql: str) -> None:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(sql)


_OPTIONS = (
    "-c search_path=simulation,pg_catalog -c default_transaction_isolation=read\\ committed "
    "-c synchronous_commit=off -c deadlock_timeout=200ms"
)

#: A sequence, because what it says is not bound to any transaction. Found before PostgreSQL's own functions.
_CLOCK = """
    DROP SCHEMA IF EXISTS simulation CASCADE;
    CREATE SCHEMA simulation;
    CREATE SEQUENCE simulation.clock;
    CREATE FUNCTION simulation.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
        SELECT '{epoch}'::timestamptz + (last_value - 1) * interval '1 microsecond' FROM simulation.clock $$;
    CREATE FUNCTION simulation.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$
        SELECT '{epoch}'::timestamptz + (last_value - 1) * interval '1 microsecond' FROM simulation.clock $$;
"""

_EPOCH = f"'{BEGINNING.isoformat()}'::timestamptz"


def _since(column: str) -> str:
    return f"(extract(epoch FROM {column} - {_EPOCH}) * {SECOND})::bigint"


_POSTGRES_JOBS = f"""
    SELECT replace(id::text, '-', ''), j::text, state, attempt, failures, max_attempts, worker,
           {_since("lease_expires_at")}, cancel_requested_at IS NOT NULL, {_since("expires_at")},
           queue, name, cause, output FROM "{Job._meta.db_table}" j"""  # noqa: S608
_POSTGRES_ATTEMPTS = f"""
    SELECT replace(job_id::text, '-', ''), number, worker, outcome, a::text
      FROM "{Attempt._meta.db_table}" a"""  # noqa: S608
_POSTGRES_TAGS = f"""
    SELECT replace(job_id::text, '-', ''), "key", "value" FROM "{Tag._meta.db_table}" """  # noqa: S608
