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
from itertools import islice
from typing import TYPE_CHECKING

from django_backwave.core.ahead import PATIENCE, Ahead
from django_backwave.core.dispatch import Rotation
from django_backwave.core.holding import Held, Holding
from django_backwave.core.lookout import Lookout
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
from django_backwave.core.upkeep import LOCKED_RETRY, Upkeep
from django_backwave.core.watermarks import Watermarks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django_backwave.core.protocol import AttemptKey, Claimed, Command, Event, Report

#: Reports that one settle writes at most, and jobs that one claim asks for.
BATCH = 250

#: Queues beside its own that a claim may take from, so that many short ones do not make many claims.
MORE_QUEUES = 49

#: The longest time, in seconds, that a report or a free slot waits for company.
LINGER = 0.02

#: The longest time, in seconds, between two heartbeats, so that cancel is quick.
BEAT_EVERY = 5.0

#: Seconds that handlers told to stop at shutdown are waited for, and then their reports.
STOP_GRACE, FLUSH_GRACE = 3.0, 5.0

#: The first and the longest wait, in seconds, after a database error.
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
        self._rotation = Rotation()
        self._pauses = Pauses()
        self._watermarks = Watermarks()
        self._ahead = Ahead(options.concurrency)
        self._wary = False  # claims passed over jobs that may not wait: the next is for free slots only
        self._withdrawing = False
        self._claiming: Claim | None = None
        self._lookout = Lookout(now, poll=options.poll, random=random)
        self._upkeep = Upkeep(now, random)
        self._started = 0
        self._room_since: float | None = now
        self._trouble = 0
        self._quiet_until = now
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

    def beating(self) -> list[AttemptKey]:
        """Return the attempts whose leases the next heartbeat renews."""
        return [held.key for held in self._held if not held.lost]

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
            times.append(self._waits_since() + PATIENCE)
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
            times.append(self._lookout.next_at)
            if self._rotation and self._room_since is not None:
                times.append(self._room_since + LINGER)
        if not self._claiming:
            times += self._upkeep.release_at(now)
        if not self._ending:
            times += self._upkeep.chores_at()
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
                self._held.began(key, timeout, now)
            case Completed(now, key):
                self._completed(key, now)
            case Settled(now, verdicts):
                self._settled(now, verdicts)
            case Renewed():
                return self._renewed(event)
            case Scanned():
                self._scanned(event)
            case Swept(now, command, more):
                self._upkeep.done(now, command, more=more)
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
        # Until jobs come that may wait: else each claim ahead would only lock those that may not.
        self._wary = event.passed > 0 or (self._wary and not any(job.may_wait for job in event.jobs))
        if len(event.jobs) + event.late + event.passed < event.command.limit and not more:
            for queue in (event.command.queue, *event.command.also):
                self._rotation.drop(queue)
                self._lookout.came_short(queue, event.now, busy=bool(self._rotation))
        else:
            self._rotation.served(_also_served(event))
        if self._ending:
            # Stopped while the claim was under way: what it took goes back before anything of it starts.
            if event.jobs:
                self._upkeep.want_release()
            return []
        if event.jobs or event.late:
            self._stirred(event.now)
        commands: list[Command] = []
        # Those that may not wait first: there is a free slot for each.
        for job in sorted(event.jobs, key=lambda job: job.may_wait):
            key = job.key
            if key in self._held:
                continue  # a commit was lost, and so the number given twice: it runs here already
            ends = event.sent_at + self._lease(job)
            self._held.take(Held(key, job, ends, event.now))
            commands.append(Start(job, ends, event.now))
        self._started += len(event.jobs)
        self._room_since = event.now if self._room() > 0 else None
        # What was paused while the claim was under way, and has not begun, goes back.
        paused = [job.key for job in event.jobs if self._pauses.cover(job)]
        return commands + self._withdraw(paused)

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
            self._held.drop(key)
            self._stirred(now)
        else:
            self._held.ended(held, report, now if self._ending else now + LINGER)

    def _completed(self, key: AttemptKey, now: float) -> None:
        """Take note of a success that is recorded already. Heartbeat and time-out end with it."""
        if key in self._held.overdue:
            # Its report as timed out need not be written, if it can still be had.
            self._held.buffered.pop(key, None)
        else:
            self._held.trail(key)
        self._stirred(now)

    def _settled(self, now: float, verdicts: Mapping[AttemptKey, Verdict]) -> None:
        self._unwritten = False
        self._trouble = 0
        self._stirred(now)
        for key, verdict in verdicts.items():
            if verdict is Verdict.LOCKED:
                self._held.unwritten(key, now + LOCKED_RETRY, in_doubt=False)
            else:
                del self._held.settling[key]

    def _stirred(self, now: float) -> None:
        self._lookout.stirred(now, busy=bool(self._rotation))

    def _renewed(self, event: Renewed) -> list[Command]:
        if self._upkeep.in_doubt(event.now):
            self._upkeep.want_release()
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
            self._held.renewed(held, event.sent_at + self._lease(held.job))
            commands.append(Extend(key, held.lease_ends))
            if renewal is Renewal.CANCEL_REQUESTED:
                commands.append(Tell(key, StopReason.CANCEL))
        return commands

    def _scanned(self, event: Scanned) -> None:
        self._trouble = 0
        closed = self._pauses.queues
        due = self._lookout.answered(event, closed=closed, busy=bool(self._rotation))
        if len(due) > 1 + MORE_QUEUES:
            # Workers that see the same queues begin at different ones, or each would meet the others' locks.
            start = int(self._random() * len(due))
            due = due[start:] + due[:start]
        self._rotation.add(due)

    def _woken(self, queue: str | None, now: float) -> None:
        if queue is None:
            self._lookout.by(now)
        elif queue not in self._pauses.queues and (
            self.options.queues is None or queue in self.options.queues
        ):
            self._rotation.add([queue])
            self._lookout.told(queue)

    def _paused(self, event: Paused) -> list[Command]:
        for queue in event.queues:
            self._rotation.drop(queue)
        if not self._pauses.learn(event):
            return []
        self._stirred(event.now)
        self._lookout.soon(event.now)
        # What has begun runs on.
        held = self._held.running.values()
        return self._withdraw(each.key for each in held if self._pauses.cover(each.job))

    def _failed(self, event: CommandFailed) -> None:
        match event.command:
            case Claim():
                # It may have committed, or may commit yet: whatever it took is handed back.
                self._claiming = None
                self._room_since = event.now
                self._upkeep.doubt(event.now + self.options.lease)
            case Settle(reports):
                self._unwritten = True
                for report in reports:
                    self._held.unwritten(report.job.key, event.now, in_doubt=True)
            case Scan():
                self._lookout.failed()
            case ReleaseUnknown() | Sweep() | Prune():
                self._upkeep.failed(event.command)
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
        others = [*self._chores(now), *self._scan(now)]
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

    def _chores(self, now: float) -> list[Command]:
        # A claim under way is never met by a release: that would hand back what the claim returns.
        release = [] if self._claiming else self._upkeep.release(now, self._held.keys())
        return release if self._ending else [*release, *self._upkeep.chores(now)]

    def _claim(self, now: float, *, along: bool) -> list[Command]:
        room = self._room()
        if not self._may_claim() or not self._rotation or room <= 0:
            return []
        waited = self._room_since is not None and now >= self._room_since + LINGER
        if not (along or waited) and self._held.busy and room * 2 < self._capacity:
            return []  # there will be more room in a moment: one claim for all of it
        room = min(room, BATCH)  # one batch is fetched while another runs
        slots = min(room, max(0, self.options.concurrency - self._held.busy))
        queue = self._rotation.next()
        past = self._watermarks.past(queue, now)
        also = self._rotation.others(MORE_QUEUES)
        self._claiming = self._pauses.claim(queue, room, slots, now, past=past, also=also)
        self._room_since = None
        return [self._claiming]

    def _scan(self, now: float) -> list[Command]:
        if not self._may_claim() or now < self._lookout.next_at or self._room() <= 0:
            return []
        self._lookout.sent(now)
        return [Scan(self.options.queues)]

    def _hand_back(self, now: float) -> list[Command]:
        """Take back what waits for a slot: all of it at a stop, and when it has waited for too long."""
        if not self._waiting or self._withdrawing:
            return []
        if not self._stopping:
            if now < self._waits_since() + PATIENCE:
                return []
            self._ahead.was_wrong()
        return self._withdraw(self._held.running)

    def _withdraw(self, keys: Iterable[AttemptKey]) -> list[Command]:
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
        self._stop_by(now + self.options.shutdown_timeout)
        return [Stuck(overdue), *self._hand_back(now)]

    def _stop_by(self, end: float) -> None:
        self._stopping = True
        self._stop_at = end if self._stop_at is None else min(self._stop_at, end)

    def _over(self, now: float, *, idle: bool) -> bool:
        unsettled = self._held.buffered or self._held.settling
        if self._claiming or unsettled or self._upkeep.release_pending:
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

    def _waits_since(self) -> float:
        """Return when the oldest of those that wait was claimed: they begin in the order they came in."""
        newest_first = reversed(self._held.running.values())
        return next(islice(newest_first, self._waiting - 1, None)).claimed_at

    def _room(self) -> int:
        reserved = self._claiming.limit if self._claiming else 0
        room = self._capacity - self._held.busy - reserved
        if self.options.max_jobs is not None:
            room = min(room, self.options.max_jobs - self._started - reserved)
        return room

    def _may_claim(self) -> bool:
        if self._ending or self._claiming or self._lookout.scanning or self._upkeep.releasing:
            return False
        if self._withdrawing or not self._pauses.known:
            return False
        # While reports cannot be written nothing more is taken on: so what is held stays bounded.
        return not (self._unwritten and (self._held.buffered or self._held.settling))

    def _drained(self, now: float) -> bool:
        if self._upkeep.in_doubt(now):
            return False  # a claim whose reply was lost may still commit, and is to be handed back
        return self._lookout.fresh and self._held.idle and not (self._rotation or self._claiming)

    def _lease(self, job: Claimed) -> float:
        return self.options.lease if job.lease_seconds is None else job.lease_seconds


def _also_served(event: ClaimAnswered) -> tuple[str, ...]:
    """Return the further queues that a claim came to: each up to the last one that gave it a job.

    Those in between gave all that they had, but for lower priorities, and would be looked at again and again.
    """
    also = event.command.also
    gave = {job.queue for job in event.jobs}
    last = max((place for place, queue in enumerate(also, start=1) if queue in gave), default=0)
    return also[:last]
