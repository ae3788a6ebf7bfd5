"""A place for each run: a fresh database or a name of its own in a broker, workers, and stamps."""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import environment, processes, server
from benchmarks.contestants import Contestant
from benchmarks.paths import ROOT
from benchmarks.stamps import VARIABLE, Stamps

#: Seconds for what is not measured: creating tables, enqueuing the jobs of a drain, starting the workers.
PREPARE, FILL, START = 120.0, 900.0, 30.0
#: The file for what workers say.
LOG = "workers.log"
#: Seconds between two looks.
LOOK = 0.005


@dataclass(slots=True)
class Place:
    """Where one run happens."""

    contestant: Contestant
    environment: dict[str, str]
    folder: Path
    concurrency: int
    database: str | None = None

    def client(self, action: str, *arguments: float, timeout: float = FILL, **changes: str) -> Any:
        """Do an action of `benchmarks.client` in a process of its own; return what it said."""
        line = ["-m", "benchmarks.client", self.contestant.app, action, *map(str, arguments)]
        return json.loads(processes.run(line, {**self.environment, **changes}, timeout=timeout))

    def stamps(self, jobs: int) -> Stamps:
        """Create a file for the stamps of so many jobs, which workers started from now on use."""
        path = self.folder / f"stamps-{secrets.token_hex(4)}"
        self.environment[VARIABLE] = str(path)
        return Stamps(path, jobs)

    @contextmanager
    def workers(self, count: int, *options: str) -> Iterator[processes.Workers]:
        """Run so many workers of the contestant."""
        with processes.Workers(self.folder / LOG) as running:
            for number in range(count):
                self.start(running, f"worker-{number}", *options)
            yield running

    def start(self, running: processes.Workers, name: str, *options: str) -> Any:
        """Start one more worker."""
        values = {"name": name, "concurrency": str(self.concurrency), **self.environment}
        line = [argument.format(**values) for argument in self.contestant.worker]
        return running.start([*line, *options], self.environment)

    def log(self) -> str:
        """Return what the workers said."""
        log = self.folder / LOG
        return log.read_text(errors="replace") if log.exists() else ""

    def settle_down(self) -> None:
        """Let the server gather statistics and write what it has, so that no run pays for another's pages."""
        if self.database:
            with self.connection() as connection:
                connection.execute("VACUUM ANALYZE")
                connection.execute("CHECKPOINT")

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """Connect to the run's database."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            yield connection

    @contextmanager
    def any_connection(self) -> Iterator[psycopg.Connection | sqlite3.Connection]:
        """Connect to the run's database, also if it is SQLite."""
        if self.database:
            with self.connection() as connection:
                yield connection
        else:
            path = self.environment["BENCH_DATABASE_URL"].removeprefix("sqlite://")
            with closing(sqlite3.connect(path, timeout=20)) as connection:
                yield connection


@dataclass(slots=True)
class Site:
    """What all runs share."""

    databases: server.Databases
    brokers: Mapping[str, str]
    folder: Path
    concurrency: int
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Remember something that a reader of the numbers must know, once."""
        text = text.replace(f"{ROOT}/", "")
        if text not in self.notes:
            self.notes.append(text)
            environment.say(f"  note: {text}")

    def serves(self, contestant: Contestant) -> bool:
        """Say whether the service that the contestant needs is there."""
        return contestant.service in ("postgres", "sqlite", *self.brokers)

    @contextmanager
    def place(self, contestant: Contestant, **changes: str) -> Iterator[Place]:
        """Make a place and remove it again; `changes` go into the environment of its processes."""
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=self.folder))
        made = Place(
            contestant=contestant,
            environment={
                "BENCH_CONCURRENCY": str(self.concurrency),
                "BENCH_FOLDER": str(folder),
                "BENCH_NAMESPACE": f"bench_{secrets.token_hex(4)}",
                **contestant.environment,
                **changes,
            },
            folder=folder,
            concurrency=self.concurrency,
        )
        with self._with_service(made):
            yield made
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _with_service(self, place: Place) -> Iterator[None]:
        if place.contestant.service == "sqlite":
            place.environment["BENCH_DATABASE_URL"] = f"sqlite://{place.folder / 'jobs.sqlite3'}"
            place.client("prepare", timeout=PREPARE)
            yield
            return
        if place.contestant.service != "postgres":
            place.environment["BENCH_BROKER_URL"] = self.brokers[place.contestant.service]
            place.environment["BENCH_DATABASE_URL"] = "sqlite:///nowhere"
            try:
                yield
            finally:
                with suppress(RuntimeError):
                    place.client("clean", timeout=PREPARE)
            return
        name = self.databases.create(template=self._template(place))
        self._point(place, name)
        try:
            yield
        finally:
            self.databases.drop(name)

    def _template(self, place: Place) -> str:
        """Return a database with the contestant's tables, made once."""
        known = self.databases.template(place.contestant.name)
        if known:
            return known
        name = self.databases.create()
        self._point(place, name)
        place.client("prepare", timeout=PREPARE)
        self.databases.keep(name, place.contestant.name)
        return name

    def _point(self, place: Place, name: str) -> None:
        place.database = self.databases.url(name)
        place.environment["BENCH_DATABASE_URL"] = place.database


def wait_at_gate(place: Place, stamps: Stamps, running: processes.Workers, count: int) -> int:
    """Wait until so many processes have a job in hand; return how many have."""
    wait_for(lambda: stamps.arrived() >= count, START, running)
    return stamps.arrived()


def wait_for(condition: Callable[[], bool], seconds: float, running: processes.Workers) -> bool:
    """Wait for a condition, at most so long; return whether it came true. Raises if a worker dies."""
    deadline = time.monotonic() + seconds
    looked = 0.0
    while not condition():
        now = time.monotonic()
        if now > deadline:
            return False
        if now - looked > 1:
            running.raise_if_dead()
            looked = now
        time.sleep(LOOK)
    return True
