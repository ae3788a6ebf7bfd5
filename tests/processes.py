"""Real processes for tests: workers that are started, listened to, signalled, and always cleaned up.

    with worker("--lease", "1") as process:
        process.wait_for("action=worker_started")
        process.send(signal.SIGKILL)

They use the very database of the running test; see `tests/databases.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.databases import child_environment

MANAGE = Path(__file__).with_name("manage.py")

PATIENCE = 20.0  # seconds until whatever a test waits for counts as never to come
LIFE = 90.0  # the same for what a process has to start or to end for: imports take long on a busy machine
EVERY = 0.01  # seconds between two looks at a condition


def wait_until[T](condition: Callable[[], T], *, deadline: float = PATIENCE, what: object = "") -> T:
    """Look at a condition until it is true, and return what it gave; fail after some seconds.

    `what` is shown then; a callable is asked only at that time.
    """
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > end:
            told = what() if callable(what) else what or condition
            raise AssertionError(f"not within {deadline} seconds: {told}")
        pause.wait(EVERY)
    return value


class Process:
    """A child process and what it has written to its standard error so far, line by line."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, *parts: str) -> list[str]:
        """Return the lines that hold all of these parts."""
        return [line for line in list(self.lines) if all(part in line for part in parts)]

    def wait_for(self, *parts: str, deadline: float = LIFE) -> str:
        """Wait for a line that holds all of these parts, and return it."""
        wait_until(
            lambda: self.said(*parts) or self._has_ended(),
            deadline=deadline,
            what=lambda: f"a line with {parts} in:\n{self}",
        )
        self._reader_is_done()
        found = self.said(*parts)
        assert found, f"the process ended without a line with {parts}:\n{self}"
        return found[0]

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """How it ended, None if it has not yet; a signal is negative."""
        return self._process.poll()

    def wait(self, deadline: float = LIFE) -> int:
        """Wait for the end, with everything read, and return the exit code; a signal is negative."""
        try:
            code = self._process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process has not ended in {deadline} seconds:\n{self}") from None
        self._reader.join(PATIENCE)
        return code

    def end(self) -> None:
        """Kill the process if it still runs, even if it is stopped."""
        if self.running:
            self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def __str__(self) -> str:
        return "".join(self.lines) or "(it has said nothing)"

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)

    def _has_ended(self) -> bool:
        return not self.running

    def _reader_is_done(self) -> None:
        if not self.running:
            self._reader.join(PATIENCE)


@contextmanager
def command(*arguments: str, **environment: str) -> Iterator[Process]:
    """Run a management command of the test project in a process of its own."""
    process = Process([sys.executable, str(MANAGE), *arguments], child_environment(**environment))
    try:
        yield process
    except BaseException as error:
        error.add_note(f"--- {' '.join(arguments)}, process {process.pid} ---\n{process}")
        raise
    finally:
        process.end()


@contextmanager
def worker(*arguments: str, **environment: str) -> Iterator[Process]:
    """Run a worker, and wait until it has started."""
    with command("backwave_worker", *arguments, **environment) as process:
        process.wait_for("action=worker_started")
        yield process


def run_command(*arguments: str, deadline: float = LIFE, **environment: str) -> Process:
    """Run a management command to its end, and return the process."""
    with command(*arguments, **environment) as process:
        process.wait(deadline)
        return process


def append(path: str | Path, line: str) -> None:
    """Append one line to a file, whole, whoever else writes to it; for journals of handlers."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def journal(path: str | Path) -> list[str]:
    """Return the lines of a journal; a file that is not there yet has none."""
    path = Path(path)
    return path.read_text().splitlines() if path.exists() else []
