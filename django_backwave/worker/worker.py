"""The worker: puts the driver, its threads and the signals together, and ends in order."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_backwave import __version__, conf, registry
from django_backwave.context import StopSwitch
from django_backwave.core.driver import Driver, Options
from django_backwave.core.protocol import (
    Completed,
    Exit,
    Extend,
    Finished,
    Settled,
    Start,
    StopRequested,
    Tell,
    Verdict,
)
from django_backwave.store import clock as database_clock
from django_backwave.worker import clock
from django_backwave.worker.coroutines import Coroutines
from django_backwave.worker.execution import Execution
from django_backwave.worker.handlers import HandlerThreads
from django_backwave.worker.heart import Heart
from django_backwave.worker.notifier import Notifier
from django_backwave.worker.pump import Pump

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from django_backwave.core.protocol import Claimed, Command, Event, Key, Report

logger = logging.getLogger("django_backwave.worker")

#: Seconds between two looks at the threads, the signals and the clock.
WATCH_EVERY = 0.1

#: Seconds between two touches of the heartbeat file.
TOUCH_EVERY = 1.0

#: Rounds that the pump and the heart may miss before the worker counts as hanging.
MISSED_ROUNDS = 3


def new_name() -> str:
    """Return the name of a new incarnation: host, process id and a random part."""
    return f"{socket.gethostname()[:200]}:{os.getpid()}:{secrets.token_hex(4)}"


class Worker:
    """One process incarnation that runs jobs. ``run`` returns the exit code."""

    def __init__(
        self,
        options: Options,
        *,
        using: str,
        name: str | None = None,
        heartbeat_file: Path | None = None,
        parent: int | None = None,
    ) -> None:
        """Prepare everything, start nothing.

        ``parent``: the process that watches over this one; the worker stops if that is gone.
        """
        self.options = options
        self.using = using
        self.name = name or new_name()
        self.grace = conf.seconds("UNROUTABLE_GRACE")
        self.keep_done = conf.seconds_or_none("KEEP_DONE")
        self.keep_dead = conf.seconds_or_none("KEEP_DEAD")
        self.exited = threading.Event()
        self._stuck: tuple[Claimed, ...] = ()
        self._lock = threading.Lock()  # the driver and the executions
        self._driver = Driver(options, now=clock.monotonic(), random=clock.random)
        self._executions: dict[Key, Execution] = {}
        self._signals: list[int] = []
        self._heartbeat_file = heartbeat_file
        self._parent = parent
        self._touched_at = -TOUCH_EVERY
        self._started_at: datetime | None = None
        self.notifier = Notifier()
        self.pump = Pump(self)
        self.heart = Heart(self)
        self._handlers = HandlerThreads(options.concurrency, finished=self._finished)
        self._coroutines = Coroutines(finished=self._finished)

    # What the threads call.

    def feed(self, event: Event) -> None:
        """Step the driver with an event and see to its commands. Safe from any thread."""
        with self._lock:
            for command in self._driver.step(event):
                self._see_to(command)
            if isinstance(event, Settled):
                self._tell_of_ends(event.verdicts)
            if isinstance(event, Finished):
                landed = [report.job.key for report in event.reports if report.settled]
                self._tell_of_ends(dict.fromkeys(landed, Verdict.APPLIED))
            interval = self._driver.beat_every()
        self.heart.hurry(interval)

    def rest(self) -> float:
        """Return how many seconds the pump may rest if nothing happens."""
        with self._lock:
            now = clock.monotonic()
            return self._driver.wake_at(now) - now

    def beating(self) -> dict[Key, datetime | None]:
        """Return the attempts whose leases are to be renewed, with their handlers' starts."""
        with self._lock:
            executions = [self._executions[key] for key in self._driver.beating()]
        return {execution.job.key: _started_at(execution) for execution in executions}

    def beat_every(self) -> float:
        """Return the seconds between two heartbeats."""
        with self._lock:
            return self._driver.beat_every()

    def description(self) -> dict[str, Any]:
        """Return what the worker's own row says."""
        if self._started_at is None:
            self._started_at = database_clock.read(self.using)
        return {
            "name": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "queues": self.options.queues,
            "names": registry.names(),
            "concurrency": self.options.concurrency,
            "version": __version__,
        }

    def _see_to(self, command: Command) -> None:
        match command:
            case Start(job, lease_ends, claimed_at):
                switch = StopSwitch(lease_ends=lease_ends, clock=clock.monotonic)
                execution = Execution(
                    job,
                    self.name,
                    switch,
                    claimed_at,
                    using=self.using,
                    completed=partial(self._completed, job.key),
                )
                self._executions[job.key] = execution
                (self._coroutines if execution.is_async else self._handlers).submit(execution)
            case Tell(key, reason):
                self._executions[key].tell(reason)
            case Extend(key, lease_ends):
                self._executions[key].switch.extend(lease_ends)
            case Exit(stuck):
                self._stuck = stuck
                self.exited.set()
            case _:
                self.pump.order(command)

    def _tell_of_ends(self, verdicts: Mapping[Key, Verdict]) -> None:
        for key, verdict in verdicts.items():
            if verdict is not Verdict.LOCKED:
                self.notifier.settled(self._executions.pop(key), verdict, grace=self.grace)

    def _completed(self, key: Key) -> None:
        """Take note, in the handler's thread, that its atomic block has recorded the success."""
        self.feed(Completed(clock.monotonic(), key))

    def _finished(self, report: Report) -> None:
        self.pump.put(Finished(clock.monotonic(), [report]))

    # The main thread.

    def run(self) -> int:
        """Work until drained, stopped or broken; return 0, or 1 if a thread of the worker died."""
        threads = self._threads()
        previous = self._catch_signals()
        self._log_start()
        try:
            self.notifier.start()
            self._handlers.start()
            self._coroutines.start()
            for thread in threads:
                thread.start()
            handlers = [*self._handlers.threads, self._coroutines.thread]
            broken = self._watch([*threads, *handlers, self.notifier.thread])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self._end(threads, broken)

    def _threads(self) -> list[threading.Thread]:
        return [
            threading.Thread(target=self.pump.run, name="backwave-pump", daemon=True),
            threading.Thread(target=self.heart.run, name="backwave-heart", daemon=True),
        ]

    def _log_start(self) -> None:
        queues = "all" if self.options.queues is None else ",".join(self.options.queues)
        logger.info(
            "action=worker_started worker=%s database=%s queues=%s concurrency=%s names=%s",
            self.name,
            self.using,
            queues,
            self.options.concurrency,
            ",".join(registry.names()) or "none",
        )

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}

    def _on_signal(self, number: int, _frame: object) -> None:
        # Only a list is touched: this may interrupt the main thread anywhere, with any lock held.
        if self._signals:
            os.write(2, b"action=worker_killed reason=second_signal\n")
            os._exit(128 + number)
        self._signals.append(number)

    @property
    def orphaned(self) -> bool:
        """Whether the process that watches over this one is gone."""
        return self._parent is not None and os.getppid() != self._parent

    def stop(self) -> None:
        """Ask the worker to stop in order, as SIGTERM does."""
        self._signals.append(signal.SIGTERM)

    def _watch(self, threads: list[threading.Thread]) -> str | None:
        """Wait for the end; return the name of a thread that died, None if all is well."""
        told = False
        while not self.exited.wait(WATCH_EVERY):
            if self.orphaned and not self._signals:
                self.stop()
            if self._signals and not told:
                told = True
                name = signal.Signals(self._signals[0]).name
                logger.info(
                    "action=worker_stopping reason=%s running=%s timeout=%s",
                    name,
                    len(self._executions),
                    self.options.shutdown_timeout,
                )
                self.pump.put(StopRequested(clock.monotonic()))
            dead = [thread.name for thread in threads if not thread.is_alive()]
            if dead and not self.exited.is_set():
                return dead[0]
            self._touch_heartbeat_file()
        return None

    def _touch_heartbeat_file(self) -> None:
        if self._heartbeat_file is None:
            return
        now = clock.monotonic()
        allowed = MISSED_ROUNDS * max(1.0, self.heart.interval)
        oldest = min(self.pump.round_at, self.heart.round_at)
        if now - oldest <= allowed and now - self._touched_at >= TOUCH_EVERY:
            self._heartbeat_file.touch()
            self._touched_at = now

    def _end(self, threads: list[threading.Thread], broken: str | None) -> int:
        self.exited.set()
        self.heart.stop()
        for thread in threads:
            thread.join(timeout=1.0)
        for job in self._stuck:
            logger.error(
                "action=handler_stuck job=%s name=%s attempt=%s: its code still runs, so its lease "
                "is left to lapse",
                job.job_id,
                job.name,
                job.attempt,
            )
        if broken is not None:
            logger.critical("action=worker_broken thread=%s: it died; leases will lapse", broken)
        logger.info("action=worker_stopped worker=%s stuck=%s", self.name, len(self._stuck))
        self.notifier.stop(timeout=5.0)
        return 0 if broken is None else 1


def _started_at(execution: Execution) -> datetime | None:
    after = execution.started_after
    return None if after is None else database_clock.after(execution.job.claimed_at, after)


def end_process(code: int) -> None:
    """End this process now, whatever threads still run.

    A pool that a library left behind joins its threads at a normal exit, and so would hang for ever on a
    handler that never returns.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
