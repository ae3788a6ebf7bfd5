"""Processes that live and end together: for `manage.py shop`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

MANAGE = Path(__file__).resolve().parents[1] / "manage.py"

#: Seconds between two looks at the processes.
LOOK_EVERY = 0.1

#: Seconds that a process has for an orderly end before it is killed.
PATIENCE = 15.0


class Child:
    """One `manage.py …` in a process of its own, which writes to this terminal."""

    def __init__(self, label: str, *arguments: str, quiet: bool = False) -> None:
        self.label = label
        self._process = subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else None,
            # Ctrl-C is for us alone: a worker takes a second signal for "at once".
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()) if sys.platform == "linux" else None,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def how_it_ended(self) -> str:
        code = self.exit_code
        return f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"

    def ask_to_stop(self) -> None:
        if self.exit_code is None:
            self._process.terminate()

    def kill(self) -> None:
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()


class Together:
    """A few processes: when one ends, or somebody wants to stop, all are ended."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._children: list[Child] = []

    def start(self, label: str, *arguments: str, quiet: bool = False) -> Child:
        child = Child(label, *arguments, quiet=quiet)
        self._children.append(child)
        return child

    def wait_for(self, condition: Callable[[], bool], *, within: float) -> bool:
        """Wait, and say whether it came true; no longer than all processes run and nobody stops us."""
        deadline = time.monotonic() + within
        while not (self.ended() or self._stop.is_set() or time.monotonic() > deadline):
            if condition():
                return True
            self._stop.wait(LOOK_EVERY)
        return False

    def wait(self) -> None:
        """Wait until one has ended, or somebody wants to stop."""
        while not (self.ended() or self._stop.is_set()):
            self._stop.wait(LOOK_EVERY)

    @property
    def stop_is_wanted(self) -> bool:
        return self._stop.is_set()

    def ended(self) -> Child | None:
        """Return one that has ended by itself."""
        return next((child for child in self._children if child.exit_code is not None), None)

    def end(self) -> None:
        """Ask all to stop; kill those that do not, or at once if somebody asks a second time."""
        for child in self._children:
            child.ask_to_stop()
        self._stop.clear()
        deadline = time.monotonic() + PATIENCE
        while any(child.exit_code is None for child in self._children):
            if self._stop.wait(LOOK_EVERY) or time.monotonic() > deadline:
                break
        for child in self._children:
            child.kill()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C, a closed terminal and a service manager's stop all set."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with(parent: int) -> Callable[[], None]:
    """Let a new process be told to stop when its parent is killed and can tell it nothing (Linux)."""
    libc = ctypes.CDLL(None)
    set_parent_death_signal = 1

    def prepare() -> None:
        libc.prctl(set_parent_death_signal, signal.SIGTERM)
        if os.getppid() != parent:  # it is gone already
            os._exit(1)

    return prepare
