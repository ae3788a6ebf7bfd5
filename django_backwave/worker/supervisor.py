"""The supervisor: keeps a number of workers running, each in a child process.

It has one thread, keeps no connection, and runs no job. Ten times a second it looks at its children.

The first child is started alone. If that one does not come up, the others would not either: the supervisor
ends with its exit code, and the reason stands in the log once. A child that ends unexpectedly later is
started again, at first after a second, then after more and more.

What the dead have left is settled at once; see `estates.py`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_backwave.core.driver import FLUSH_GRACE, STOP_GRACE
from django_backwave.core.policy import Backoff
from django_backwave.worker import clock
from django_backwave.worker.child import Child, End
from django_backwave.worker.estates import Estates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger("django_backwave.worker")

#: Seconds between two looks at the children, and between two touches of the heartbeat file.
WATCH_EVERY, TOUCH_EVERY = 0.1, 1.0

#: The wait before a child that died is started again, by its deaths in a row.
RESTART = Backoff(base=1.0, cap=30.0, jitter=0.5)

#: Seconds after which a child has lived for long enough: its next death counts as the first again.
STEADY = 60.0

#: Seconds without a beat after which a child counts as hanging.
SILENCE = 5.0

#: Seconds that a child has, after its own graces, to say its last and end its process.
KILL_GRACE = 5.0


@dataclass(slots=True)
class _Seat:
    """One of the places for a child."""

    child: Child | None = None
    deaths: int = 0  # in a row, each soon after its start
    start_at: float = 0.0
    closed: bool = False  # nobody is started here any more


class Supervisor:
    """Keeps workers running in child processes. ``run`` returns the exit code."""

    def __init__(
        self,
        processes: int,
        command: list[str],
        *,
        using: str,
        lease: float,
        shutdown_timeout: float,
        drain: bool = False,
        heartbeat_file: Path | None = None,
        parent: int | None = None,
        jitter: Callable[[], float] = clock.random,
    ) -> None:
        """Prepare everything, start nothing.

        ``command`` starts one child. ``using``: where its leases are. ``parent``: the process that watches
        over this one. ``jitter`` draws a random number in [0, 1). The others are as for the children.
        """
        self.exited = threading.Event()
        self._command = command
        self._patience = shutdown_timeout + STOP_GRACE + FLUSH_GRACE + KILL_GRACE
        self._drain = drain
        self._heartbeat_file = heartbeat_file
        self._parent = parent
        self._jitter = jitter
        self._seats = [_Seat() for _ in range(processes)]
        self._estates = Estates(using=using, lease=lease, jitter=jitter)
        self._proven = False  # a child has come up
        self._asked = False
        self._signals: list[int] = []
        self._kill_at: float | None = None  # once a stop has been ordered
        self._code = 0
        self._touched_at = -TOUCH_EVERY

    def run(self) -> int:
        """Keep the workers running until stopped, or drained, or until the first does not come up.

        Return 0 if all that had to end has ended with 0.
        """
        previous = self._catch_signals()
        logger.info("action=supervisor_started pid=%s processes=%s", os.getpid(), len(self._seats))
        try:
            while not self._over():
                self._round(clock.monotonic())
                self.exited.wait(WATCH_EVERY)
            self._estates.settle_all(clock.monotonic())
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.exited.set()
        logger.info("action=supervisor_stopped pid=%s code=%s", os.getpid(), self._code)
        return self._code

    def stop(self) -> None:
        """Ask for a stop in order, as SIGTERM does. Safe from any thread."""
        self._asked = True

    @property
    def orphaned(self) -> bool:
        """Whether the process that watches over this one is gone."""
        return self._parent is not None and os.getppid() != self._parent

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._signals:
            for child in self._children():
                child.kill()
            os.write(2, b"action=worker_killed reason=second_signal\n")
            os._exit(128 + number)
        self._signals.append(number)

    def _children(self) -> list[Child]:
        return [seat.child for seat in self._seats if seat.child is not None]

    def _over(self) -> bool:
        ending = self._kill_at is not None or all(seat.closed for seat in self._seats)
        return ending and not self._children()

    def _round(self, now: float) -> None:
        if (self._signals or self._asked or self.orphaned) and self._kill_at is None:
            self._stop(now)
        for seat in self._seats:
            if seat.child is not None:
                self._look_at(seat, seat.child, now)
        if self._kill_at is None:
            self._start_due(now)
        elif now >= self._kill_at:
            self._kill_the_rest()
        self._estates.settle(now)
        self._touch_heartbeat_file(now)

    # Starts and ends.

    def _start_due(self, now: float) -> None:
        for seat in self._seats:
            if seat.child is None and not seat.closed and seat.start_at <= now:
                try:
                    seat.child = Child(self._command)
                except OSError as error:  # the system has no process or memory left to give
                    self._died(seat, f"error={error.strerror!r}", now)
            if not self._proven:
                break

    def _look_at(self, seat: _Seat, child: Child, now: float) -> None:
        """Take in what a child has said, and see to its end."""
        code = child.listen()
        self._proven = self._proven or child.name is not None
        if code is None:
            return
        child.close()
        seat.child = None
        ordered = code == 0 and child.end is not None
        if child.name is not None:
            self._estates.add(child.name, now, ordered=ordered)
        if self._kill_at is not None:
            if not ordered and child.name is not None:
                self._code = 1
        elif ordered:
            logger.info("action=child_ended worker=%s recycled=%s", child.name, child.end is End.RECYCLED)
            seat.deaths = 0
            seat.closed = self._drain and child.end is not End.RECYCLED
        else:
            if now - child.started_at >= STEADY:
                seat.deaths = 0
            self._died(seat, _how(code), now, child=child, code=code)

    def _died(self, seat: _Seat, how: str, now: float, *, child: Child | None = None, code: int = 1) -> None:
        """Take note of an end that nobody had asked for, and decide when to start again."""
        seat.deaths += 1
        begun = child is not None and child.name is not None
        if not self._proven or (self._drain and not begun):
            # What keeps one from coming up keeps all; and a drain cannot wait until somebody has mended it.
            logger.critical("action=child_not_started %s: it is not tried again", how)
            self._code = max(1, code)
            seat.closed = True
            if not self._proven:
                self._stop(now)
            return
        delay = RESTART.delay(seat.deaths, jitter=self._jitter())
        seat.start_at = now + delay
        if child is not None and child.name is not None:
            logger.error(
                "action=child_died worker=%s %s deaths=%s restart_in=%.1f",
                child.name,
                how,
                seat.deaths,
                delay,
            )
        else:
            logger.error(
                "action=child_not_started %s deaths=%s restart_in=%.1f: it ended before it could work",
                how,
                seat.deaths,
                delay,
            )

    def _stop(self, now: float) -> None:
        self._kill_at = now + self._patience
        children = self._children()
        for child in children:
            child.stop()
        if self._signals or self._asked:
            reason = signal.Signals(self._signals[0]).name if self._signals else "asked"
            logger.info("action=supervisor_stopping reason=%s children=%s", reason, len(children))

    def _kill_the_rest(self) -> None:
        self._kill_at = float("inf")
        for child in self._children():
            logger.error("action=child_killed worker=%s: it has not ended in time", child.name or "unnamed")
            child.kill()

    # The heartbeat file.

    def _touch_heartbeat_file(self, now: float) -> None:
        """Touch it while every child that should run does, and makes progress."""
        if self._heartbeat_file is None or now - self._touched_at < TOUCH_EVERY:
            return
        if all(self._is_well(seat, now) for seat in self._seats):
            self._heartbeat_file.touch()
            self._touched_at = now

    def _is_well(self, seat: _Seat, now: float) -> bool:
        if seat.child is None:
            return seat.closed or self._kill_at is not None
        return seat.child.beat_at is not None and now - seat.child.beat_at <= SILENCE


def _how(code: int) -> str:
    if code >= 0:
        return f"code={code}"
    names = {each.value: each.name for each in signal.Signals}  # not all numbers have one
    return f"signal={names.get(-code, -code)}"
