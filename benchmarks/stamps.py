"""Time stamps that handlers write and the harness reads: one memory-mapped file, the same for everybody.

Each job carries a number; its handler writes the monotonic clock, which all processes of a machine share,
into the slot of that number. A handler costs less than a microsecond, and nobody has to ask a database what
was done.

The first job of each process waits at a gate, until the harness has seen all processes arrive and opens it:
so the time that processes take to start is not measured.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import time
from pathlib import Path

#: The names of the environment variable that tells a worker where the file is.
VARIABLE = "BENCH_STAMPS"

# The file: when the gate opened, how many jobs each process has run, when each job ran; 8 bytes each.
PROCESSES = 500
COUNTS = 8
STAMPS = 4096
WORD = struct.Struct("q")
#: Seconds between two looks at a gate, or at the progress.
LOOK = 0.001


class Stamps:
    """The harness's side: creates the file, opens the gate and reads what was written."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.path = path
        self.jobs = jobs
        arrivals(path).mkdir()
        with path.open("wb") as file:
            file.truncate(STAMPS + WORD.size * jobs)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._first_missing = 0

    def arrived(self) -> int:
        """Return how many processes stand at the gate, or have passed it."""
        return len(os.listdir(arrivals(self.path)))

    def open(self) -> int:
        """Open the gate; return the instant in nanoseconds."""
        now = time.monotonic_ns()
        WORD.pack_into(self._memory, 0, now)
        return now

    def done(self) -> int:
        """Return how many times a handler ran."""
        return sum(struct.unpack_from(f"{PROCESSES}q", self._memory, COUNTS))

    def all_ran(self) -> bool:
        """Say whether each job ran at least once."""
        while self._first_missing < self.jobs and self.at(self._first_missing):
            self._first_missing += 1
        return self._first_missing == self.jobs

    def at(self, number: int) -> int:
        """Return when the job ran last, in nanoseconds of the monotonic clock; 0 if it did not."""
        return WORD.unpack_from(self._memory, STAMPS + WORD.size * number)[0]

    def last(self) -> int:
        """Return when the last job ran."""
        return max(struct.unpack_from(f"{self.jobs}q", self._memory, STAMPS))


class Recorder:
    """The worker's side: `record(number)` is what the handler of a job does."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._path = path
        self._lock = threading.Lock()
        self._passed = False
        self._runs = itertools.count(1)
        self._slot = 0

    def __call__(self, number: int) -> None:
        """Write down that the job runs now."""
        if not self._passed:
            self._wait()
        WORD.pack_into(self._memory, STAMPS + WORD.size * number, time.monotonic_ns())
        WORD.pack_into(self._memory, self._slot, next(self._runs))

    def _wait(self) -> None:
        """Take a slot of one's own, and wait until the gate opens; an event loop is blocked, on purpose."""
        with self._lock:
            if not self._passed:
                self._slot = COUNTS + WORD.size * self._arrive()
                while not WORD.unpack_from(self._memory, 0)[0]:
                    time.sleep(LOOK)
                self._passed = True

    def _arrive(self) -> int:
        for slot in range(PROCESSES):
            try:
                (arrivals(self._path) / str(slot)).touch(exist_ok=False)
            except FileExistsError:
                continue
            return slot
        raise RuntimeError(f"More than {PROCESSES} processes run jobs of one benchmark.")


def arrivals(path: Path) -> Path:
    """Return the folder in which each process leaves a file when it comes to the gate."""
    return path.with_name(f"{path.name}.arrivals")


def record(number: int) -> None:
    """Write down that the job runs now: all that the handlers of the benchmark do."""
    _recorder()(number)


_lock = threading.Lock()
_known: Recorder | None = None


def _recorder() -> Recorder:
    global _known
    if _known is None:
        with _lock:
            _known = _known or Recorder(Path(os.environ[VARIABLE]))
    return _known
