"""The processes of a run: workers with their children, and clients; started again when they end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.chaos.stage import Stage
from tests.databases import child_environment
from tests.processes import MANAGE, Process, wait_until

#: Seconds of a worker's lease, and what its handlers get to finish at a stop.
LEASE, SHUTDOWN = 2.0, 1.0

#: Seconds in which a worker must have ended after SIGTERM.
END = 40.0

OPTIONS = ("--lease", str(LEASE), "--poll", "0.25", "--concurrency", "4", "--shutdown-timeout", str(SHUTDOWN))

#: What a worker or a child says that could not come up, for a fault of its database's.
NOT_STARTED = ("cannot be reached", "action=child_not_started")

#: Exceptions that no fault of a database's or of a handler's brings.
MISTAKES = (
    "AssertionError",
    "AttributeError",
    "KeyError",
    "LookupError",
    "RuntimeError",
    "TypeError",
    "Fatal",
)

_STARTED = re.compile(r"action=worker_started worker=[^:]+:(\d+):")


class Seat:
    """One place for a process, which is filled again whenever it becomes empty."""

    def __init__(self, number: int, stage: Stage) -> None:
        self.number = number
        self.environment = child_environment(**stage.environment(number))
        self.ends_soon = False  # whoever sent a signal that ends it says so
        self.past: list[Process] = []
        self.complaints: list[str] = []
        self.process = self._start()

    def command(self) -> list[str]:
        """Return what to start."""
        raise NotImplementedError

    def tend(self) -> None:
        """Start the process again if it has ended; take note if nobody had told it to."""
        if self.process.running:
            return
        if not self.ends_soon and not self._excused():
            self.complaints.append(
                f"{self} ended by itself with {self.process.code}; it said: {self._last()}"
            )
        self.past.append(self.process)
        self.ends_soon = False
        self.process = self._start()

    def all(self) -> list[Process]:
        """Return every process that ever sat here."""
        return [*self.past, self.process]

    def _start(self) -> Process:
        return Process(self.command(), self.environment)

    def _excused(self) -> bool:
        return False

    def _last(self) -> str:
        return " | ".join(line.strip() for line in self.process.lines[-3:])

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()} {self.number}"


class Worker(Seat):
    """A supervisor with children."""

    def __init__(self, number: int, stage: Stage, processes: int, *, quiet: bool = False) -> None:
        self._processes = processes
        self.quiet = quiet
        self._read = 0  # so many lines of the process's
        self._children: list[int] = []
        self.known: set[int] = set()  # every child that there ever was
        super().__init__(number, stage)

    def command(self) -> list[str]:
        own = ("--processes", str(self._processes), *(("--verbosity", "0") if self.quiet else OPTIONS))
        return [sys.executable, str(MANAGE), "backwave_worker", *own]

    def children(self) -> list[int]:
        """Return the processes of the children that have started and live."""
        lines = self.process.lines
        for line in lines[self._read : (end := len(lines))]:
            if found := _STARTED.search(line):
                self._children.append(int(found[1]))
                self.known.add(int(found[1]))
        self._read = end
        self._children = [pid for pid in self._children if alive(pid)]
        return self._children

    def _start(self) -> Process:
        self._read, self._children = 0, []
        return super()._start()

    def _excused(self) -> bool:
        return any(self.process.said(words) for words in NOT_STARTED)


class Client(Seat):
    """A client, each time with a journal and a seed of its own."""

    def __init__(self, number: int, stage: Stage, seed: int) -> None:
        self._folder, self._seed, self._lives = stage.folder, seed, 0
        super().__init__(number, stage)

    def command(self) -> list[str]:
        self._lives += 1
        name = f"{self.number}-{self._lives}"
        journal = str(self._folder / f"client-{name}.jsonl")
        return [sys.executable, "-m", "tests.chaos.client", journal, f"{self._seed}-{name}"]


class Fleet:
    """All workers and clients of a run; use it as a context manager."""

    def __init__(
        self, stage: Stage, *, workers: int, processes: int, clients: int, seed: int, quiet: bool = False
    ) -> None:
        self.stage = stage
        self.workers = [Worker(number, stage, processes, quiet=quiet) for number in range(workers)]
        self.clients = [Client(workers + number, stage, seed) for number in range(clients)]
        self.peaks: dict[int, float] = {}
        self._former: list[Client] = []  # who has done his work

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind, whatever state it is in."""
        for worker in self.workers:
            for pid in worker.children():
                kill(pid, signal.SIGKILL)
        processes = [process for seat in self._seats() for process in seat.all()]
        for process in processes:
            if process.running:
                process.send(signal.SIGKILL)
        for process in processes:
            process.end()

    def tend(self) -> None:
        """Start again what has ended, and look at what the children use."""
        for seat in (*self.workers, *self.clients):
            seat.tend()
        for pid in self.children():
            self.peaks[pid] = max(self.peaks.get(pid, 0.0), memory(pid))

    def children(self) -> list[int]:
        """Return all workers' children that live."""
        return [pid for worker in self.workers for pid in worker.children()]

    def stop_clients(self) -> None:
        """Let the clients finish what they are at."""
        (self.stage.folder / "stop").touch()
        self.clients, self._former = [], self.clients
        for client in self._former:
            client.process.wait(END)
            if client.process.code:
                client.complaints.append(f"{client} ended with {client.process.code}: {client.process}")

    def stop_workers(self) -> None:
        """Ask all workers to stop, and complain of those that do not end in order."""
        for worker in self.workers:
            # One that has only just been started does not know yet what to do about a signal.
            if not worker.quiet:
                worker.process.wait_for("action=supervisor_started", deadline=END)
            worker.process.send(signal.SIGTERM)
        for worker in self.workers:
            try:
                code = worker.process.wait(END)
            except AssertionError:
                worker.complaints.append(f"{worker} is stuck: it has not ended in {END} seconds")
                continue
            if code:
                worker.complaints.append(f"{worker} ended with {code} after SIGTERM")
        left = [pid for worker in self.workers for pid in worker.known if alive(pid)]
        with suppress(AssertionError):
            wait_until(lambda: not [pid for pid in left if alive(pid)])
        self.workers[0].complaints += [f"process {pid} of a worker lives on" for pid in left if alive(pid)]

    def complaints(self) -> Iterator[str]:
        """Yield what the processes themselves did wrong."""
        for seat in self._seats():
            yield from seat.complaints
        for line in self.said("action=child_died", " code="):
            yield f"a child died of itself: {line.strip()}"
        for line in self.said("Error"):
            if line.startswith(MISTAKES):
                yield f"a worker's code is wrong: {line.strip()}"

    def said(self, *parts: str) -> list[str]:
        """Return all lines of all workers that hold all of these parts."""
        return [line for worker in self.workers for process in worker.all() for line in process.said(*parts)]

    def write_logs(self, folder: Path) -> None:
        """Keep what every process has said."""
        for seat in self._seats():
            lines = (line for process in seat.all() for line in [f"--- {process.pid} ---\n", *process.lines])
            (folder / f"{seat}.log".replace(" ", "-")).write_text("".join(lines))

    def _seats(self) -> list[Seat]:
        return [*self.workers, *self.clients, *self._former]


def alive(pid: int) -> bool:
    """Return whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int, number: signal.Signals) -> float:
    """Send a signal to a process that may have ended by itself; return when, by the machine's clock."""
    at = time.time()
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return at


def memory(pid: int) -> float:
    """Return how many megabytes a process has in memory, 0 where nobody tells."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
