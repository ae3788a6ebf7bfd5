"""A worker in a child process, and the line between it and its supervisor.

The line is a pair of connected sockets. The child says its name on it before its first claim, ``beat`` about
once a second while its own threads make progress, and that it ended, if it ended in order. The supervisor
says nothing: it closes its side for a stop, and when it is gone the system does that. What was said stays
readable after the child's death, so whoever may hold a lease has been named.

An order to stop goes over the line and not by a signal, for the second signal kills a worker at once: Ctrl-C
reaches a whole process group, and a service manager may signal every process, too.

A child is a fresh interpreter with the very command line of the supervisor, not a fork of it. So nothing that
the project's modules began at their import is shared: no thread that is gone in the child, no connection in
two hands, no system library that does not bear a fork without an exec (on macOS, above all). That costs the
pages which a fork would share; in exchange a recycled child runs the code that lies on the disk. The command
line keeps each option as it was typed, by way of ``manage.py`` or ``python -m django``, and what the
interpreter was told; the environment keeps the rest, and tells the child which of its files is the line.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from enum import Enum

from django_backwave.worker import clock

#: The environment variable with the number of the child's end of the line.
VARIABLE = "BACKWAVE_LINE"


class End(Enum):
    """How a worker has ended in order."""

    ENDED = "ended"
    RECYCLED = "recycled"  # a fresh one should go on


class Line:
    """The child's end of the line."""

    @classmethod
    def inherited(cls) -> Line | None:
        """Return the line that this process was given, None if it is no child. To be asked once.

        No program that a handler starts shall believe that it is one.
        """
        number = os.environ.pop(VARIABLE, None)
        return None if number is None else cls(socket.socket(fileno=int(number)))

    def __init__(self, end: socket.socket) -> None:
        """Take an end of the line."""
        end.set_inheritable(False)
        end.setblocking(False)
        self._end = end
        self._cut = False

    @property
    def cut(self) -> bool:
        """Whether the supervisor wants a stop, or is gone."""
        if not self._cut:
            try:
                self._cut = self._end.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                self._cut = True
        return self._cut

    def started(self, name: str) -> None:
        """Say that the worker begins, and under which name its leases will be."""
        self._say(f"started {name}")

    def touch(self) -> None:
        """Say that the worker's own threads make progress; for it, the line is its heartbeat file."""
        self._say("beat")

    def ended(self, *, recycled: bool) -> None:
        """Say that the worker has ended in order, and whether a fresh one should go on."""
        self._say((End.RECYCLED if recycled else End.ENDED).value)

    def _say(self, words: str) -> None:
        # A supervisor that is gone, or listens to nobody for hours, holds up no worker.
        with contextlib.suppress(OSError):
            self._end.send(f"{words}\n".encode())


class Child:
    """The supervisor's side: a process, and what it has said."""

    def __init__(self, command: list[str]) -> None:
        """Start the process; OSError if the system refuses."""
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own command line
                    command,
                    env={**os.environ, VARIABLE: str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                )
        except BaseException:
            self._line.close()
            raise
        self._heard = b""
        self.pid = self._process.pid
        self.started_at = clock.monotonic()
        self.name: str | None = None
        self.beat_at: float | None = None
        self.end: End | None = None

    def listen(self) -> int | None:
        """Take in what the child has said; return its exit code once it has ended, a signal's negative."""
        code = self._process.poll()  # before: what it says last is read then, too
        with contextlib.suppress(OSError):
            while heard := self._line.recv(4096):
                self._heard += heard
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._take_in(line.decode())
        return code

    def _take_in(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "started":
            self.name = rest
        elif word != "beat":
            self.end = End(word)
        self.beat_at = clock.monotonic()

    def stop(self) -> None:
        """Have the child stop in order; once is enough."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        self._process.kill()

    def close(self) -> None:
        """Give up the line of a child that has ended."""
        self._line.close()


def own_command_line() -> list[str]:
    """Return the command line that would start this very process again."""
    return [sys.executable, *sys.orig_argv[1:]]
