"""The driver against a world that answers in any order, late, or not at all: what holds always.

The world moves its clock as the worker does, from one wake-up that the driver asked for to the next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_backwave.core.driver import (
    BATCH,
    FLUSH_GRACE,
    LINGER,
    LOCKED_RETRY,
    STOP_GRACE,
    TIMEOUT_GRACE,
    TROUBLE_CAP,
    Driver,
    Options,
)
from django_backwave.core.protocol import (
    Began,
    Claim,
    ClaimAnswered,
    Claimed,
    Command,
    CommandFailed,
    Event,
    Exit,
    Extend,
    Finished,
    Key,
    Overdue,
    Paused,
    Place,
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
    StoreCommand,
    Stuck,
    Sweep,
    Swept,
    Tell,
    Tick,
    Verdict,
    Woken,
)
from tests.core.bench import EPOCH, START, STORE_COMMANDS, claimed, report

QUEUES = ("mail", "reports", "thumbnails")
LEASE = 6.0

#: How far floats of this size may be off.
GRAIN = 1e-6


class World(RuleBasedStateMachine):
    """Everything around one driver; each step checks its commands, and each pause its silence."""

    concurrency, drain, max_jobs = 4, False, None
    shutdown_timeout = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.numbers = 0
        self.open: list[StoreCommand] = []
        self.running: dict[Key, Claimed] = {}
        self.ended: dict[Key, float] = {}  # reports without a final verdict → since when they may be written
        self.final: set[Key] = set()
        self.lost: set[Key] = set()
        self.doubtful: set[Key] = set()  # in a settle that failed
        self.unwritten = False  # the last settle failed
        self.time_outs: dict[Key, float] = {}  # handlers that have one → when it is over
        self.timed_out: dict[Key, float] = {}  # told of it → when
        self.told_to_stop: set[Key] = set()  # at a shutdown
        self.overdue: set[Key] = set()  # reported, and not ended
        self.started = self.events = 0
        self.last_trouble = START - TROUBLE_CAP
        self.stopped_at: float | None = None
        self.exited = False
        self.driver = Driver(
            Options(
                concurrency=self.concurrency,
                lease=LEASE,
                drain=self.drain,
                max_jobs=self.max_jobs,
                shutdown_timeout=self.shutdown_timeout,
            ),
            now=self.now,
            random=lambda: 0.5,
        )
        self.paused: frozenset[str] = frozenset()  # queues
        self.paused_names: frozenset[str] = frozenset()
        self.feed(Paused(self.now, self.paused, self.paused_names))

    # What may happen.

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.1, 0.3, 1.0, 4.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        before = None
        for _ in range(2000):
            wake = max(self.now, self.driver.wake_at(self.now))
            if wake > end or self.exited:
                break
            assert wake != before, "a Tick when it was asked for changed nothing: the worker spins"
            self.now = wake
            commands = self.feed(Tick(wake))
            before = None if commands else wake
        else:
            raise AssertionError("the worker spins")
        self.now = end
        self.check_promptness()

    @precondition(lambda self: self.of(Claim))
    @rule(share=st.sampled_from([0.0, 0.3, 1.0]), further=st.booleans())
    def claim_is_answered(self, share: float, further: bool) -> None:
        self.bring(share, further=further)

    def bring(self, share: float, *, further: bool = False) -> None:
        command = self.close(Claim)
        past = command.past
        if further and command.without and share < 1.0:  # it was stopped by paused names
            past = (Place(0, EPOCH, UUID(int=len(past) and past[0].job_id.int + 1)),)
        jobs = [self.new_job(command.queue) for _ in range(round(command.limit * share))]
        if self.stopped_at is None:
            self.started += len(jobs)
        self.feed(ClaimAnswered(self.now, command, jobs, self.now - 0.001, past=past))

    @precondition(lambda self: self.of(Scan))
    @rule(due=st.dictionaries(st.sampled_from(QUEUES), st.sampled_from([-5.0, 0.0, 0.004, 2.0, 3600.0])))
    def scan_is_answered(self, due: dict[str, float]) -> None:
        self.close(Scan)
        self.feed(Scanned(self.now, due))

    @precondition(lambda self: self.of(Settle))
    @rule(data=st.data())
    def settle_is_answered(self, data: Any) -> None:
        command = self.close(Settle)
        any_verdict = st.sampled_from([Verdict.APPLIED, Verdict.APPLIED, Verdict.STALE, Verdict.LOCKED])
        verdicts = {each.job.key: data.draw(any_verdict) for each in command.reports}
        for key, verdict in verdicts.items():
            if verdict is Verdict.LOCKED:
                self.ended[key] = self.now + LOCKED_RETRY
            else:
                del self.ended[key]
                self.final.add(key)
                self.doubtful.discard(key)
        self.unwritten = False
        self.feed(Settled(self.now, verdicts))

    @precondition(lambda self: self.of(Scan))
    @rule()
    def something_is_due(self) -> None:
        self.close(Scan)
        self.feed(Scanned(self.now, dict.fromkeys(QUEUES, 0.0)))
        if self.of(Claim):
            self.bring(1.0)

    @precondition(lambda self: self.of(Sweep, Prune, ReleaseUnknown))
    @rule(more=st.booleans())
    def upkeep_is_answered(self, more: bool) -> None:
        command = self.close(Sweep, Prune, ReleaseUnknown)
        self.feed(Swept(self.now, command, more and not isinstance(command, ReleaseUnknown)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def something_fails(self, data: Any) -> None:
        command = data.draw(st.sampled_from(self.open))
        self.open.remove(command)
        self.last_trouble = self.now
        if isinstance(command, Settle):
            self.doubtful |= {each.job.key for each in command.reports}
            self.unwritten = True
        self.feed(CommandFailed(self.now, command))

    @precondition(lambda self: self.running.keys() - self.time_outs.keys())
    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def a_handler_with_a_time_out_begins(self, seconds: float) -> None:
        key = min(self.running.keys() - self.time_outs.keys())
        self.time_outs[key] = self.now + seconds
        self.feed(Began(self.now, key, seconds))

    @precondition(lambda self: self.running.keys() - self.time_outs.keys())
    @rule()
    def a_handler_hangs(self) -> None:
        self.a_handler_with_a_time_out_begins(0.5)
        self.time_passes(0.5)
        self.time_passes(TIMEOUT_GRACE)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def handlers_end(self, data: Any) -> None:
        keys = data.draw(st.sets(st.sampled_from(sorted(self.running)), min_size=1))
        jobs = [self.running.pop(key) for key in sorted(keys)]
        self.ended |= {job.key: self.now for job in jobs if job.key not in self.overdue}
        late = keys & self.overdue
        self.overdue -= keys
        landed = late and data.draw(st.booleans(), label="the late ones had succeeded in the database")
        settling = {each.job.key for command in self.of(Settle) for each in command.reports}
        for key in late - settling if landed else ():
            self.ended.pop(key, None)
            self.doubtful.discard(key)
        reports = [replace(report(job), settled=bool(landed) and job.key in late) for job in jobs]
        self.feed(Finished(self.now, reports))

    @rule(data=st.data())
    def a_heartbeat_returns(self, data: Any) -> None:
        asked = self.driver.beating()
        answers = {key: data.draw(st.sampled_from(list(Renewal)), label="renewal") for key in asked}
        settling = {each.job.key for command in self.of(Settle) for each in command.reports}
        lost = {key for key, answer in answers.items() if answer is Renewal.LOST} - settling
        commands = self.feed(Renewed(self.now, answers, self.now - 0.001))
        told = {each.key for each in commands if isinstance(each, Tell) and each.reason.name == "LEASE_LOST"}
        assert lost <= told
        self.lost |= lost

    @rule(queue=st.sampled_from([None, *QUEUES]))
    def a_wake_up_comes(self, queue: str | None) -> None:
        self.feed(Woken(self.now, queue))

    @rule(queues=st.frozensets(st.sampled_from(QUEUES)), names=st.frozensets(st.sampled_from(["a", "b"])))
    def pauses_are_read(self, queues: frozenset[str], names: frozenset[str]) -> None:
        self.paused, self.paused_names = queues, names
        self.feed(Paused(self.now, queues, names))

    @precondition(lambda self: self.stopped_at is None and self.events > 30)  # there is much to see before
    @rule()
    def stop_is_requested(self) -> None:
        self.stopped_at = self.now
        self.feed(StopRequested(self.now))

    # What must hold of every command …

    def feed(self, event: Event) -> list[Command]:
        self.events += not isinstance(event, Tick)
        commands = self.driver.step(event)
        if self.exited:  # a heartbeat may still come back, to handlers that were left behind
            assert all(isinstance(command, Tell | Extend) for command in commands)
        for command in commands:
            self.check(command)
        return commands

    def check(self, command: Command) -> None:  # noqa: C901 - a flat table of the commands
        match command:
            case Start(job):
                assert self.stopped_at is None, "nothing is started after a stop"
                assert job.key not in self.running
                self.running[job.key] = job
            case Tell(key, StopReason.SHUTDOWN):
                assert key in self.running
                self.told_to_stop.add(key)
            case Tell(key, StopReason.TIMEOUT):
                assert key in self.running.keys() - self.timed_out.keys() - self.told_to_stop, "told once"
                assert self.time_outs[key] <= self.now
                self.timed_out[key] = self.now
            case Tell(key):
                assert key in self.running.keys() | self.ended.keys()
            case Overdue(made):
                key = made.job.key
                assert key in self.running.keys() - self.overdue, "reported once, and only who did not stop"
                assert self.timed_out[key] + TIMEOUT_GRACE <= self.now + GRAIN
                self.overdue.add(key)
                self.ended[key] = self.now
            case Stuck(overdue):
                assert overdue == len(self.overdue)
                assert overdue * 2 > self.concurrency
                assert self.stopped_at is None
                self.stopped_at = self.now
            case Extend(key):
                assert key in self.running.keys() | self.ended.keys()
            case Exit(stuck):
                self.check_exit({job.key for job in stuck})
            case _:
                assert not self.of(type(command)), "one of a kind is under way at most"
                self.check_order(command)
                self.open.append(command)

    def check_order(self, command: Command) -> None:
        match command:
            case Claim(queue, limit, without, past):
                assert self.stopped_at is None
                assert queue not in self.paused
                assert frozenset(without) == self.paused_names
                assert without or not past
                assert 1 <= limit <= self.concurrency - len(self.running)
                assert self.max_jobs is None or self.started + limit <= self.max_jobs
                assert not self.of(ReleaseUnknown), "it would hand back what this claim returns"
                assert not self.unwritten, "nothing is taken on while reports cannot be written"
            case Settle(reports):
                keys = [each.job.key for each in reports]
                assert 1 <= len(keys) == len(set(keys)) <= BATCH
                assert set(keys) <= self.ended.keys(), "written once, and only what has ended"
                assert {each.job.key for each in reports if each.sent_before} == self.doubtful & set(keys)
            case ReleaseUnknown(known):
                assert not self.of(Claim), "it would hand back what that claim returns"
                assert known == self.held

    def check_exit(self, stuck: set[Key]) -> None:
        self.exited = True
        assert stuck == self.running.keys()
        assert len(self.overdue) * 2 <= self.concurrency or self.stopped_at is not None or self.max_jobs
        over = None if self.stopped_at is None else self.now - self.stopped_at - self.shutdown_timeout
        if stuck - self.overdue:
            assert over is not None
            assert over >= STOP_GRACE - GRAIN, "everybody had the time to stop"
        if self.ended or self.of(Claim):
            assert over is not None
            assert over >= STOP_GRACE + FLUSH_GRACE - GRAIN, "no report is left behind without need"

    # … and of its silence.

    @invariant()
    def the_heart_covers_all_that_is_held_and_not_lost(self) -> None:
        if not self.exited:
            assert set(self.driver.beating()) == self.held - self.lost

    @property
    def held(self) -> set[Key]:
        return (self.running.keys() - self.overdue) | self.ended.keys()

    @invariant()
    def the_end_comes_in_time(self) -> None:
        if self.stopped_at is not None and not self.exited:
            latest = self.shutdown_timeout + STOP_GRACE + FLUSH_GRACE
            assert self.now <= self.stopped_at + latest + GRAIN

    def check_promptness(self) -> None:
        """No time-out is told late; no report waits longer than it may while the database is well."""
        if not self.exited:
            untold = self.running.keys() - self.timed_out.keys() - self.told_to_stop
            assert not [key for key in untold if self.time_outs.get(key, self.now) < self.now - GRAIN]
            silent = self.timed_out.keys() & self.running.keys() - self.overdue
            assert not [key for key in silent if self.timed_out[key] + TIMEOUT_GRACE < self.now - GRAIN]
        well = self.now - self.last_trouble > TROUBLE_CAP
        if well and not self.exited and not self.of(Settle):
            late = [key for key, since in self.ended.items() if since + LINGER < self.now - GRAIN]
            assert not late

    def teardown(self) -> None:
        """Let the database be well from now on: then every report gets its verdict."""
        for _ in range(400):
            if self.exited or not (self.ended or self.open):
                break
            self.answer_everything()
            self.time_passes(0.5)
        assert self.exited or not self.ended, "no report is lost"

    def answer_everything(self) -> None:
        while self.open:
            command = self.open.pop(0)
            match command:
                case Settle(reports):
                    verdicts = {each.job.key: Verdict.APPLIED for each in reports}
                    for key in verdicts:
                        del self.ended[key]
                        self.doubtful.discard(key)
                    self.unwritten = False
                    self.feed(Settled(self.now, verdicts))
                case Claim():
                    self.feed(ClaimAnswered(self.now, command, [], self.now, past=command.past))
                case Scan():
                    self.feed(Scanned(self.now, {}))
                case _:
                    self.feed(Swept(self.now, command, more=False))

    # Small things.

    def of(self, *kinds: type) -> list[Any]:
        return [command for command in self.open if isinstance(command, kinds)]

    def close(self, *kinds: type) -> Any:
        command = self.of(*kinds)[0]
        self.open.remove(command)
        return command

    def new_job(self, queue: str) -> Claimed:
        self.numbers += 1
        return claimed(self.numbers, queue=queue, lease_seconds=2.0 if self.numbers % 3 == 0 else None)


class NarrowWorld(World):
    """One slot."""

    concurrency = 1


class DrainingWorld(World):
    """A worker that ends by itself."""

    drain = True


class CountingWorld(World):
    """A worker that ends after a few jobs."""

    max_jobs = 6


assert STORE_COMMANDS, "World.check takes every other command for one of the store's"

quick = settings(max_examples=20, stateful_step_count=60, deadline=None)

TestWorld = World.TestCase
TestNarrowWorld = NarrowWorld.TestCase
TestDrainingWorld = DrainingWorld.TestCase
TestCountingWorld = CountingWorld.TestCase
TestWorld.settings = TestNarrowWorld.settings = quick
TestDrainingWorld.settings = TestCountingWorld.settings = quick
