"""The worker's whole logic, sans I/O: ``step(event)`` returns the commands to carry out.

It holds what the worker holds, and decides when to scan, claim, settle, sweep and end. It reads no clock
(events carry monotonic times), draws no random number (a source is handed in) and knows no database, so
that the same logic runs in production, in tests on a virtual clock, and in a simulator.

Invariants: no claim asks for more than the free room, which is the free slots and what may be claimed ahead
of them; a job that may not wait for a slot is claimed for a free one only; every claim is answered once; at
most one settle, one claim and one scan are under way; a report is written when a batch is full, when a claim
goes out anyway, when nothing else runs, or ``LINGER`` seconds after it came in; what runs, waits or is being
written is known to the heartbeat; what waits is handed back at a stop, at a pause, and after a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_backwave.core.ahead import PATIENCE, Ahead
from django_backwave.core.dispatch import Rotation
from django_backwave.core.holding import Held, Holding
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
    Paused,
    Prune,
    ReleaseUnknown,
    Renewal,
    Renewed,
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
    Withdraw,
    Withdrawn,
    Woken,
)
from django_backwave.core.watermarks import Watermarks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django_backwave.core.protocol import Claimed, Command, Event, Key, Report, StoreCommand

#: Reports that one settle writes at most.
BATCH = 250

#: The longest time, in seconds, that a report or a free slot waits for company.
LINGER = 0.02

#: The first wait of an idle worker, in seconds; it doubles up to the poll interval.
EAGER = 0.025

#: Seconds between sweeps, and between prunes.
SWEEP_EVERY, PRUNE_EVERY = 4.0, 60.0

#: While there is work a scan is followed by so many times as long without one, up to so many seconds.
SCAN_SHARE, SCAN_CAP = 20, 10.0

#: The longest time, in seconds, between two heartbeats, so that cancel is quick.
BEAT_EVERY = 5.0

#: Seconds that handlers told to stop at shutdown are waited for, and then their reports.
STOP_GRACE, FLUSH_GRACE = 3.0, 5.0

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


class Driver:
    """Steps from event to commands. Not thread-safe: the worker around it takes turns."""

    def __init__(self, options: Options, *, now: float, random: Callable[[], float]) -> None:
        """Begin with nothing held; ``random`` draws a number in [0, 1)."""
        self.options = options
        self._random = random
        self._held = Holding()
        self._stuck = False
        self._rotation = Rotation()
        self._pauses = Pauses()
        self._watermarks = Watermarks()
        self._ahead = Ahead(options.concurrency)
        self._wary = False  # the last claim passed over jobs that may not wait: the next is for free slots
        self._brought_at = now  # when the last claim brought something
        self._withdrawing = False
        self._claiming: Claim | None = None
        self._scanning = False
        self._scan_sent_at = now
        self._upkeep: set[type] = set()  # kinds of sweep and prune that are under way
        self._started = 0
        self._idle = 0
        self._told: set[str] = set()  # queues of which a wake-up has told
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
        self._stopping = False
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
        return [held.job.key for held in self._held if not held.lost]

    def limit_reached(self) -> bool:
        """Return whether ``max_jobs`` have been started."""
        limit = self.options.max_jobs
        return limit is not None and self._started >= limit

    def beat_every(self) -> float:
        """Return the seconds between heartbeats: a third of the shortest lease held, 5 at most."""
        shortest = min((self._lease(held.job) for held in self._held), default=BEAT_EVERY)
        return min(BEAT_EVERY, self.options.lease / 3, shortest / 3)

    def wake_at(self, now: float) -> float:
        """Return the monotonic time of the next Tick that is needed if nothing else happens."""
        errands = max(self._quiet_until, min(self._errands_at(now), default=now + BEAT_EVERY))
        times = [errands, self._held.next_lapse(), self._held.next_alarm(stopping=self._told_to_stop)]
        if self._waiting and not self._withdrawing:
            times.append(self._brought_at + PATIENCE)
        if self._stop_at is not None:
            graces = (0.0, STOP_GRACE, STOP_GRACE + FLUSH_GRACE)
            deadlines = [self._stop_at + grace for grace in graces]
            times += [deadline for deadline in deadlines if deadline > now]
        return min(times)

    def _errands_at(self, now: float) -> list[float]:
        """Return when there will be something to do at the database."""
        times: list[float] = []
        if not self._held.settling:
            times += [held.write_at for held in self._held.buffered.values()]
        if self._may_claim() and self._room() > 0:
            times.append(self._next_scan)
            if self._rotation and self._room_since is not None:
                times.append(self._room_since + LINGER)
        if self._may_release(max(now, self._release_at)):
            times.append(max(now, self._release_at))
        if not self._ending:
            upkeep = {Sweep: self._next_sweep, Prune: self._next_prune}
            times += [at for kind, at in upkeep.items() if kind not in self._upkeep]
        return times

    # Taking in what happened.

    def _take_in(self, event: Event) -> list[Command]:  # noqa: C901 - a flat table of the events
        match event:
            case ClaimAnswered():
                return self._claimed(event)
            case Finished(now, reports):
                for report in reports:
                    self._finished(report, now)
            case Withdrawn(now, reports):
                self._withdrawing = False
                self._watermarks.drop()
                self._started -= len(reports)
                for report in reports:
                    self._finished(report, now)
            case Began(now, key, timeout):
                held = self._held.running[key]
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
                self._swept(now, command, more=more)
            case CommandFailed():
                self._failed(event)
            case Woken(now, queue):
                self._woken(queue, now)
            case Paused():
                return self._paused(event)
            case StopRequested(now, patient):
                self._stopping = True
                if not patient:
                    self._stop_by(now + self.options.shutdown_timeout)
        return []

    def _claimed(self, event: ClaimAnswered) -> list[Command]:
        self._claiming = None
        self._trouble = 0
        more = self._pauses.looked(event)
        self._watermarks.answered(event)
        self._wary = event.passed > 0
        if len(event.jobs) + event.late + event.passed < event.command.limit and not more:
            self._rotation.drop(event.command.queue)
            self._told_in_vain(event.command.queue, event.now)
            if not self._rotation:
                self._next_scan = min(self._next_scan, event.now + self.options.poll)
        if self._ending:
            # Stopped while the claim was under way: what it took goes back before anything of it starts.
            self._release_due = self._release_due or bool(event.jobs)
            return []
        if event.jobs or event.late:
            self._stirred(event.now)
        commands: list[Command] = []
        # Those that may not wait first: there is a free slot for each.
        for job in sorted(event.jobs, key=lambda job: job.may_wait):
            if job.key in self._held:
                continue  # a commit was lost, and so the number given twice: it runs here already
            ends = event.sent_at + self._lease(job)
            self._held.running[job.key] = Held(job, ends, event.now)
            commands.append(Start(job, ends, event.now))
        self._started += len(event.jobs)
        self._brought_at = event.now
        self._room_since = event.now if self._room() > 0 else None
        return commands

    def _finished(self, report: Report, now: float) -> None:
        if self._room_since is None:
            self._room_since = now
        if report.took is not None:
            self._ahead.ran(report.took)
        key = report.job.key
        if self._held.trailing.pop(key, None) is not None:
            self._held.overdue.discard(key)
            if report.settled:
                self._held.buffered.pop(key, None)
            return
        held = self._held.running.get(key)
        if held is None:
            return  # this number was given twice, and has been answered for
        if report.settled:
            del self._held.running[key]
            self._stirred(now)
        else:
            self._held.ended(held, report, now if self._ending else now + LINGER)

    def _completed(self, key: Key, now: float) -> None:
        """Take note of a success that is recorded already. Heartbeat and time-out end with it."""
        if key in self._held.overdue:
            # Its report as timed out need not be written, if it can still be had.
            self._held.buffered.pop(key, None)
        else:
            self._held.trail(key)
        self._stirred(now)

    def _settled(self, now: float, verdicts: Mapping[Key, Verdict]) -> None:
        self._unwritten = False
        self._trouble = 0
        self._stirred(now)
        for key, verdict in verdicts.items():
            if verdict is Verdict.LOCKED:
                self._held.unwritten(key, now + LOCKED_RETRY, in_doubt=False)
            else:
                del self._held.settling[key]

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
                if key not in self._held.settling:
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
        if self._rotation:
            # Behind an old snapshot a scan may be dear; then it must not take most of the time.
            wait = max(wait, min(SCAN_SHARE * (event.now - self._scan_sent_at), SCAN_CAP))
        later = [event.due[queue] for queue in open_queues if event.due[queue] > 0]
        self._next_scan = event.now + min([wait, *later])

    def _told_in_vain(self, queue: str, now: float) -> None:
        """Look again soon if a wake-up told of a queue: not each job is told of, and one may be under way."""
        if queue in self._told:
            self._told.discard(queue)
            self._idle = 0
            self._next_scan = min(self._next_scan, now + EAGER)

    def _woken(self, queue: str | None, now: float) -> None:
        if queue is None:
            self._next_scan = min(self._next_scan, now)
        elif queue not in self._pauses.queues and (
            self.options.queues is None or queue in self.options.queues
        ):
            self._rotation.add([queue])
            self._told.add(queue)

    def _swept(self, now: float, command: StoreCommand, *, more: bool) -> None:
        self._upkeep.discard(type(command))
        if isinstance(command, ReleaseUnknown) and more:
            self._release_due, self._release_at = True, now + LOCKED_RETRY
        if isinstance(command, Sweep) and more:
            self._next_sweep = now
        if isinstance(command, Prune) and more:
            self._next_prune = now + 1.0

    def _paused(self, event: Paused) -> list[Command]:
        for queue in event.queues:
            self._rotation.drop(queue)
        if not self._pauses.learn(event):
            return []
        self._stirred(event.now)
        self._next_scan = min(self._next_scan, event.now + EAGER)
        # What has begun runs on.
        return self._withdraw(
            held.job.key
            for held in self._held.running.values()
            if held.job.queue in event.queues or held.job.name in event.names
        )

    def _failed(self, event: CommandFailed) -> None:
        match event.command:
            case Claim():
                # It may have committed, or may commit yet: whatever it took is handed back.
                self._claiming = None
                self._room_since = event.now
                self._doubt_until = event.now + self.options.lease
                self._release_due = True
            case Settle(reports):
                self._unwritten = True
                for report in reports:
                    self._held.unwritten(report.job.key, event.now, in_doubt=True)
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
        commands = self._held.time_outs(now, stopping=self._told_to_stop, random=self._random)
        if now >= self._quiet_until:
            commands += self._errands(now)
        return commands + self._hand_back(now) + self._held.lapsed(now) + self._end(now)

    def _errands(self, now: float) -> list[Command]:
        """Decide what to ask of the database. A settle and a claim go together: they share a round trip."""
        fresh = self._fresh_reports(now)
        others = [*self._release(now), *self._upkeep_due(now), *self._scan(now)]
        claim = self._claim(now, along=self._must_settle(fresh, now))
        if not claim and not self._must_settle(fresh, now):
            return others
        reports = self._held.sending(fresh[:BATCH])
        return [*([Settle(reports)] if reports else []), *others, *claim]

    def _fresh_reports(self, now: float) -> list[Held]:
        """Return what may be written now: nothing while a settle is under way."""
        if self._held.settling:
            return []
        return [held for held in self._held.buffered.values() if held.write_at <= now + LINGER]

    def _must_settle(self, fresh: list[Held], now: float) -> bool:
        if not fresh or not self._held.busy:
            return bool(fresh)
        full = min(BATCH, max(self.options.concurrency, self._capacity // 2))
        return len(fresh) >= full or any(held.write_at <= now for held in fresh)

    def _release(self, now: float) -> list[Command]:
        if not self._may_release(now):
            return []
        self._release_due = False
        self._upkeep.add(ReleaseUnknown)
        return [ReleaseUnknown(frozenset(self._held.keys()))]

    def _claim(self, now: float, *, along: bool) -> list[Command]:
        room = self._room()
        if not self._may_claim() or not self._rotation or room <= 0:
            return []
        waited = self._room_since is not None and now >= self._room_since + LINGER
        if not (along or waited) and self._held.busy and room * 2 < self._capacity:
            return []  # there will be more room in a moment: one claim for all of it
        slots = min(room, max(0, self.options.concurrency - self._held.busy))
        queue = self._rotation.next()
        past = self._watermarks.past(queue, now)
        self._claiming = self._pauses.claim(queue, room, slots, now, past=past)
        self._room_since = None
        return [self._claiming]

    def _scan(self, now: float) -> list[Command]:
        if not self._may_claim() or now < self._next_scan or self._room() <= 0:
            return []
        self._scanning = self._calm = True
        self._scan_sent_at = now
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

    def _hand_back(self, now: float) -> list[Command]:
        """Take back what waits for a slot: all of it at a stop, and when it has waited for too long."""
        if not self._waiting or self._withdrawing:
            return []
        if not self._stopping:
            if now < self._brought_at + PATIENCE:
                return []
            self._ahead.was_wrong()
        return self._withdraw(self._held.running)

    def _withdraw(self, keys: Iterable[Key]) -> list[Command]:
        """Take back those of these attempts that wait for a slot, if any does; the others have begun."""
        among = frozenset(keys)
        if not self._waiting or self._withdrawing or not among:
            return []
        self._withdrawing = True
        return [Withdraw(among)]

    def _end(self, now: float) -> list[Command]:
        if self.options.drain and self._drained(now):
            self._stopping = True
        commands = self._give_way(now)
        if not self._ending:
            return commands
        running = self._held.code_running()
        if self._stop_at is not None and now >= self._stop_at and not self._told_to_stop:
            self._told_to_stop = True
            commands += [Tell(job.key, StopReason.SHUTDOWN) for job in running]
        # Nothing depends any more on how overdue handlers end, and they may never.
        if self._over(now, idle=len(running) == len(self._held.overdue)):
            self._exited = True
            commands.append(Exit(tuple(running)))
        return commands

    def _give_way(self, now: float) -> list[Command]:
        """End, as at a stop, if overdue handlers hold more than half of the slots."""
        overdue = len(self._held.overdue)
        if self._ending or overdue * 2 <= self.options.concurrency:
            return []
        self._stuck = True
        self._stop_by(now + self.options.shutdown_timeout)
        return [Stuck(overdue), *self._hand_back(now)]

    def _stop_by(self, end: float) -> None:
        self._stopping = True
        self._stop_at = end if self._stop_at is None else min(self._stop_at, end)

    def _over(self, now: float, *, idle: bool) -> bool:
        unsettled = self._held.buffered or self._held.settling
        releasing = self._release_due or ReleaseUnknown in self._upkeep
        if self._claiming or unsettled or releasing:
            return self._past(now, STOP_GRACE + FLUSH_GRACE)
        return idle or self._past(now, STOP_GRACE)

    def _past(self, now: float, grace: float) -> bool:
        return self._stop_at is not None and now >= self._stop_at + grace

    # What stands where.

    @property
    def _ending(self) -> bool:
        """Whether nothing more is taken on. Not for good, if jobs that counted are taken back unbegun."""
        return self._stopping or self.limit_reached()

    @property
    def _capacity(self) -> int:
        """How many jobs may be held that have not ended: the slots, and what may wait for one."""
        return self.options.concurrency + (0 if self._wary else self._ahead.room)

    @property
    def _waiting(self) -> int:
        """How many of the jobs held wait for a slot."""
        return max(0, self._held.busy - self.options.concurrency)

    def _room(self) -> int:
        reserved = self._claiming.limit if self._claiming else 0
        room = self._capacity - self._held.busy - reserved
        if self.options.max_jobs is not None:
            room = min(room, self.options.max_jobs - self._started - reserved)
        return room

    def _may_claim(self) -> bool:
        if self._ending or self._claiming or self._scanning or ReleaseUnknown in self._upkeep:
            return False
        if self._withdrawing or not self._pauses.known:
            return False
        # While reports cannot be written nothing more is taken on: so what is held stays bounded.
        return not self._unwritten

    def _may_release(self, now: float) -> bool:
        if not self._release_due or self._claiming or ReleaseUnknown in self._upkeep:
            return False
        return now >= self._release_at

    def _drained(self, now: float) -> bool:
        if now < self._doubt_until:
            return False  # a claim whose reply was lost may still commit, and is to be handed back
        return self._fresh and self._held.idle and not (self._rotation or self._claiming)

    def _lease(self, job: Claimed) -> float:
        return self.options.lease if job.lease_seconds is None else job.lease_seconds
