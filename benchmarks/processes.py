"""Worker processes: started in groups of their own, measured, and ended whatever happens to the harness."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.environment import PYTHON
from benchmarks.paths import ROOT

#: Seconds that a worker has for an orderly end.
PATIENCE = 10.0

#: The environment variable that names another checkout to take django_backwave from.
SOURCE = "BENCH_SOURCE"

# Reads the groups that run, the last line counts, until the harness is gone; then kills them.
LEASH = 'while read -r line; do groups=$line; done; [ -z "$groups" ] || kill -s KILL -- $groups'


class Workers:
    """Processes that run jobs; use it as a context manager. Their output goes to one file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._running: list[subprocess.Popen[bytes]] = []
        self._leash = subprocess.Popen(
            ["/bin/sh", "-c", LEASH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._leash.communicate()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start `python arguments…` of the contestants' environment, in a process group of its own."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [PYTHON, "-P", *arguments],
                env=full(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        self._tell_leash()
        return process

    def first(self) -> subprocess.Popen[bytes]:
        """Return the worker that was started first."""
        return self._running[0]

    def wait(self, seconds: float) -> None:
        """Wait until all have ended by themselves; raise RuntimeError if one fails."""
        for process in self._running:
            if process.wait(seconds):
                raise RuntimeError(f"A worker ended with code {process.returncode}:\n{self.tail()}")

    def raise_if_dead(self) -> None:
        """Raise RuntimeError, with the end of the log, if a worker has ended by itself."""
        for process in self._running:
            if process.poll() is not None:
                raise RuntimeError(f"A worker ended with code {process.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        """Return the end of what the workers said."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def memory(self, stamps: Path | None = None) -> list[tuple[float, float]]:
        """Return, for each worker with its children, the resident memory at its peak and now, in MB.

        ``stamps``: a file that does not count.
        """
        return [memory(process.pid, stamps) for process in self._running]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End one worker and its children by SIGKILL."""
        _kill_group(process)
        self._running.remove(process)
        self._tell_leash()

    def stop(self) -> None:
        """End all in order, and by force those that take too long."""
        for process in self._running:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        for process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _kill_group(process)
        self._running.clear()
        self._tell_leash()

    def kill_all(self) -> None:
        """End all by SIGKILL: after a run over a backlog nobody needs to wait for an orderly end."""
        for process in list(self._running):
            self.kill(process)

    def _tell_leash(self) -> None:
        groups = " ".join(f"-{process.pid}" for process in self._running)
        self._leash.stdin.write(f"{groups}\n".encode())
        self._leash.stdin.flush()


def run(arguments: Sequence[str], environment: Mapping[str, str], *, timeout: float) -> str:
    """Run `python arguments…` of the contestants' environment to its end; return what it printed.

    Raises RuntimeError, with what it said, if it fails, and subprocess.TimeoutExpired.
    """
    done = subprocess.run(
        [PYTHON, "-P", *arguments],
        env=full(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def full(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: ours, without what Django or PostgreSQL would read in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BACKWAVE_", "PG"))}
    # Python is started with -P: else the folder it is started in would go before all of these.
    source = kept.get(SOURCE, "")
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, (source, str(ROOT)))),
        "DJANGO_SETTINGS_MODULE": "benchmarks.project.settings",
        **environment,
    }


def memory(leader: int, stamps: Path | None = None) -> tuple[float, float]:
    """Return the resident memory of a process and its descendants, at its peak and now, in MB.

    ``stamps``: a file whose mapped pages do not count, for they are the harness's, 8 bytes a job.
    """
    peak = now = 0
    for pid in family(leader):
        with suppress(OSError):
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            ours = 0 if stamps is None else _mapped(pid, stamps)
            peak += int(fields.get("VmHWM", "0 kB").split()[0]) - ours
            now += int(fields.get("VmRSS", "0 kB").split()[0]) - ours
    return peak / 1024, now / 1024


def _mapped(pid: int, file: Path) -> int:
    """Return how much of a file a process holds in memory, in kB."""
    inside, total = False, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if " " in name:  # the head of a mapping, with addresses, rights and the file's path
            inside = line.endswith(str(file))
        elif inside and name == "Rss":
            total += int(value.split()[0])
    return total


def family(leader: int) -> list[int]:
    """Return the processes in the group of `leader`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ProcessLookupError):
                if os.getpgid(int(folder.name)) == leader:
                    found.append(int(folder.name))
    return found


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
