"""The shop as a newcomer runs it: `manage.py shop` in a process of its own, on a folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.processes import LIFE, wait_until

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "example_project"

#: Seconds for a start, with all migrations, on a busy machine.
TO_START = 90.0


def environment(**changes: str) -> dict[str, str]:
    """Return the environment for a process of the shop on SQLite."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("BACKWAVE_TEST", "SHOP_", "DATABASE_URL"))
    }
    own = {
        "PYTHONPATH": f"{ROOT}:{SHOP}",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **own, **changes}


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class RunningShop:
    """A shop with its web server and worker."""

    def __init__(self, folder: Path, *, port: int | None = None, **changes: str) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, str(SHOP / "manage.py"), "shop", "--port", str(self.port)],
            cwd=ROOT,
            env=environment(SHOP_FOLDER=str(folder), **changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,  # so that Ctrl-C, which goes to a whole group, can be sent to this one
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_open(self) -> None:
        """Wait until it has said where it is, and its worker has started."""
        signs = ("Ctrl-C stops both.", "action=worker_started")
        wait_until(
            lambda: all(sign in self.said for sign in signs) or self.code is not None,
            deadline=TO_START,
            what=lambda: f"the shop opens:\n{self.said}",
        )
        assert self.code is None, self.said

    @property
    def said(self) -> str:
        """All that it and its processes have written."""
        return "".join(list(self.lines))

    @property
    def url(self) -> str:
        """Where the shop is."""
        return self._find(r"The shop +(http://\S+)")

    @property
    def password(self) -> str:
        """The password of the admin's user."""
        return self._find(r"user admin, password (\S+)")

    @property
    def server_pid(self) -> int:
        """The process of the web server."""
        return int(self._find(r"Web server +process (\d+)"))

    @property
    def worker_pid(self) -> int:
        """The process of the worker."""
        return int(self._find(r"Worker +process (\d+)"))

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def press_ctrl_c(self) -> None:
        """Do what a terminal does: send SIGINT to the whole process group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        wait_until(lambda: self.code is not None, deadline=LIFE, what=lambda: f"the end of it:\n{self.said}")
        self._reader.join(10)
        return self.code or 0

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        with closing(sqlite3.connect(self.folder / "shop.sqlite3", timeout=20)) as connection:
            [(rows,)] = connection.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
        return int(rows)

    @contextmanager
    def slow_gateway(self) -> Iterator[None]:
        """Keep the answer of the gateway back meanwhile, for each order that may come."""
        held = self.folder / "gateway.jsonl.held"
        new = held.with_suffix(".new")
        new.write_text(json.dumps(list(range(1, 1000))))
        new.replace(held)
        try:
            yield
        finally:
            held.unlink()

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self.code is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _find(self, pattern: str) -> str:
        found = re.search(pattern, self.said)
        assert found, self.said
        return found[1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)


@contextmanager
def running_shop(folder: Path, *, port: int | None = None, **changes: str) -> Iterator[RunningShop]:
    """Open a shop, with these changes of its environment, and close it again."""
    shop = RunningShop(folder, port=port, **changes)
    try:
        shop.wait_until_open()
        yield shop
    except BaseException as error:
        error.add_note(f"--- manage.py shop ---\n{shop.said}")
        raise
    finally:
        shop.close()


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()
