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

from django_backwave import __version__, conf, hooks, registry
from django_backwave.context import StopSwitch
from django_backwave.core.driver import Driver, Options
from django_backwave.core.protocol import (
    Began,
    ClaimAnswered,
    Completed,
    Exit,
    Extend,
    Finished,
    Overdue,
    Renewal,
    Settled,
    Start,
    StopRequested,
    Stuck,
    Tell,
    Tick,
    Verdict,
    Withdraw,
    Withdrawn,
)
from django_backwave.notes import Notes
from django_backwave.store import clock as database_clock
from django_backwave.store.locking import has_row_locks
from django_backwave.worker import clock, memory, signals
from django_backwave.worker.execution import Execution
from django_backwave.worker.heart import Heart
from django_backwave.worker.listener import Listener, listening_alias
from django_backwave.worker.notifier import Notifier
from django_backwave.worker.pump import Pump
from django_backwave.worker.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from django_backwave.core.protocol import AttemptKey, Claimed, Command, Event, Report
    from django_backwave.notes import Progress
    from django_backwave.worker.child import Line

logger = logging.getLogger("django_backwave.worker")

#: Seconds between two looks at the threads, the signals and the clock.
WATCH_EVERY = 0.1

#: Seconds between two touches of the heartbeat file.
TOUCH_EVERY = 1.0

#: Seconds between two looks at the memory in use.
WEIGH_EVERY = 1.0

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
        handlers_using: str | None = None,
        name: str | None = None,
        heartbeat_file: Path | None = None,
        parent: int | None = None,
        line: Line | None = None,
        max_memory: int | None = None,
    ) -> None:
        """Prepare everything, start nothing.

        ``using``: the alias of the jobs' database for the worker's own connections. ``handlers_using``: the
        one by which handlers know it, if that is another. ``parent``: the process that watches over this one;
        the worker stops if that is gone. ``line``: the one to the supervisor whose child this is.
        ``max_memory``: the bytes above which the worker ends.
        """
        self.options = options
        self.using = using
        self.handlers_using = handlers_using or using
        self.name = name or new_name()
        self.grace = conf.seconds("UNROUTABLE_GRACE")
        self.keep_done = conf.seconds_or_none("KEEP_DONE")
        self.keep_dead = conf.seconds_or_none("KEEP_DEAD")
        self._around = hooks.around()  # a wrong path stops the worker, and not each of its jobs
        self.exited = threading.Event()
        self._stuck: tuple[Claimed, ...] = ()
        self._lock = threading.Lock()  # the driver and the executions
        self._driver = Driver(options, now=clock.monotonic(), random=clock.random)
        self._executions: dict[AttemptKey, Execution] = {}
        self._overdue: dict[AttemptKey, Execution] = {}  # reported as timed out, and not ended
        self._one_writer = not has_row_locks(using)
        self._failed = False
        self._signals: list[int] = []
        self._signalled = False
        self._line = line
        self._heartbeat_file = line or heartbeat_file
        self._parent = parent
        self._touched_at = -TOUCH_EVERY
        self._max_memory = max_memory
        self._weighed_at = clock.monotonic()
        self._outgrown = False
        self._started_at: datetime | None = None
        self.notifier = Notifier()
        self.pump = Pump(self)
        self.heart = Heart(self)
        self._listener: Listener | None = None
        self._slots = Slots(options.concurrency, finished=self._finished)

    # What the threads call.

    def feed(self, event: Event) -> None:
        """Step the driver with an event and see to its commands. Safe from any thread."""
        if isinstance(event, ClaimAnswered):
            self.notifier.listen()
        with self._lock:
            for command in self._driver.step(event):
                self._see_to(command)
            if isinstance(event, Settled):
                self._tell_of_ends(event.verdicts)
            if isinstance(event, Finished):
                for report in event.reports:
                    self._ended(report)
            # Only what comes in can shorten it.
            interval = self._driver.beat_every() if isinstance(event, ClaimAnswered) else None
        if interval is not None:
            self.heart.hurry(interval)

    def rest(self) -> float:
        """Return how many seconds the pump may rest if nothing happens."""
        with self._lock:
            now = clock.monotonic()
            return self._driver.wake_at(now) - now

    def beating(self) -> dict[AttemptKey, datetime | None]:
        """Return the attempts whose leases are to be renewed, with their handlers' starts."""
        with self._lock:
            executions = self._beating()
        return {execution.job.key: _started_at(execution) for execution in executions}

    def told(self) -> dict[AttemptKey, tuple[Progress, str]]:
        """Return the progress that handlers have told and nobody has written, as it is and as JSON text."""
        with self._lock:
            executions = self._beating()
        news = {execution.job.key: (execution, execution.notes.news) for execution in executions}
        return {
            key: (progress, execution.encoded_progress(progress))
            for key, (execution, progress) in news.items()
            if progress is not None
        }

    def wrote(
        self, told: Mapping[AttemptKey, tuple[Progress, str]], renewals: Mapping[AttemptKey, Renewal]
    ) -> bool:
        """Take note of what a heartbeat has written; return whether there is something to write again."""
        with self._lock:
            executions = {key: self._executions[key] for key in told if key in self._executions}
        for key, execution in executions.items():
            if renewals.get(key) in (Renewal.RENEWED, Renewal.CANCEL_REQUESTED):
                execution.notes.wrote(told[key][0])
        lost = {key for key, renewal in renewals.items() if renewal is Renewal.LOST}
        return any(execution.notes.news for key, execution in executions.items() if key not in lost)

    def _beating(self) -> list[Execution]:
        # One that was overdue, and has succeeded all the same, is told of already.
        return [self._executions[key] for key in self._driver.beating() if key in self._executions]

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
                job, key = self._with_time_out(job), job.key
                switch = StopSwitch(lease_ends=lease_ends, clock=clock.monotonic)
                execution = Execution(
                    job,
                    self.name,
                    switch,
                    claimed_at,
                    using=self.handlers_using,
                    marks_using=self.using,
                    completed=partial(self._completed, key),
                    began=self._began,
                    notes=Notes(told=self.heart.progress_told),
                    around=self._around,
                )
                self._executions[key] = execution
                self._slots.submit(execution)
            case Withdraw(keys):
                back = [execution.never_ran() for execution in self._slots.withdraw(keys)]
                self.pump.put(Withdrawn(clock.monotonic(), back))
            case Tell(key, reason):
                self._reach(key, lambda execution: execution.tell(reason))
            case Overdue(report):
                execution = self._executions[report.job.key]
                execution.overdue = report
                self._overdue[report.job.key] = execution
                self.notifier.overdue(execution)
            case Stuck(overdue):
                self._failed = True
                logger.critical(
                    "action=worker_stuck worker=%s overdue=%s concurrency=%s: too many handlers do not stop "
                    "at their time-outs; it ends, so that a fresh process can take over",
                    self.name,
                    overdue,
                    self.options.concurrency,
                )
            case Extend(key, lease_ends):
                self._reach(key, lambda execution: execution.switch.extend(lease_ends))
            case Exit(stuck):
                self._stuck = stuck
                self.exited.set()
            case _:
                self.pump.order(command)

    def _reach(self, key: AttemptKey, act: Callable[[Execution], object]) -> None:
        """Act on an attempt's execution, unless its end has been told of already, as ``_beating`` says."""
        execution = self._executions.get(key) or self._overdue.get(key)
        if execution is not None:
            act(execution)

    def _tell_of_ends(self, verdicts: Mapping[AttemptKey, Verdict]) -> None:
        ended = [
            (self._executions.pop(key), verdict)
            for key, verdict in verdicts.items()
            if verdict is not Verdict.LOCKED and key in self._executions
        ]
        self.notifier.settled(ended, grace=self.grace)

    def _ended(self, report: Report) -> None:
        """Tell of ends that no verdict follows: a success written already, or a handler that was overdue."""
        key = report.job.key
        overdue = self._overdue.pop(key, None)
        if overdue is not None and not report.settled:
            self.notifier.too_late(overdue, report)
        elif report.settled:
            if overdue is not None:  # its success had come first, and the fence refuses the time-out
                overdue.overdue = None
                self._executions[key] = overdue
            self._tell_of_ends({key: Verdict.APPLIED})

    def _with_time_out(self, job: Claimed) -> Claimed:
        """Return the job with the time-out that it gets where it has none of its own.

        Where the database has one writer at a time, an atomic job that outlasts its lease costs its
        neighbours theirs. Whether a job is atomic is not stored, so this is the first place that knows.
        """
        if job.timeout_seconds is not None or not self._one_writer:
            return job
        task = registry.resolve(job.name)
        if task is None or not task.atomic:
            return job
        lease = self.options.lease if job.lease_seconds is None else job.lease_seconds
        return job._replace(timeout_seconds=lease / 2)

    def _began(self, execution: Execution) -> None:
        """Take note, in the handler's thread, that it starts: from now on its time counts."""
        self.notifier.began(execution)
        timeout = execution.job.timeout_seconds
        if timeout is not None:
            self.feed(Began(clock.monotonic(), execution.job.key, timeout))

    def _completed(self, key: AttemptKey) -> None:
        """Take note, in the handler's thread, that its atomic block has recorded the success."""
        self.feed(Completed(clock.monotonic(), key))

    def _finished(self, report: Report) -> None:
        ended = Finished(clock.monotonic(), [report])
        if report.job.timeout_seconds is None:
            self.pump.put(ended)
        else:
            self._feed_at_once(ended)

    def _feed_at_once(self, event: StopRequested | Finished) -> None:
        # However long the pump may be waiting for the database: the time that handlers have to stop in is
        # running.
        self.feed(event)
        self.pump.put(Tick(event.now))

    # The main thread.

    def run(self) -> int:
        """Work until drained, stopped, stuck or broken; return 0, or 1 if stuck or a thread died."""
        threads = self._threads()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread:
            signals.catch(self._on_signal)
        if self._line is not None:
            self._line.started(self.name)
        self._log_start()
        try:
            self.notifier.start()
            handlers = self._slots.start()
            for thread in threads:
                thread.start()
            broken = self._watch([*threads, *handlers, self.notifier.thread])
        finally:
            if in_main_thread:
                signals.let_go()
        return self._end(threads, broken)

    def _threads(self) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self.pump.run, name="backwave-pump", daemon=True),
            threading.Thread(target=self.heart.run, name="backwave-heart", daemon=True),
        ]
        alias = None if self.options.drain else listening_alias(self.using)  # one that drains never idles
        if alias is not None:
            self._listener = Listener(self, alias)
            threads.append(threading.Thread(target=self._listener.run, name="backwave-listener", daemon=True))
        return threads

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

    def _on_signal(self, number: int, _frame: object) -> None:
        # Only a list is touched: this may interrupt the main thread anywhere, with any lock held.
        if self._signalled:
            os.write(2, b"action=worker_killed reason=second_signal\n")
            os._exit(128 + number)
        self._signalled = True
        self._signals.append(number)

    @property
    def orphaned(self) -> bool:
        """Whether the process that watches over this one is gone."""
        return self._parent is not None and os.getppid() != self._parent

    def stop(self) -> None:
        """Ask the worker to stop in order, as SIGTERM does."""
        self._signals.append(signal.SIGTERM)

    def _tick(self, *, stopping: bool) -> None:
        # The pump may be waiting for the database, and time-outs must not; at a stop neither must the ends of
        # handlers, or they would seem to run for ever.
        now = clock.monotonic()
        for event in self.pump.events(0.0) if stopping else [Tick(now)]:
            self.feed(event)
        if stopping:
            self.pump.put(Tick(now))

    def _watch(self, threads: list[threading.Thread]) -> str | None:
        """Wait for the end; return the name of a thread that died, None if all is well."""
        told = False
        while not self.exited.wait(WATCH_EVERY):
            if (self.orphaned or (self._line is not None and self._line.cut)) and not self._signals:
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
                self._feed_at_once(StopRequested(clock.monotonic()))
            dead = [thread.name for thread in threads if not thread.is_alive()]
            if dead and not self.exited.is_set():
                return dead[0]
            self._touch_heartbeat_file()
            self._weigh()
            self._tick(stopping=told)
        return None

    @property
    def recycled(self) -> bool:
        """Whether it has ended for ``max_jobs`` or ``max_memory``, so that a fresh one should go on."""
        with self._lock:
            return self._outgrown or self._driver.limit_reached()

    def _weigh(self) -> None:
        """Claim nothing more, and end after what runs, once this process has grown too large."""
        now = clock.monotonic()
        if self._max_memory is None or self._outgrown or now - self._weighed_at < WEIGH_EVERY:
            return
        self._weighed_at = now
        resident = memory.resident()
        if resident > self._max_memory:
            self._outgrown = True
            logger.info(
                "action=memory_reached worker=%s megabytes=%s limit=%s running=%s: it claims nothing more, "
                "and ends after what runs",
                self.name,
                resident // memory.MEGABYTE,
                self._max_memory // memory.MEGABYTE,
                len(self._executions),
            )
            self._feed_at_once(StopRequested(now, patient=True))

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
        if self._listener is not None:
            self._listener.stop()
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
        return 1 if self._failed or broken is not None else 0


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
