"""A virtual worker: the real driver, and around it what the real worker's threads do, in virtual time.

`Process` is one incarnation, with a pump, a heart and slots as in `django_backwave.worker`; `Host` starts it
again after its end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django_backwave.context import StopSwitch
from django_backwave.core.driver import Driver, Options
from django_backwave.core.outcome import (
    Cancelled,
    ErrorInfo,
    Failed,
    InDoubt,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Unroutable,
    timed_out,
)
from django_backwave.core.protocol import (
    AttemptKey,
    Began,
    Claim,
    ClaimAnswered,
    Claimed,
    Command,
    CommandFailed,
    Completed,
    Event,
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
from django_backwave.store import atomic, claim, expire, heartbeat, pause, release, retention, settle
from django_backwave.store import clock as store_clock
from tests.app.models import Entry
from tests.simulation.clock import OwnClock
from tests.simulation.database import ALIAS, Ended
from tests.simulation.workload import Spec, run_time
from tests.simulation.world import Call, Expected, Refused, World

if TYPE_CHECKING:
    from datetime import datetime

#: Seconds for which unroutable jobs are offered, and finished ones kept where pruning is on.
GRACE, KEEP = 8.0, 8.0

#: Seconds until a job is due again whose atomic transaction could not begin, as in the real worker.
BUSY_DELAY = 1.0


class HandlerError(Expected):
    """What a handler of the simulation raises."""


class HandlerStopped(Expected):
    """A handler has stopped because it was told to."""


@dataclass(eq=False)
class Execution:
    """An attempt in the hands of a process."""

    job: Claimed
    spec: Spec
    switch: StopSwitch
    claimed_at: float
    lease_ends: float
    taken_at: float | None = None
    started_at: float | None = None
    completed: bool = False
    ended: bool = False
    stopping: bool = False
    gate: atomic.Gate | None = None

    @property
    def started_after(self) -> float | None:
        """Seconds from the claim to the handler's start."""
        return None if self.started_at is None else self.started_at - self.claimed_at


class Process:
    """One incarnation of a worker."""

    def __init__(self, host: Host, number: int) -> None:
        self.host, self.world, self.number = host, host.world, number
        self.name = f"host{host.index}:{number}"
        self.alive, self.frozen_until = True, 0
        self.place = (host.index, number)
        happens = self.world.faults.happens
        self.old_code = happens("old-code", *self.place) is not None
        recycle = happens("recycle", *self.place)
        self.options = Options(
            queues=host.queues,
            concurrency=host.concurrency,
            lease=host.lease,
            poll=host.poll,
            max_jobs=None if recycle is None else recycle.among(1, 6),
            shutdown_timeout=2.0,
        )
        self._random = self.world.streams.of("driver", *self.place)
        self.driver = Driver(self.options, now=self.now(), random=self._random.unit)
        self.executions: dict[AttemptKey, Execution] = {}
        self.running: list[Execution] = []
        self._free = host.concurrency
        self._waiting: deque[Execution] = deque()
        self._errands: deque[tuple[StoreCommand, frozenset[str]]] = deque()  # each with what was paused then
        self._inbox: list[Event] = []
        self._pumping = False
        self._paused: frozenset[str] = frozenset()
        self._ticks = self._beats = self._counted = 0
        self._beat_at = self.now()
        self._interval = self.driver.beat_every()
        self._told_to_stop = False
        self.world.note(f"{self.name} starts")
        self._plan_tick()
        self._beat()

    # What holds it together.

    def now(self) -> float:
        """Return the time on its own clock."""
        return self.host.clock.read()

    @property
    def cut_until(self) -> int:
        """The instant until which the database is out of its reach."""
        return self.host.cut_until

    @property
    def idle(self) -> bool:
        """Whether it holds nothing and has nothing under way."""
        return self.driver._held.idle and not (self._pumping or self._errands or self.running)

    def feed(self, event: Event) -> None:
        """Step the driver, and see to its commands."""
        for command in self.driver.step(event):
            self._see_to(command)
        if not self.alive:
            return
        self._plan_tick()
        interval = self.driver.beat_every()
        if interval < self._interval:
            self._interval = interval
            self._plan_beat()
        self._pump()

    def die(self, why: str) -> None:
        """End at once."""
        if self.alive:
            self.world.note(f"{self.name} dies: {why}")
            self._gone()
            self.host.died(self)

    def stop(self) -> None:
        """Take a SIGTERM."""
        if not self._told_to_stop:
            self._told_to_stop = True
            self.world.note(f"{self.name} is told to stop")
            self.feed(StopRequested(self.now()))

    def _gone(self) -> None:
        self.alive = False
        self.world.oracles.dead.add(self.name)
        self.world.drop_calls(self)

    def _plan_tick(self) -> None:
        self._ticks += 1
        number = self._ticks
        wait = self.host.clock.until(self.driver.wake_at(self.now()))
        self.world.at(max(0.0, min(wait, 60.0)) + 1e-6, lambda: self._tick(number), self)

    def _tick(self, number: int) -> None:
        if number == self._ticks:
            self.feed(Tick(self.now()))

    def _see_to(self, command: Command) -> None:  # noqa: C901 - a flat table of the commands
        match command:
            case Start(job, lease_ends, claimed_at):
                self._submit(job, lease_ends, claimed_at)
            case Withdraw(keys):
                self._withdraw(keys)
            case Tell(key, reason):
                self._tell(key, reason)
            case Extend(key, lease_ends):
                execution = self.executions.get(key)
                if execution is not None:
                    execution.switch.extend(lease_ends)
                    execution.lease_ends = lease_ends
                    self._check_belief(execution)
            case Overdue():
                self.world.saw("handler overdue")
            case Stuck():
                self.world.saw("worker stuck")
            case Exit(stuck):
                self.world.note(f"{self.name} ends, {len(stuck)} stuck")
                self.world.saw("worker ended in order" if not stuck else "worker ended with code running")
                self._gone()
                self.host.exited(self)
            case _:
                self._errands.append((command, self._paused))

    # The slots.

    def _submit(self, job: Claimed, lease_ends: float, claimed_at: float) -> None:
        spec = self.world.by_id[job.job_id.hex]
        switch = StopSwitch(lease_ends=lease_ends, clock=self.now)
        execution = Execution(job, spec, switch, claimed_at, lease_ends)
        self.executions[job.key] = execution
        if self._free:
            self._free -= 1
            self._begin(execution)
        else:
            self.world.saw("claimed ahead of a free slot")
            self._waiting.append(execution)

    def _withdraw(self, keys: frozenset[AttemptKey]) -> None:
        back = [execution for execution in self._waiting if execution.job.key in keys]
        self._waiting = deque(execution for execution in self._waiting if execution.job.key not in keys)
        reports = [self._report(execution, Released()) for execution in back]
        for execution in back:
            execution.ended = True
            self.world.saw("withdrawn before it began")
        self._put(Withdrawn(self.now(), reports))

    def _begin(self, execution: Execution) -> None:
        execution.taken_at = self.now()
        self.running.append(execution)
        self.world.at(0.0001, partial(self._route, execution), self)

    def _route(self, execution: Execution) -> None:
        """Start a handler, unless there is a reason not to."""
        if execution.switch.reason is not None:
            self.world.saw("told to stop before it began")
            self._end(execution, self._stopped(execution))
            return
        if self.old_code and execution.job.name == "new":
            self.world.saw("unroutable")
            self._end(execution, Unroutable("no handler here is named 'new'"))
            return
        execution.started_at = self.now()
        self._check_belief(execution)
        if execution.job.timeout_seconds is not None:
            self.feed(Began(self.now(), execution.job.key, execution.job.timeout_seconds))
        self._run(execution)

    def _run(self, execution: Execution) -> None:
        spec, attempt = execution.spec, execution.job.attempt
        place = (spec.number, attempt)
        seconds = run_time(*place, self.world.streams)
        if (slow := self.world.faults.happens("slow", *place)) is not None:
            seconds += slow.between(2.0, 9.0)
        if spec.job.timeout_seconds is not None and self.world.faults.happens("deaf", *place) is not None:
            seconds += 8.0  # it is told of its time-out, and does not stop in the time that it has for that
        if (collision := self.world.faults.happens("collision", *place)) is not None:
            self.world.collide(spec, seconds, collision)
        if (poison := self.world.faults.happens("poison", spec.number)) is not None:
            self.world.at(poison.between(0.0, 0.1), partial(self.die, f"job {spec.number} is poison"), self)
            return
        if not spec.atomic:
            self.world.at(seconds, partial(self._returns, execution), self)
        elif self.world.database.name == "sqlite":  # where a transaction is one step, at its end
            self.world.at(seconds, partial(self._complete, execution, 0.0), self)
        else:
            self._complete(execution, seconds)

    def _returns(self, execution: Execution) -> None:
        try:
            self._handler(execution)
        except (HandlerError, HandlerStopped, _Snooze) as error:
            self._end(execution, self._raised(execution, error))
        else:
            self._end(execution, Succeeded(f'"{execution.job.attempt}"'))

    def _handler(self, execution: Execution) -> None:
        """Do what the last line of a handler does: return, or raise."""
        happens, place = self.world.faults.happens, (execution.spec.number, execution.job.attempt)
        if execution.switch.reason is not None and happens("deaf", *place) is None:
            raise HandlerStopped
        if (fault := happens("snooze", *place)) is not None:
            raise _Snooze(fault.between(1.0, 4.0))
        if happens("give-up", *place) is not None:
            raise HandlerError("final")
        if happens("fail", *place) is not None:
            raise HandlerError("not this time")

    def _complete(self, execution: Execution, seconds: float) -> None:
        """Run a handler whose ledger row and whose success are one transaction."""
        if execution.ended:
            return
        job = execution.job
        execution.gate = gate = atomic.Gate()
        report = self._report(execution, Succeeded(f'"{job.attempt}"'))
        self.world.oracles.sends([report], self.name)

        def work(call: Call) -> None:
            with atomic.completing(gate, job, worker=self.name, report=lambda: report, using=ALIAS):
                Entry.objects.using(ALIAS).create(key=f"{job.job_id.hex}:{job.attempt}", value="")
                call.sleep(seconds)
                self._handler(execution)

        self._call("complete", work, partial(self._completed, execution), (report,))

    def _completed(self, execution: Execution, ended: Ended) -> None:
        error = ended.error
        if error is None:
            execution.completed = True
            if execution.spec.kind == "block":
                self.feed(Completed(self.now(), execution.job.key))
                self.world.at(0.4, partial(self._end, execution, Succeeded("null"), settled=True), self)
            else:
                self._end(execution, Succeeded("null"), settled=True)
            return
        if isinstance(error, atomic.LeaseGone):
            self.world.saw("atomic job refused by the fence")
            self._end(execution, Released())
        elif execution.gate is not None and execution.gate.written:
            self.world.saw("commit in doubt")
            self._end(execution, InDoubt(_info("the reply to COMMIT was lost")))
        elif isinstance(error, atomic.DatabaseBusy | Refused):
            self._end(execution, Released(BUSY_DELAY))
        else:
            self._end(execution, self._raised(execution, error))

    def _raised(self, execution: Execution, error: BaseException) -> Outcome:
        if isinstance(error, HandlerStopped):
            return self._stopped(execution)
        if isinstance(error, _Snooze):
            return Snoozed(error.seconds)
        return Failed(_info(str(error)), final=str(error) == "final")

    def _stopped(self, execution: Execution) -> Outcome:
        match execution.switch.reason:
            case StopReason.CANCEL:
                return Cancelled()
            case StopReason.TIMEOUT:
                return timed_out(execution.job.timeout_seconds or 0.0)
            case _:
                return Released()

    def _tell(self, key: AttemptKey, reason: StopReason) -> None:
        execution = self.executions.get(key)
        if execution is None or execution.ended or not execution.switch.tell(reason):
            return
        self.world.saw(f"told to stop: {reason.value}")
        place = (execution.spec.number, execution.job.attempt)
        if execution.started_at is None or execution.stopping or execution.spec.atomic:
            return  # an atomic handler looks when its work is done
        if self.world.faults.happens("deaf", *place) is None:
            execution.stopping = True
            self.world.at(0.05, partial(self._returns, execution), self)

    def _end(self, execution: Execution, outcome: Outcome, *, settled: bool = False) -> None:
        if execution.ended:
            return
        execution.ended = True
        self.running.remove(execution)
        report = self._report(execution, outcome, settled=settled)
        if execution.job.timeout_seconds is None:
            self._put(Finished(self.now(), [report]))
        else:
            self.feed(Finished(self.now(), [report]))
        if self._waiting and self.alive:
            self._begin(self._waiting.popleft())
        else:
            self._free += 1

    def _report(self, execution: Execution, outcome: Outcome, *, settled: bool = False) -> Report:
        jitter = self.world.streams.of("jitter", execution.spec.number, execution.job.attempt).unit()
        tagged = execution.spec.tagged and execution.started_at is not None
        return Report(
            job=execution.job,
            outcome=outcome,
            jitter=jitter,
            started_after=execution.started_after,
            settled=settled,
            tags=(("attempt", str(execution.job.attempt)),) if tagged else (),
            took=None if execution.taken_at is None else self.now() - execution.taken_at,
        )

    def _check_belief(self, execution: Execution) -> None:
        for other in self.world_processes():
            for rival in other.running if other is not self else ():
                same = rival.job.job_id == execution.job.job_id and rival.started_at is not None
                honest = other.host.clock.honest and self.host.clock.honest
                believes = rival.lease_ends > other.now() and not rival.switch.lease_lost
                mine = execution.lease_ends > self.now()
                if same and honest and believes and mine and not (rival.completed or execution.completed):
                    self.world.violates(
                        "belief", f"{self.name} and {other.name} both run job {execution.spec.number}"
                    )

    def world_processes(self) -> list[Process]:
        """Return all processes that live."""
        return [host.process for host in self.host.hosts if host.process is not None and host.process.alive]

    # The pump.

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        self.world.at(0.0, self._read_inbox, self)

    def _read_inbox(self) -> None:
        if self._pumping:
            return
        inbox, self._inbox = self._inbox, []
        reports = [report for event in inbox if isinstance(event, Finished) for report in event.reports]
        for event in inbox:
            if not isinstance(event, Finished) and self.alive:
                self.feed(event)
        if reports and self.alive:
            self.feed(Finished(self.now(), reports))

    def _pump(self) -> None:
        if self._pumping or not self._errands or not self.alive:
            return
        self._pumping = True
        command, paused = self._errands.popleft()
        commands = [command]
        if isinstance(command, Settle) and self._errands and isinstance(self._errands[0][0], Claim):
            command, paused = self._errands.popleft()
            commands.append(command)
        kind, work = self._errand(commands)
        sent_at = self.now()
        reports = commands[0].reports if isinstance(commands[0], Settle) else ()
        self._call(kind, work, lambda ended: self._pumped(commands, ended, sent_at), reports, paused)

    def _errand(self, commands: list[StoreCommand]) -> tuple[str, Any]:
        """Return what to do at the store: its kind, and the call."""
        match commands[0]:
            case Scan(queues):
                return "scan", lambda _: claim.scan(queues, using=ALIAS)
            case Claim() as command:
                order = self._order(command)
                return "claim", lambda _: claim.take(order, worker=self.name, using=ALIAS)
            case Settle(reports):
                return self._settling(reports, commands[1:])
            case ReleaseUnknown(known):
                return "release", lambda _: self._release(known)
            case Sweep():
                jitter = self.world.streams.of("sweep", *self.place, self._counted).unit()
                return "sweep", lambda _: self._sweep(jitter)
            case Prune():
                keep = KEEP if self.host.prunes else None
                prune = partial(retention.prune, keep_done=keep, keep_dead=keep, using=ALIAS)
                return "prune", lambda _: prune()
        raise AssertionError(commands)

    def _settling(self, reports: tuple[Report, ...], claims: list[StoreCommand]) -> tuple[str, Any]:
        self.world.oracles.sends(reports, self.name)
        given: dict[str, Any] = {"worker": self.name, "unroutable_grace": GRACE, "using": ALIAS}
        if not claims:
            return "settle", lambda _: settle.settle(reports, **given)
        order = self._order(claims[0])
        return "settle+claim", lambda _: settle.settle_and_take(reports, order, **given)

    def _order(self, command: Any) -> claim.Order:
        lease = self.options.lease
        return claim.Order(command.queue, command.limit, command.slots, lease, command.without, command.past)

    def _release(self, known: frozenset[AttemptKey]) -> bool:
        release.release_unknown(known, worker=self.name, using=ALIAS)
        return release.holds_unknown(known, worker=self.name, using=ALIAS)

    def _sweep(self, jitter: float) -> None:
        expire.expire(jitter=lambda: jitter, using=ALIAS)
        expire.expire_waiting(using=ALIAS)

    def _pumped(self, commands: list[StoreCommand], ended: Ended, sent_at: float) -> None:
        self._pumping = False
        for event in self._events(commands, ended, sent_at):
            if self.alive:
                self.feed(event)
            if isinstance(event, Settled):
                self._forget(event)
        if self.alive and not self._pumping:
            self._read_inbox()
            self._pump()

    def _events(self, commands: list[StoreCommand], ended: Ended, sent_at: float) -> list[Event]:
        now, value = self.now(), ended.value
        if ended.error is not None:
            return [CommandFailed(now, command) for command in commands]
        match commands[0]:
            case Scan():
                return [Scanned(now, value)]
            case Claim() as command:
                return [self._answered(command, value, sent_at)]
            case Settle() if len(commands) > 1:
                settled = Settled(now, dict(sorted(value[0].items())))
                return [settled, self._answered(commands[1], value[1], sent_at)]
            case Settle():
                return [Settled(now, dict(sorted(value.items())))]
            case ReleaseUnknown() as command:
                return [Swept(now, command, more=value)]
            case Sweep() | Prune() as command:
                return [Swept(now, command, more=False)]
        raise AssertionError(commands)

    def _forget(self, event: Settled) -> None:
        for key, verdict in event.verdicts.items():
            if verdict is not Verdict.LOCKED:
                self.executions.pop(key, None)

    def _answered(self, command: Any, taken: claim.Taken, sent_at: float) -> ClaimAnswered:
        return ClaimAnswered(
            self.now(),
            command,
            taken.jobs,
            sent_at,
            late=len(taken.late),
            passed=taken.passed,
            past=taken.past,
        )

    def _call(
        self,
        kind: str,
        work: Any,
        done: Any,
        reports: tuple[Report, ...] = (),
        paused: frozenset[str] = frozenset(),
    ) -> None:
        self._counted += 1
        call = Call(
            owner=self,
            kind=kind,
            work=work,
            done=done,
            place=(*self.place, kind, self._counted),
            attempts={report.job.job_id.hex: report.job.attempt for report in reports},
            paused=paused,
            reports=reports,
        )
        self.world.call(call)

    # The heart.

    def _plan_beat(self) -> None:
        self._beats += 1
        number = self._beats
        wait = self.host.clock.until(self._beat_at + self._interval)
        self.world.at(max(0.0, wait) + 1e-6, lambda: self._beat_if(number), self)

    def _beat_if(self, number: int) -> None:
        if number == self._beats:
            self._beat()

    def _beat(self) -> None:
        sent_at = self._beat_at = self.now()
        keys = [key for key in self.driver.beating() if key in self.executions]
        held = {key: self._started_at(self.executions[key]) for key in keys}
        if self.world.faults.happens("heartbeat-lost", *self.place, self._beats) is not None:
            self.world.saw("heartbeat lost")
            self._rest()
            return
        if not held:
            self._renewed(Ended({}, None), sent_at)
            return
        renew = partial(heartbeat.renew, held, worker=self.name, lease=self.options.lease, using=ALIAS)
        self._call("renew", lambda _: renew(), lambda ended: self._renewed(ended, sent_at))

    def _renewed(self, ended: Ended, sent_at: float) -> None:
        if ended.error is not None:
            self._rest()
            return
        if Renewal.LOST in ended.value.values():
            self.world.saw("heartbeat learns that a lease is lost")
        self.feed(Renewed(self.now(), dict(sorted(ended.value.items())), sent_at))
        if self.alive:
            self._call("pauses", lambda _: pause.pauses(using=ALIAS), self._pauses_read)

    def _pauses_read(self, ended: Ended) -> None:
        if ended.error is None:
            self._paused = ended.value.queues | ended.value.names
            self.feed(Paused(self.now(), ended.value.queues, ended.value.names))
        if self.alive:
            self._rest()

    def _rest(self) -> None:
        self._interval = self.driver.beat_every()
        self._plan_beat()

    @staticmethod
    def _started_at(execution: Execution) -> datetime | None:
        after = execution.started_after
        return None if after is None else store_clock.after(execution.job.claimed_at, after)


class _Snooze(Expected):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Host:
    """Where one worker runs at a time, and is started again when it has ended."""

    def __init__(self, world: World, index: int, hosts: list[Host]) -> None:
        self.world, self.index, self.hosts = world, index, hosts
        draw = world.streams.of("host", index)
        self.concurrency = draw.pick((1, 2, 2, 4))
        self.lease = draw.pick((3.0, 5.0, 8.0))
        self.poll = draw.between(1.0, 3.0)
        self.queues = ("mail", "reports") if index and draw.chance(0.3) else None
        self.prunes = draw.chance(0.3)
        self.supervised = draw.chance(0.5)
        self.clock = OwnClock(world.clock)
        self.cut_until = 0
        self.lost = False
        self.process: Process | None = None
        self._numbers = 0

    def start(self) -> None:
        """Start a process, unless the host is lost."""
        if not self.lost and not (self.process is not None and self.process.alive):
            self._numbers += 1
            self.process = Process(self, self._numbers)

    def died(self, process: Process) -> None:
        """Start again after a while; where there is a supervisor, it sees to what the dead one held."""
        draw = self.world.streams.of("death", *process.place)
        if self.supervised:
            self._see_to_estate(process.name, process.options.lease, ordered=False)
        self.world.at(draw.between(0.2, 6.0), self.start)

    def exited(self, process: Process) -> None:
        """Start again at once, as a deploy does."""
        if self.supervised:
            self._see_to_estate(process.name, process.options.lease, ordered=True)
        self.world.at(0.3, self.start)

    def wake(self, queue: str | None) -> None:
        """Deliver a notification."""
        if self.process is not None and self.process.alive:
            self.process.feed(Woken(self.process.now(), queue))

    def lose(self) -> None:
        """Be gone for ever."""
        self.lost = True
        if self.process is not None:
            self.process.die("its host is lost")

    def _see_to_estate(self, name: str, lease: float, *, ordered: bool) -> None:
        supervisor = Supervisor(self, name, ordered=ordered)
        for seconds in range(int(lease) + 2):
            self.world.at(0.1 + seconds, partial(supervisor.settle, seconds))


class Supervisor:
    """Who watches over a process, and disposes of its leases when it is gone."""

    alive, frozen_until = True, 0

    def __init__(self, host: Host, dead: str, *, ordered: bool) -> None:
        self.name = f"supervisor of {dead}"
        self._host, self._dead, self._ordered = host, dead, ordered

    def settle(self, number: int) -> None:
        """Look for leases of the dead process."""
        world = self._host.world
        jitter = world.streams.of("estate", self._dead, number).unit()
        work = partial(
            expire.expire_dead, self._dead, ordered=self._ordered, jitter=lambda: jitter, using=ALIAS
        )
        place = ("supervisor", self._dead, number)
        world.call(Call(self, "dead", lambda _: work(), lambda _: None, place))

    def die(self, why: str) -> None:
        """Stay: a supervisor's own death is another test's."""


def _info(message: str) -> ErrorInfo:
    return ErrorInfo(class_path="builtins.RuntimeError", message=message, traceback="")
