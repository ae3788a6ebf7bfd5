"""Real worker processes for the demo, and a database and a folder of its own."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.db import DatabaseError, connection
from django.test.utils import setup_test_environment, teardown_test_environment

from shop.demo.show import DemoFailed, wait_until

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"

#: The worker names itself host:pid:random.
NAMED = re.compile(r"action=worker_started worker=(\S+)")


class WorkerProcess:
    """One ``manage.py backwave_worker``, with its log in a file."""

    def __init__(self, label: str, *options: str, folder: Path) -> None:
        self.label = label
        self.log_file = folder / f"worker-{label}.log"
        with self.log_file.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(MANAGE), "backwave_worker", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._expected_to_die = False
        self._frozen = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, None while it runs; minus the number of the signal that killed it."""
        return self._process.poll()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def name(self) -> str | None:
        """Return the name under which the worker holds leases, None before it has started."""
        found = NAMED.search(self.log())
        return found.group(1) if found else None

    def line(self, *words: str) -> str | None:
        """Return the first line of the log that has all of these words."""
        return next((line for line in self.log().splitlines() if all(word in line for word in words)), None)

    def may_die(self) -> None:
        """Expect that a job kills it."""
        self._expected_to_die = True

    def kill(self) -> None:
        """End it at once, as a crash or the kernel's memory killer does."""
        self._expected_to_die = True
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop it where it stands, as a long pause of its machine does."""
        self._frozen = True
        while True:
            self._process.send_signal(signal.SIGSTOP)
            if _database_is_writable():
                return
            # Frozen within its own write, it would keep everybody else out of SQLite's only lock.
            self._process.send_signal(signal.SIGCONT)

    def thaw(self) -> None:
        """Let it go on, as if nothing had happened."""
        self._frozen = False
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raise DemoFailed if it has ended although nobody meant it to."""
        if self.exit_code is not None and not self._expected_to_die:
            tail = "\n".join(self.log().splitlines()[-15:])
            raise DemoFailed(
                f"worker {self.label} ended by itself with exit code {self.exit_code}. "
                f"The end of its log:\n{tail}"
            )

    def stop(self) -> None:
        """Ask it to stop in order, as a deploy does, and expect exit code 0."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=30)
        self.check_stopped()

    def check_stopped(self) -> None:
        if self.exit_code != 0:
            raise DemoFailed(f"worker {self.label} stopped with exit code {self.exit_code}, not 0")

    def clear_away(self) -> None:
        """End it whatever it is doing."""
        if self.exit_code is None:
            self.kill()
            if self._frozen:
                self.thaw()


class Workers:
    """The workers of one demo by their labels; those left over are ended with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_label: dict[str, WorkerProcess] = {}

    def start(self, label: str, *options: str) -> WorkerProcess:
        worker = WorkerProcess(label, *options, folder=self._folder)
        self._by_label[label] = worker
        return worker

    def label_of(self, name: str) -> str:
        """Return the label of the worker with this name (host:pid:random)."""
        named = (label for label, worker in self._by_label.items() if worker.name() == name)
        return next(named, name)

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait, but not for workers that are gone."""

        def check() -> None:
            for worker in self._by_label.values():
                worker.check()

        wait_until(what, condition, check=check)

    def stop(self, *workers: WorkerProcess) -> None:
        for worker in workers:
            worker.stop()
            worker.may_die()  # it is gone, and that is right

    def clear_away(self) -> None:
        for worker in self._by_label.values():
            worker.clear_away()


@contextmanager
def own_surroundings(folder: Path | None = None) -> Iterator[Path]:
    """Give this process, and those that it starts, a folder, a gateway's file and a fresh database.

    The database is migrated. On PostgreSQL it stands beside the one in DATABASE_URL, and is dropped
    at the end, as the folder is unless one was given.
    """
    setup_test_environment()  # for Django's test client, which plays the customers
    logging.getLogger("django.request").setLevel(logging.ERROR)  # an order is to be answered 409
    try:
        if folder is not None:
            folder.mkdir(parents=True)
            with _database(folder):
                yield folder
        else:
            made = tempfile.TemporaryDirectory(prefix="backwave-demo-")
            with made as name, _database(Path(name)):
                yield Path(name)
    finally:
        teardown_test_environment()


@contextmanager
def _database(folder: Path) -> Iterator[None]:
    settings.GATEWAY_FILE = folder / "gateway.jsonl"
    os.environ["SHOP_GATEWAY_FILE"] = str(settings.GATEWAY_FILE)
    on_sqlite = connection.vendor == "sqlite"
    before = connection.settings_dict["NAME"]
    name = str(folder / "shop.sqlite3") if on_sqlite else f"backwave_demo_{secrets.token_hex(4)}"
    connection.settings_dict["TEST"]["NAME"] = name
    try:
        # As for a test run: Django knows for each vendor how to make, migrate and drop a database.
        connection.creation.create_test_db(verbosity=0, autoclobber=True)
    except DatabaseError as error:
        raise DemoFailed(f"no database of its own could be made: {str(error).strip()}") from error
    try:
        url = urlsplit(os.environ.get("DATABASE_URL") or "sqlite://")
        os.environ["DATABASE_URL"] = (
            f"sqlite:///{quote(name)}" if on_sqlite else url._replace(path=f"/{name}").geturl()
        )
        yield
    finally:
        connection.close()
        if not on_sqlite:
            connection.creation.destroy_test_db(before, verbosity=0)


def _database_is_writable() -> bool:
    """Whether nobody sits on SQLite's write lock; other databases lock rows, not everything."""
    if connection.vendor != "sqlite":
        return True
    probe = sqlite3.connect(connection.settings_dict["NAME"], timeout=1.0, isolation_level=None)
    try:
        probe.execute("BEGIN IMMEDIATE")
        probe.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        probe.close()
    return True
