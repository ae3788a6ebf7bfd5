"""The worker's whole logic, sans I/O: ``step(event)`` returns the commands to carry out.

It holds what the worker holds, and decides when to scan, claim, settle, sweep and end. It reads no clock
(events carry monotonic times), draws no random number (a source is handed in) and knows no database, so
that the same logic runs in production, in tests on a virtual clock, and in a simulator.

Invariants: no claim asks for more than the free room; every claim is answered once; at most one settle, one
claim and one scan are under way; a report is written when a batch is full, when nothing else runs, or
``linger`` seconds after it came in; what runs, waits or is being written is known to the heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from django_backwave.core.dispatch import Rotation
from django_backwave.core.outcome import timed_out
from django_backwave.core.pauses import Pauses
from django_backwave.core.protocol import (
    Began,
    Claim,
    ClaimAnswered,
    CommandFailed,
    Completed,
    Exit,
    Extend,
    Finished,
    Overdue,
    Paused,
    Prune,
    ReleaseUnknown,
    Renewal,
    Renewed,
    Report,
    Scan,
    Scanned,
    Settle,
    Settled,
    Start,
    StopReason,
    StopRequested,
    Stuck,
    Sweep,
    Swept,
    Tell,
    Verdict,
    Woken,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django_backwave.core.protocol import Claimed, Command, Event, Key

#: Reports that one settle writes at most.
BATCH = 250

#: The longest time, in seconds, that a report or a free slot waits for company.
LINGER = 0.02

#: The first wait of an idle worker, in seconds; it doubles up to the poll interval.
EAGER = 0.025

#: Seconds between sweeps, and between prunes.
SWEEP_EVERY, PRUNE_EVERY = 4.0, 60.0

#: The longest time, in seconds, between two heartbeats, so that cancel is quick.
BEAT_EVERY = 5.0

#: Seconds that handlers told to stop at shutdown are waited for, and then their reports.
STOP_GRACE, FLUSH_GRACE = 3.0, 5.0

#: Seconds that a handler told of its time-out has to stop: then it is reported as timed out all the same.
TIMEOUT_GRACE = 5.0

#: Seconds before a locked row is tried again; the first and the longest wait after a database error.
LOCKED_RETRY = 0.25
TROUBLE_FIRST, TROUBLE_CAP = 0.25, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a worker is told at its start. Durations are seconds; ``queues`` None means all."""

    queues: tuple[str, ...] | None = None
    concurrency: int = 10
    lease: float = 60.0
    poll: float = 1.0
    drain: bool = False
    max_jobs: int | None = None
    shutdown_timeout: float = 25.0


class _Phase(Enum):
    RUNNING = "its handler's code may run"
    BUFFERED = "its report waits to be written"
    SETTLING = "its report is being written"


@dataclass(slots=True)
class _Held:
    """An attempt in this worker's hands."""

    job: Claimed
    lease_ends: float
    claimed_at: float
    phase: _Phase = _Phase.RUNNING
    report: Report | None = None
    write_at: float = 0.0
    lost: bool = False
    told_of_end: bool = False
    timeout: float = 0.0
    began_at: float = 0.0
    alarm_at: float | None = None  # when its time-out is over, and after that the time to stop
    told_of_time_out: bool = False


class Driver:
    """Steps from event to commands. Not thread-safe: the worker around it takes turns."""

    def __init__(self, options: Options, *, now: float, random: Callable[[], float]) -> None:
        """Begin with nothing held; ``random`` draws a number in [0, 1)."""
        self.options = options
        self._random = random
        self._held: dict[Key, _Held] = {}
        self._trailing: dict[Key, Claimed] = {}  # their outcome is decided, their code still runs
        self._overdue: set[Key] = set()  # those among them that did not stop at their time-out
        self._stuck = False
        self._rotation = Rotation()
        self._pauses = Pauses()
        self._claiming: Claim | None = None
        self._settling = False
        self._scanning = False
        self._upkeep: set[type] = set()  # kinds of sweep and prune that are under way
        self._started = 0
        self._idle = 0
        self._calm = False  # no job has come up since the latest scan was sent …
        self._fresh = False  # … and this is what it was when that scan was answered
        self._room_since: float | None = now
        self._next_scan = now
        self._next_sweep = now
        self._next_prune = now + PRUNE_EVERY * random()
        self._trouble = 0
        self._quiet_until = now
        self._doubt_until = now
        self._release_due = False
        self._release_at = now
        self._unwritten = False  # the last settle failed
        self._ending = False
        self._stop_at: float | None = None
        self._told_to_stop = False
        self._exited = False

    # What the worker around it asks.

    def step(self, event: Event) -> list[Command]:
        """Take in what happened and return what to do now, in order."""
        commands = self._take_in(event)
        if not self._exited:
            commands += self._plan(event.now)
        return commands

    def beating(self) -> list[Key]:
        """Return the attempts whose leases the next heartbeat renews."""
        return [key for key, held in self._held.items() if not held.lost]

    def beat_every(self) -> float:
        """Return the seconds between heartbeats: a third of the shortest lease held, 5 at most."""
        shortest = min((self._lease(held.job) for held in self._held.values()), default=BEAT_EVERY)
        return min(BEAT_EVERY, self.options.lease / 3, shortest / 3)

    def wake_at(self, now: float) -> float:
        """Return the monotonic time of the next Tick that is needed if nothing else happens."""
        times: list[float] = []
        if not self._settling:
            times += [held.write_at for held in self._held.values() if held.report is not None]
        if self._may_claim() and self._room() > 0:
            times.append(self._next_scan)
            if self._rotation and self._room_since is not None:
                times.append(self._room_since + LINGER)
        if self._may_release(max(now, self._release_at)):
            times.append(max(now, self._release_at))
        if not self._ending:
            upkeep = {Sweep: self._next_sweep, Prune: self._next_prune}
            times += [at for kind, at in upkeep.items() if kind not in self._upkeep]
        wake = max(self._quiet_until, min(times, default=now + BEAT_EVERY))
        wake = min([wake, *(held.lease_ends for held in self._held.values() if self._untold(held))])
        alarms = (self._alarm(held) for held in self._held.values())
        wake = min([wake, *(alarm for alarm in alarms if alarm is not None)])
        if self._stop_at is not None:
            graces = (0.0, STOP_GRACE, STOP_GRACE + FLUSH_GRACE)
            deadlines = [self._stop_at + grace for grace in graces]
            wake = min([wake, *(deadline for deadline in deadlines if deadline > now)])
        return wake

    # Taking in what happened.

    def _take_in(self, event: Event) -> list[Command]:  # noqa: C901 - a flat table of the events
        match event:
            case ClaimAnswered():
                return self._claimed(event)
            case Finished(now, reports):
                for report in reports:
                    self._finished(report, now)
            case Began(now, key, timeout):
                held = self._held[key]
                held.timeout, held.began_at, held.alarm_at = timeout, now, now + timeout
            case Completed(now, key):
                self._completed(key, now)
            case Settled(now, verdicts):
                self._settled(now, verdicts)
            case Renewed():
                return self._renewed(event)
            case Scanned():
                self._scanned(event)
            case Swept(now, command, more):
                self._upkeep.discard(type(command))
                if isinstance(command, ReleaseUnknown) and more:
                    self._release_due, self._release_at = True, now + LOCKED_RETRY
                if isinstance(command, Sweep) and more:
                    self._next_sweep = now
                if isinstance(command, Prune) and more:
                    self._next_prune = now + 1.0
            case CommandFailed():
                self._failed(event)
            case Woken(now, queue):
                if queue is None:
                    self._next_scan = min(self._next_scan, now)
                elif self.options.queues is None or queue in self.options.queues:
                    self._rotation.add({queue} - self._pauses.queues)
            case Paused():
                self._paused(event)
            case StopRequested(now):
                self._ending = True
                self._stop_by(now + self.options.shutdown_timeout)
        return []

    def _claimed(self, event: ClaimAnswered) -> list[Command]:
        self._claiming = None
        self._trouble = 0
        more = self._pauses.looked(event)
        if len(event.jobs) + event.late < event.command.limit and not more:
            self._rotation.drop(event.command.queue)
        if self._ending:
            # Stopped while the claim was under way: what it took goes back before anything of it starts.
            self._release_due = self._release_due or bool(event.jobs)
            return []
        if event.jobs or event.late:
            self._stirred(event.now)
        commands: list[Command] = []
        for job in event.jobs:
            if job.key in self._held or job.key in self._trailing:
                continue  # a commit was lost, and so the number given twice: it runs here already
            ends = event.sent_at + self._lease(job)
            self._held[job.key] = _Held(job, ends, event.now)
            commands.append(Start(job, ends, event.now))
        self._started += len(event.jobs)
        self._room_since = event.now if self._room() > 0 else None
        return commands

    def _finished(self, report: Report, now: float) -> None:
        if self._room_since is None:
            self._room_since = now
        if self._trailing.pop(report.job.key, None) is not None:
            self._overdue.discard(report.job.key)
            if report.settled:
                self._withdraw(report.job.key)
            return
        held = self._held.get(report.job.key)
        if held is None:
            return  # this number was given twice, and has been answered for
        if report.settled:
            del self._held[report.job.key]
            self._stirred(now)
            return
        held.report = report
        held.phase = _Phase.BUFFERED
        held.write_at = now if self._ending else now + LINGER

    def _completed(self, key: Key, now: float) -> None:
        """Take note of a success that is recorded already. Heartbeat and time-out end with it."""
        if key in self._overdue:
            self._withdraw(key)
        else:
            self._trailing[key] = self._held.pop(key).job
        self._stirred(now)

    def _withdraw(self, key: Key) -> None:
        """Drop the report of an overdue attempt that has recorded its success after all, if it can be."""
        held = self._held.get(key)
        if held is not None and held.phase is _Phase.BUFFERED:
            del self._held[key]

    def _settled(self, now: float, verdicts: Mapping[Key, Verdict]) -> None:
        self._settling = self._unwritten = False
        self._trouble = 0
        self._stirred(now)
        for key, verdict in verdicts.items():
            if verdict is Verdict.LOCKED:
                self._held[key].phase = _Phase.BUFFERED
                self._held[key].write_at = now + LOCKED_RETRY
            else:
                del self._held[key]

    def _stirred(self, now: float) -> None:
        """Look again soon: where there was work there may be more, and what ran may have enqueued."""
        self._fresh = self._calm = False
        self._idle = 0
        if not self._rotation:
            self._next_scan = min(self._next_scan, now + EAGER)

    def _renewed(self, event: Renewed) -> list[Command]:
        if event.now < self._doubt_until:
            self._release_due = True
        commands: list[Command] = []
        for key, renewal in event.renewals.items():
            held = self._held.get(key)
            if held is None or renewal is Renewal.UNKNOWN:
                continue
            if renewal is Renewal.LOST:
                # A settle under way may just have ended the lease itself: its verdict will tell.
                if held.phase is not _Phase.SETTLING:
                    held.lost = True
                    commands.append(Tell(key, StopReason.LEASE_LOST))
                continue
            held.lease_ends = event.sent_at + self._lease(held.job)
            commands.append(Extend(key, held.lease_ends))
            if renewal is Renewal.CANCEL_REQUESTED:
                commands.append(Tell(key, StopReason.CANCEL))
        return commands

    def _scanned(self, event: Scanned) -> None:
        self._scanning = False
        self._fresh = self._calm
        self._trouble = 0
        open_queues = event.due.keys() - self._pauses.queues  # else a paused one would wake us for nothing
        due = [queue for queue, seconds in event.due.items() if queue in open_queues and seconds <= 0]
        self._rotation.add(due)
        self._idle = 0 if due else self._idle + 1
        wait = min(self.options.poll, EAGER * 2.0 ** min(self._idle, 32))
        wait = self.options.poll if due else wait * (0.75 + 0.5 * self._random())
        later = [event.due[queue] for queue in open_queues if event.due[queue] > 0]
        self._next_scan = event.now + min([wait, *later])

    def _paused(self, event: Paused) -> None:
        # Every job held here has a slot and runs on. This is where jobs claimed ahead of a free slot, once
        # there are any, go back: those whose queue or name is in the event.
        for queue in event.queues:
            self._rotation.drop(queue)
        if self._pauses.learn(event):
            self._stirred(event.now)
            self._next_scan = min(self._next_scan, event.now + EAGER)

    def _failed(self, event: CommandFailed) -> None:
        match event.command:
            case Claim():
                # It may have committed, or may commit yet: whatever it took is handed back.
                self._claiming = None
                self._room_since = event.now
                self._doubt_until = event.now + self.options.lease
                self._release_due = True
            case Settle(reports):
                self._settling = False
                self._unwritten = True
                for report in reports:
                    held = self._held[report.job.key]
                    held.report = replace(report, sent_before=True)
                    held.phase = _Phase.BUFFERED
                    held.write_at = event.now
            case Scan():
                self._scanning = False
            case ReleaseUnknown():
                self._release_due = True
                self._upkeep.discard(ReleaseUnknown)
            case Sweep() | Prune():
                self._upkeep.discard(type(event.command))
        self._trouble += 1
        wait = min(TROUBLE_CAP, TROUBLE_FIRST * 2.0 ** min(self._trouble - 1, 32))
        self._quiet_until = event.now + wait * (0.5 + 0.5 * self._random())

    # Deciding what to do now.

    def _plan(self, now: float) -> list[Command]:
        commands = self._time_outs(now)
        if now >= self._quiet_until:
            commands += self._settle(now)
            commands += self._release(now)
            commands += self._upkeep_due(now)
            commands += self._scan(now)
            commands += self._claim(now)
        return commands + self._lapsed(now) + self._end(now)

    def _settle(self, now: float) -> list[Command]:
        buffered = [held for held in self._held.values() if held.phase is _Phase.BUFFERED]
        if self._settling or not buffered:
            return []
        due = [held for held in buffered if held.write_at <= now]
        fresh = [held for held in buffered if held.write_at <= now + LINGER]
        full = len(fresh) >= min(BATCH, self.options.concurrency)
        batch = fresh if due or full or (fresh and not self._running()) else []
        reports = []
        for held in batch[:BATCH]:
            held.phase = _Phase.SETTLING
            if held.report is not None:
                reports.append(held.report)
        self._settling = bool(reports)
        return [Settle(tuple(reports))] if reports else []

    def _release(self, now: float) -> list[Command]:
        if not self._may_release(now):
            return []
        self._release_due = False
        self._upkeep.add(ReleaseUnknown)
        return [ReleaseUnknown(frozenset(self._held))]

    def _claim(self, now: float) -> list[Command]:
        room = self._room()
        if not self._may_claim() or not self._rotation or room <= 0:
            return []
        waited = self._room_since is not None and now >= self._room_since + LINGER
        if not waited and self._running() and room * 2 < self.options.concurrency:
            return []  # more slots will be free in a moment: one claim for all of them
        self._claiming = self._pauses.claim(self._rotation.next(), room, now)
        self._room_since = None
        return [self._claiming]

    def _scan(self, now: float) -> list[Command]:
        if not self._may_claim() or now < self._next_scan or self._room() <= 0:
            return []
        self._scanning = self._calm = True
        return [Scan(self.options.queues)]

    def _upkeep_due(self, now: float) -> list[Command]:
        commands: list[Command] = []
        if self._ending:
            return commands
        if now >= self._next_sweep and Sweep not in self._upkeep:
            self._next_sweep = now + SWEEP_EVERY * (0.75 + 0.5 * self._random())
            commands.append(Sweep())
        if now >= self._next_prune and Prune not in self._upkeep:
            self._next_prune = now + PRUNE_EVERY * (0.75 + 0.5 * self._random())
            commands.append(Prune())
        self._upkeep.update(type(command) for command in commands)
        return commands

    def _lapsed(self, now: float) -> list[Command]:
        """Tell handlers whose lease is over by our own clock: nobody else may be able to (G10)."""
        over = [held for held in self._held.values() if self._untold(held) and held.lease_ends <= now]
        for held in over:
            held.told_of_end = True
        return [Tell(held.job.key, StopReason.LEASE_LOST) for held in over]

    def _time_outs(self, now: float) -> list[Command]:
        """Tell handlers that their time-out is over; report those that do not stop in spite of it."""
        commands: list[Command] = []
        for key, held in self._held.items():
            alarm = self._alarm(held)
            if alarm is None or now < alarm:
                continue
            if held.told_of_time_out:
                commands += self._give_up_on(key, held, now)
            else:
                held.told_of_time_out = True
                held.alarm_at = now + TIMEOUT_GRACE
                commands.append(Tell(key, StopReason.TIMEOUT))
        return commands

    def _give_up_on(self, key: Key, held: _Held, now: float) -> list[Command]:
        held.report = Report(
            job=held.job,
            outcome=timed_out(held.timeout, still_running=True),
            jitter=self._random(),
            started_after=held.began_at - held.claimed_at,
        )
        held.phase = _Phase.BUFFERED
        held.write_at = now
        self._trailing[key] = held.job
        self._overdue.add(key)
        # Whatever the handler does from now on, no lease covers it.
        return [Overdue(held.report), Tell(key, StopReason.LEASE_LOST)]

    def _alarm(self, held: _Held) -> float | None:
        """Return when there is something to do about an attempt's time-out, None if never."""
        if held.phase is not _Phase.RUNNING:
            return None
        # A stop has been told: who stops for that has not failed (G11).
        return None if self._told_to_stop and not held.told_of_time_out else held.alarm_at

    @staticmethod
    def _untold(held: _Held) -> bool:
        return held.phase is _Phase.RUNNING and not (held.lost or held.told_of_end)

    def _end(self, now: float) -> list[Command]:
        if self._limit_reached() or (self.options.drain and self._drained(now)):
            self._ending = True
        commands = self._give_way(now)
        if not self._ending:
            return commands
        running = self._running()
        if self._stop_at is not None and now >= self._stop_at and not self._told_to_stop:
            self._told_to_stop = True
            commands += [Tell(job.key, StopReason.SHUTDOWN) for job in running]
        # Nothing depends any more on how overdue handlers end, and they may never.
        if self._over(now, idle=len(running) == len(self._overdue)):
            self._exited = True
            commands.append(Exit(tuple(running)))
        return commands

    def _give_way(self, now: float) -> list[Command]:
        """End, as at a stop, if overdue handlers hold more than half of the slots."""
        if self._ending or len(self._overdue) * 2 <= self.options.concurrency:
            return []
        self._stuck = self._ending = True
        self._stop_by(now + self.options.shutdown_timeout)
        return [Stuck(len(self._overdue))]

    def _stop_by(self, end: float) -> None:
        self._stop_at = end if self._stop_at is None else min(self._stop_at, end)

    def _over(self, now: float, *, idle: bool) -> bool:
        unsettled = any(held.phase is not _Phase.RUNNING for held in self._held.values())
        releasing = self._release_due or ReleaseUnknown in self._upkeep
        if self._claiming or self._settling or unsettled or releasing:
            return self._past(now, STOP_GRACE + FLUSH_GRACE)
        return idle or self._past(now, STOP_GRACE)

    def _past(self, now: float, grace: float) -> bool:
        return self._stop_at is not None and now >= self._stop_at + grace

    # What stands where.

    def _running(self) -> list[Claimed]:
        running = [held.job for held in self._held.values() if held.phase is _Phase.RUNNING]
        return [*running, *self._trailing.values()]

    def _room(self) -> int:
        reserved = self._claiming.limit if self._claiming else 0
        room = self.options.concurrency - len(self._running()) - reserved
        if self.options.max_jobs is not None:
            room = min(room, self.options.max_jobs - self._started - reserved)
        return room

    def _may_claim(self) -> bool:
        if self._ending or self._claiming or self._scanning or ReleaseUnknown in self._upkeep:
            return False
        if not self._pauses.known:
            return False
        # While reports cannot be written nothing more is taken on: so what is held stays bounded.
        return not self._unwritten

    def _may_release(self, now: float) -> bool:
        if not self._release_due or self._claiming or ReleaseUnknown in self._upkeep:
            return False
        return now >= self._release_at

    def _limit_reached(self) -> bool:
        limit = self.options.max_jobs
        return limit is not None and self._started >= limit

    def _drained(self, now: float) -> bool:
        if now < self._doubt_until:
            return False  # a claim whose reply was lost may still commit, and is to be handed back
        busy = self._held or self._trailing.keys() - self._overdue
        return self._fresh and not (busy or self._rotation or self._claiming)

    def _lease(self, job: Claimed) -> float:
        return self.options.lease if job.lease_seconds is None else job.lease_seconds
