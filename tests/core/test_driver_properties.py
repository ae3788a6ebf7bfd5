"""The driver against a world that answers in any order, late, or not at all: what holds always.

The world moves its clock as the worker does, from one wake-up that the driver asked for to the next, and
runs jobs as the worker's slots do: as many at once as there are slots, and the others in the order in which
they were started.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_backwave.core.ahead import MOST, PATIENCE, Ahead
from django_backwave.core.driver import (
    BATCH,
    FLUSH_GRACE,
    LINGER,
    LOCKED_RETRY,
    STOP_GRACE,
    TROUBLE_CAP,
    Driver,
    Options,
)
from django_backwave.core.holding import TIMEOUT_GRACE
from django_backwave.core.outcome import Released
from django_backwave.core.protocol import (
    AttemptKey,
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
    Overdue,
    Paused,
    Place,
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
    StoreCommand,
    Stuck,
    Sweep,
    Swept,
    Tell,
    Tick,
    Verdict,
    Withdraw,
    Withdrawn,
    Woken,
)
from django_backwave.core.watermarks import FROM_THE_HEAD_EVERY
from tests.core.bench import EPOCH, START, STORE_COMMANDS, claimed, report

QUEUES = ("mail", "reports", "thumbnails")
NAMES = ("a", "b")
LEASE = 6.0

#: Seconds that handlers hold their slots for, as they say.
QUICK = 0.01  # forty jobs ahead of four slots
TOOK = st.sampled_from([None, 0.0005, QUICK, 0.05, 3.0])

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
        self.running: dict[AttemptKey, Claimed] = {}  # in a slot
        self.waiting: dict[AttemptKey, Claimed] = {}  # for one
        self.waits_since: dict[AttemptKey, float] = {}
        self.inbox: list[Finished | Withdrawn] = []  # what the driver has not heard of yet
        # Reports without a final verdict → since when they may be written.
        self.ended: dict[AttemptKey, float] = {}
        self.final: set[AttemptKey] = set()
        self.lost: set[AttemptKey] = set()
        self.doubtful: set[AttemptKey] = set()  # in a settle that failed
        self.unwritten = False  # the last settle failed
        self.time_outs: dict[AttemptKey, float] = {}  # handlers that have one → when it is over
        self.timed_out: dict[AttemptKey, float] = {}  # told of it → when
        self.told_to_stop: set[AttemptKey] = set()  # at a shutdown
        self.overdue: set[AttemptKey] = set()  # reported, and not ended
        self.ahead = Ahead(self.concurrency)  # our own, told the same
        self.wary = False  # the last claim passed over jobs that may not wait
        self.marks: dict[str, dict[Place, float]] = {}  # what full claims have taken, and when
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
            self.the_inbox_is_read()  # no time passes between what happens and the driver's hearing of it
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
    @rule(
        share=st.sampled_from([0.0, 0.3, 1.0]),
        hasty=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        late=st.booleans(),
        further=st.booleans(),
    )
    def claim_is_answered(self, share: float, hasty: float, late: bool, further: bool) -> None:
        self.bring(share, hasty=hasty, late=late, further=further)

    def bring(self, share: float, *, hasty: float = 0.0, late: bool = False, further: bool = False) -> None:
        """Answer the claim with a share of its limit, of which a share may not wait for a slot."""
        command = self.close(Claim)
        past = command.past
        if further and command.without and share < 1.0:  # it was stopped by paused names
            past = (Place(0, EPOCH, UUID(int=len(past) and past[0].job_id.int + 1)),)
        due = round(command.limit * share)
        soon = min(round(due * hasty), due - late) if due else 0
        passed = max(0, soon - command.slots)
        jobs = self.new_jobs(command, due - passed - (late and due > 0), hasty=soon - passed)
        self.wary = passed > 0
        self.mark(command, jobs)
        if self.stopped_at is None:
            self.started += len(jobs)
        late_count = int(late and due > 0)
        sent_at = self.now - 0.001
        answer = ClaimAnswered(self.now, command, jobs, sent_at, past=past, late=late_count, passed=passed)
        withdrawing = self.withdrawing
        starts = [each.job for each in self.feed(answer) if isinstance(each, Start)]
        assert starts == sorted(starts, key=lambda job: job.may_wait)
        assert all(job.may_wait or job.key not in self.waiting for job in starts), "it would have to wait"
        behind = [job for job in jobs if job.key in self.waiting and self.is_paused(job)]
        assert withdrawing or not behind, "what was paused under the claim goes back"

    def new_jobs(self, command: Claim, count: int, *, hasty: int) -> list[Claimed]:
        """Return jobs in queue order; the last ones are those that may not wait."""
        jobs = []
        for _ in range(count):
            self.numbers += 1
            names = ["c", *(name for name in NAMES if name not in command.without)]
            job = claimed(
                self.numbers,
                queue=command.queue,
                name=names[self.numbers % len(names)],
                priority=self.numbers % 5 // 4,
                lease_seconds=2.0 if self.numbers % 3 == 0 else None,
            )
            jobs.append(job)
        jobs.sort(key=lambda job: (-job.priority, job.due_at, job.job_id))
        return [job._replace(may_wait=n < count - hasty) for n, job in enumerate(jobs)]

    def mark(self, command: Claim, jobs: list[Claimed]) -> None:
        if len(jobs) < command.limit:
            self.marks.pop(command.queue, None)
        else:
            places = (Place(job.priority, job.due_at, job.job_id) for job in jobs)
            self.marks.setdefault(command.queue, {}).update(dict.fromkeys(places, self.now))

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
        few = [data.draw(any_verdict) for _ in command.reports[:5]]
        self.settle(command, few)

    def settle(self, command: Settle, few: list[Verdict]) -> None:
        """Give the first reports these verdicts; the others are applied."""
        verdicts = dict.fromkeys((each.job.key for each in command.reports), Verdict.APPLIED)
        verdicts |= zip(verdicts, few, strict=False)
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

    @precondition(lambda self: self.stopped_at is None)
    @rule(rounds=st.sampled_from([1, 3, 8]))
    def quick_work_flows(self, rounds: int) -> None:
        """The database does what it is asked for, and quick jobs run one batch after the other."""
        for _ in range(rounds):
            for command in list(self.open):
                match command:
                    case Scan():
                        self.scan_is_answered(dict.fromkeys(QUEUES, 0.0))
                    case Settle():
                        self.settle(self.close(Settle), [])
                    case Claim():
                        self.bring(1.0)
            while ready := self.running.keys() - self.time_outs.keys():
                self.end(sorted(ready), took=QUICK)
            self.the_inbox_is_read()
            self.time_passes(LINGER)

    @precondition(lambda self: self.waiting)
    @rule(share=st.sampled_from([0.0, 0.01]))
    def jobs_trickle_in_while_the_slots_are_taken(self, share: float) -> None:
        for _ in range(4):
            self.a_wake_up_comes("mail")
            if self.of(Scan):
                self.scan_is_answered({"mail": 0.0})
            if self.of(Claim):
                self.bring(share)
            self.time_passes(0.1)

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
    @rule(data=st.data(), took=TOOK, heard=st.booleans())
    def handlers_end(self, data: Any, took: float | None, heard: bool) -> None:
        keys = data.draw(st.sets(st.sampled_from(sorted(self.running)), min_size=1))
        late = keys & self.overdue
        landed = late and data.draw(st.booleans(), label="the late ones had succeeded in the database")
        self.end(sorted(keys), took=took, landed=bool(landed))
        if heard:
            self.the_inbox_is_read()

    def end(self, keys: list[AttemptKey], *, took: float | None, landed: bool = False) -> None:
        """Let handlers end, and those that wait begin; the driver hears of it when it reads its inbox."""
        reports = []
        for key in keys:
            job = self.running.pop(key)
            settled = landed and key in self.overdue
            reports.append(report(job)._replace(settled=settled, took=took))
        self.inbox.append(Finished(self.now, reports))
        while self.waiting and len(self.running) < self.concurrency:
            key = next(iter(self.waiting))
            self.running[key] = self.waiting.pop(key)
        if keys & self.time_outs.keys():
            self.the_inbox_is_read()  # the worker lets the driver know of these at once

    @precondition(lambda self: self.inbox)
    @rule()
    def the_inbox_is_read(self) -> None:
        """The worker makes one event of all handlers' ends, as here."""
        while self.inbox:
            events, self.inbox = self.inbox, []
            ends = [each for event in events if isinstance(event, Finished) for each in event.reports]
            for event in events:
                if isinstance(event, Withdrawn):
                    self.ended |= {each.job.key: self.now for each in event.reports}
                    self.started -= len(event.reports)
                    self.marks.clear()
                    self.inbox = [Finished(self.now, ends)]
                    self.feed(event)
                    self.inbox.pop(0)
            self.hear(ends)
            self.feed(Finished(self.now, ends))

    def hear(self, ends: list[Report]) -> None:
        settling = {each.job.key for command in self.of(Settle) for each in command.reports}
        for each in ends:
            key = each.job.key
            if each.took is not None:
                self.ahead.ran(each.took)
            if key not in self.overdue:
                self.ended[key] = self.now
            elif each.settled and key not in settling:
                self.ended.pop(key, None)
                self.doubtful.discard(key)
            self.overdue.discard(key)

    @rule(data=st.data())
    def a_heartbeat_returns(self, data: Any) -> None:
        asked = self.driver.beating()
        some = data.draw(st.lists(st.sampled_from(list(Renewal)), min_size=1, max_size=9), label="renewals")
        answers = {key: some[number % len(some)] for number, key in enumerate(asked)}
        settling = {each.job.key for command in self.of(Settle) for each in command.reports}
        lost = {key for key, answer in answers.items() if answer is Renewal.LOST} - settling
        cancelled = {key for key, answer in answers.items() if answer is Renewal.CANCEL_REQUESTED}
        renewed = {key for key, answer in answers.items() if answer is Renewal.RENEWED} | cancelled

        commands = self.feed(Renewed(self.now, answers, self.now - 0.001))

        told = {(each.key, each.reason) for each in commands if isinstance(each, Tell)}
        assert {(key, StopReason.LEASE_LOST) for key in lost} <= told
        assert {(key, StopReason.CANCEL) for key in cancelled} <= told
        assert renewed == {each.key for each in commands if isinstance(each, Extend)}
        self.lost |= lost

    @rule(queue=st.sampled_from([None, *QUEUES]))
    def a_wake_up_comes(self, queue: str | None) -> None:
        self.feed(Woken(self.now, queue))

    @rule(queues=st.frozensets(st.sampled_from(QUEUES)), names=st.frozensets(st.sampled_from(NAMES)))
    def pauses_are_read(self, queues: frozenset[str], names: frozenset[str]) -> None:
        news = (queues, names) != (self.paused, self.paused_names)
        self.paused, self.paused_names = queues, names
        withdrawing = self.withdrawing
        self.feed(Paused(self.now, queues, names))
        if news and not withdrawing:
            assert not [job for job in self.waiting.values() if self.is_paused(job)], "it goes back at once"

    def is_paused(self, job: Claimed) -> bool:
        return job.queue in self.paused or job.name in self.paused_names

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
            self.check(command, event)
        return commands

    def check(self, command: Command, event: Event) -> None:  # noqa: C901 - a flat table of the commands
        match command:
            case Start(job):
                self.check_start(job)
            case Withdraw(keys):
                self.withdraw(keys, event)
            case Tell(key, StopReason.SHUTDOWN):
                assert key in self.code_running
                self.told_to_stop.add(key)
            case Tell(key, StopReason.TIMEOUT):
                assert key in self.running.keys() - self.timed_out.keys() - self.told_to_stop, "told once"
                assert self.time_outs[key] <= self.now
                self.timed_out[key] = self.now
            case Tell(key) | Extend(key):
                assert key in self.code_running | self.ended.keys()
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
            case Exit(stuck):
                self.check_exit({job.key for job in stuck})
            case _:
                assert not self.of(type(command)), "one of a kind is under way at most"
                self.check_order(command)
                self.open.append(command)

    def check_start(self, job: Claimed) -> None:
        assert self.stopped_at is None, "nothing is started after a stop"
        assert job.key not in self.code_running
        if len(self.running) < self.concurrency:
            self.running[job.key] = job
        else:
            self.waiting[job.key] = job
            self.waits_since[job.key] = self.now

    def withdraw(self, keys: frozenset[AttemptKey], event: Event) -> None:
        """Take back what waits, at once; the driver hears of it later."""
        assert not self.withdrawing, "one at a time"
        assert keys <= self.code_running - self.overdue
        assert self.busy > self.concurrency, "somebody waits, as far as anybody knows"
        jobs = {**self.running, **self.waiting}
        news = isinstance(event, Paused | ClaimAnswered)
        if news and all(self.is_paused(jobs[key]) for key in keys & jobs.keys()):
            pass
        elif self.stopped_at is None:
            self.ahead.was_wrong()
            oldest = min((self.waits_since[key] for key in self.waiting), default=self.now)
            assert self.inbox or oldest + PATIENCE <= self.now + GRAIN
        back = [self.waiting.pop(key) for key in list(self.waiting) if key in keys]
        reports = [report(job, Released())._replace(started_after=None) for job in back]
        self.inbox.append(Withdrawn(self.now, reports))

    def check_order(self, command: Command) -> None:
        match command:
            case Claim():
                self.check_claim(command)
                assert not self.of(ReleaseUnknown), "it would hand back what this claim returns"
            case Settle(reports):
                keys = [each.job.key for each in reports]
                assert 1 <= len(keys) == len(set(keys)) <= BATCH
                assert set(keys) <= self.ended.keys(), "written once, and only what has ended"
                assert {each.job.key for each in reports if each.sent_before} == self.doubtful & set(keys)
            case ReleaseUnknown(known):
                assert not self.of(Claim), "it would hand back what that claim returns"
                assert known == self.held

    def check_claim(self, command: Claim) -> None:
        assert self.stopped_at is None
        assert command.queue not in self.paused
        assert frozenset(command.without) == self.paused_names
        free = self.concurrency - self.busy
        assert command.slots == min(command.limit, max(0, free)), "for these nobody has to wait"
        assert 1 <= command.limit <= min(BATCH, free + (0 if self.wary else self.ahead.room))
        assert self.max_jobs is None or self.started + command.limit <= self.max_jobs
        assert not (self.unwritten and self.ended), "nothing is taken on while reports cannot be written"
        assert not self.withdrawing, "what is handed back would be claimed again"
        assert len({place.priority for place in command.past}) == len(command.past)
        if not command.without:
            since = self.now - FROM_THE_HEAD_EVERY - GRAIN
            known = self.marks.get(command.queue, {})
            assert set(command.past) <= {place for place, at in known.items() if at >= since}

    def check_exit(self, stuck: set[AttemptKey]) -> None:
        self.exited = True
        assert stuck == self.code_running
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

    @invariant()
    def what_is_held_has_a_bound(self) -> None:
        assert self.busy <= self.concurrency + MOST

    @invariant()
    def nothing_waits_after_a_stop(self) -> None:
        if self.stopped_at is not None and not self.withdrawing:
            assert not self.waiting

    @property
    def withdrawing(self) -> bool:
        return any(isinstance(event, Withdrawn) for event in self.inbox)

    @property
    def unheard(self) -> set[AttemptKey]:
        """What has ended, or was taken back, and the driver does not know of it."""
        return {each.job.key for event in self.inbox for each in event.reports}

    @property
    def code_running(self) -> set[AttemptKey]:
        """What runs or waits, as far as the driver can know."""
        return {*self.running, *self.waiting, *self.unheard}

    @property
    def busy(self) -> int:
        return len(self.code_running)

    @property
    def held(self) -> set[AttemptKey]:
        return (self.code_running - self.overdue) | self.ended.keys()

    @invariant()
    def the_end_comes_in_time(self) -> None:
        if self.stopped_at is not None and not self.exited:
            latest = self.shutdown_timeout + STOP_GRACE + FLUSH_GRACE
            assert self.now <= self.stopped_at + latest + GRAIN

    def check_promptness(self) -> None:
        """No time-out is told late; nothing waits longer than it may while the database is well."""
        if not self.exited:
            untold = self.running.keys() - self.timed_out.keys() - self.told_to_stop
            assert not [key for key in untold if self.time_outs.get(key, self.now) < self.now - GRAIN]
            silent = self.timed_out.keys() & self.running.keys() - self.overdue
            assert not [key for key in silent if self.timed_out[key] + TIMEOUT_GRACE < self.now - GRAIN]
            assert not [key for key in self.waiting if self.waits_since[key] + PATIENCE < self.now - GRAIN]
        well = self.now - self.last_trouble > TROUBLE_CAP
        if well and not self.exited and not self.of(Settle):
            late = [key for key, since in self.ended.items() if since + LINGER < self.now - GRAIN]
            assert not late

    def teardown(self) -> None:
        """Let all be well from now on: every report gets its verdict, and a drain comes to its end."""
        for _ in range(400):
            if self.exited or not (self.ended or self.open or self.drain):
                break
            self.answer_everything()
            if self.drain and self.running:
                self.end(sorted(self.running), took=QUICK)
            self.time_passes(0.5)
        assert self.exited or not self.ended, "no report is lost"
        assert self.exited or not self.drain, "nothing is due, and nothing runs"

    def answer_everything(self) -> None:
        while self.open:
            command = self.open.pop(0)
            match command:
                case Settle():
                    self.settle(command, [])
                case Claim():
                    self.open.insert(0, command)
                    self.bring(0.0)
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


class NarrowWorld(World):
    """One slot."""

    concurrency = 1


class DrainingWorld(World):
    """A worker that ends by itself."""

    drain = True


class CountingWorld(World):
    """A worker that ends after a few jobs."""

    max_jobs = 6


class PatientWorld(CountingWorld):
    """A worker that ends after so many jobs that some are claimed ahead before, in two slots."""

    concurrency, max_jobs = 2, 40


assert STORE_COMMANDS, "World.check takes every other command for one of the store's"

quick = settings(max_examples=20, stateful_step_count=60, deadline=None)

TestWorld = World.TestCase
TestNarrowWorld = NarrowWorld.TestCase
TestDrainingWorld = DrainingWorld.TestCase
TestCountingWorld = CountingWorld.TestCase
TestPatientWorld = PatientWorld.TestCase
TestWorld.settings = TestNarrowWorld.settings = quick
TestDrainingWorld.settings = TestCountingWorld.settings = TestPatientWorld.settings = quick
