"""The scheduler: what happens when, in virtual time, and store calls step by step."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from django.db import OperationalError

from django_backwave.store.atomic import DatabaseBusy, LeaseGone
from tests.simulation.clock import SECOND, Clock
from tests.simulation.database import Answer, Database, Ended, Parked, Running
from tests.simulation.faults import Faults, Plan
from tests.simulation.oracles import Oracles, Violation
from tests.simulation.streams import Stream, Streams
from tests.simulation.workload import HORIZON, Spec, workload

if TYPE_CHECKING:
    from django_backwave.core.protocol import Report

#: Events after which a run is given up, in all and within one instant.
MOST_EVENTS, MOST_AT_ONCE = 30_000, 2_000


#: Calls whose owner goes on without them after a while. A handler's own transaction is not among them.
IMPATIENT = frozenset({"scan", "claim", "settle", "settle+claim", "sweep", "prune", "renew"})


class Died(BaseException):
    """The process that made a call is gone: its connection closes, and what was not committed rolls back."""


class Unreachable(OperationalError):
    """A fault of ours: the database, or its answer, did not get through."""


class Refused(Unreachable):
    """It was out of reach before anything was done."""


class Expected(Exception):
    """Whatever a virtual handler or client raises."""


class Owner(Protocol):
    """Who makes calls. ``frozen_until``: the instant at which it goes on, in microseconds."""

    name: str
    alive: bool
    frozen_until: int

    def die(self, why: str) -> None:
        """End at once, without a word."""


@dataclass(eq=False)
class Call:
    """A store call on its way. ``done`` is told of its end, if its owner still lives.

    ``attempts``: for a call that ends attempts, the number of each job's, by the job's hex id.
    ``paused``: the queues and names that its owner knew to be paused. ``places``: what the faults of
    the call are drawn by. ``reports``: what it settles. ``claimed``, ``ended``: the jobs of which it
    has begun and ended attempts.
    """

    owner: Owner
    kind: str
    work: Callable[[Call], Any]
    done: Callable[[Ended], None]
    place: tuple[object, ...]
    attempts: dict[str, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    reports: tuple[Report, ...] = ()
    claimed: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    running: Running | None = None
    pace: Stream | None = None
    slow: bool = False
    statements: int = 0
    writing: bool = False
    wrote_first: int | None = None  # when the first, and the latest, write to jobs began
    wrote_last: int | None = None
    breaks_at: int | None = None
    dies_at: int | None = None
    dies_after: bool = False
    reply_lost: bool = False
    over: bool = False  # an error was raised in it: nothing more is done to it
    given_up: bool = False  # its owner has been told that it failed
    due: int = 0  # the number of its step that is scheduled

    @property
    def late_kind(self) -> str:
        """The fault that its owner gives it up while it is still on its way, if that may be."""
        # A hand-back of unknown claims is never late: it reads what it holds before it writes, and a client
        # that has given up sends no further statement.
        return "late" if self.kind in IMPATIENT else ""

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass within the call, where others can come in between."""
        if self.running is not None:
            self.running.sleep(seconds)


class World:
    """A run: its clock, its calendar, its faults, its database and its people."""

    def __init__(self, plan: Plan, database: Database) -> None:
        self.plan = plan
        self.database = database
        self.clock = Clock()
        self.streams = Streams(plan.seed)
        self.faults = Faults(plan, self.streams, open_=lambda: self.clock.seconds < HORIZON)
        self.specs = workload(self.streams)
        self.by_id: dict[str, Spec] = {spec.job.id.hex: spec for spec in self.specs}
        self.oracles = Oracles(self)
        self.violation: Violation | None = None
        self.finished = False
        self.collide: Callable[[Spec, float, Stream], None] = lambda *_: None
        self.outages: list[tuple[int, int]] = []
        self.calls: list[Call] = []
        self._blocked: list[Call] = []
        self.trace: list[str] = []
        self.situations: dict[str, int] = {}
        self.edges: dict[tuple[int, int], int] = {}
        self._digest = sha256()
        self._calendar: list[tuple[int, int, int, Callable[[], None], Owner | None]] = []
        self._numbers = count()
        self._order = self.streams.of("order")
        self._at_once = 0
        self.events = 0

    # The calendar.

    def at(self, seconds: float, act: Callable[[], None], owner: Owner | None = None) -> None:
        """Let something happen so many seconds from now, unless its owner is dead by then.

        What an owner would do while it is frozen happens when it goes on. Things of one instant happen in
        an order drawn by chance.
        """
        when = self.clock.micros + max(0, -int(-seconds * SECOND // 1))
        heapq.heappush(self._calendar, (when, self._order.bits(), next(self._numbers), act, owner))

    def run(self) -> None:
        """Let happen what is in the calendar, until the run is finished or an oracle has spoken."""
        while self._calendar and not self.finished and self.violation is None:
            when, _, _, act, owner = heapq.heappop(self._calendar)
            self._tick(when)
            if owner is None:
                act()
            elif owner.alive and owner.frozen_until > when:
                self.at((owner.frozen_until - when) / SECOND, act, owner)
            elif owner.alive:
                act()

    def _tick(self, when: int) -> None:
        self.events += 1
        self._at_once = self._at_once + 1 if when == self.clock.micros else 0
        self.clock.micros = when
        if self._at_once > MOST_AT_ONCE or self.events > MOST_EVENTS:
            self.violates("runaway", f"{self.events} events, {self._at_once} of them in one instant")

    # What is told of it.

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        line = f"{self.clock.micros / SECOND:10.6f} {text}"
        self.trace.append(line)
        self._digest.update(line.encode() + b"\n")

    def saw(self, situation: str) -> None:
        """Count a situation."""
        self.situations[situation] = self.situations.get(situation, 0) + 1

    def violates(self, oracle: str, text: str) -> None:
        """Note what an oracle has found; the first finding ends the run."""
        if self.violation is None:
            self.violation = Violation(oracle, text)
            self.note(f"VIOLATION {oracle}: {text}")

    @property
    def digest(self) -> str:
        """A hash of the trace."""
        return self._digest.hexdigest()[:16]

    # Store calls.

    def call(self, call: Call) -> None:
        """Send a call to the database: it arrives, is carried out, and is answered, each a little later."""
        draw = self.streams.of("call", *call.place)
        call.pace = draw
        self._draw_faults(call)
        self.at(draw.between(0.0001, 0.004), lambda: self._arrives(call), None)

    def _draw_faults(self, call: Call) -> None:
        happens = self.faults.happens
        call.slow = happens("slow-call", *call.place) is not None or call.slow
        if (breaking := happens("broken", *call.place)) is not None:
            call.breaks_at = breaking.among(2, 5)
        call.reply_lost = happens("reply-lost", *call.place) is not None
        if (dying := happens("crash", *call.place)) is not None:
            if dying.chance(0.5):
                call.dies_after = True
            else:
                call.dies_at = dying.among(1, 5)

    def _arrives(self, call: Call) -> None:
        if not call.owner.alive:
            return
        if self._out_of_reach(call.owner) or self.faults.happens("refused", *call.place) is not None:
            self.saw("call refused")
            self._answer(call, Ended(None, Refused("the connection was refused")))
            return
        late = self.faults.happens(call.late_kind, *call.place) if call.late_kind else None
        if late is None:
            self._begin(call)
            return
        self.saw("call carried out after it was given up")
        self._answer(call, Ended(None, Unreachable("no answer in time")), after=late.between(0.2, 1.0))
        call.given_up = True
        call.breaks_at = call.dies_at = None
        call.dies_after = False
        self.at(late.between(0.1, 7.0), lambda: self._begin(call))

    def _out_of_reach(self, owner: Owner) -> bool:
        now = self.clock.micros
        cut = getattr(owner, "cut_until", 0)
        return now < cut or any(start <= now < end for start, end in self.outages)

    def _begin(self, call: Call) -> None:
        self.database.tell_time()
        self.calls.append(call)

        def work(running: Running) -> Any:
            call.running = running
            return call.work(call)

        call.running, answer = self.database.start(work, lambda why: self._passes(call, why))
        self._go_on(call, answer)
        self._look_at_blocked()

    def _go_on(self, call: Call, answer: Answer) -> None:
        """Follow a call as far as it goes without a pause."""
        while isinstance(answer, Parked):
            error = self._passing(call, answer.why)
            delay = 0.0 if error else self._delay(call, answer)
            if delay > 0.0:
                self._wait(call, delay)
                return
            self.database.tell_time()
            self._writes_now(call)
            answer = call.running.resume(error) if call.running else None
        if answer is None:
            if call not in self._blocked:
                self.saw("waited for a lock")
                self.note(f"{call.owner.name} {call.kind} waits for a lock")
                self._blocked.append(call)
            return
        self.calls.remove(call)
        call.due += 1  # nothing that is scheduled for it happens any more
        if call.running is not None:
            self.database.free(call.running)
        self._over(call, answer)

    def _wait(self, call: Call, delay: float) -> None:
        call.due += 1
        due = call.due
        self.at(delay, lambda: self._wakes(call, due))

    def _wakes(self, call: Call, due: int) -> None:
        if due != call.due:
            return
        frozen = call.owner.frozen_until - self.clock.micros
        if call.owner.alive and frozen > 0:
            self._wait(call, frozen / SECOND)
            return
        self.database.tell_time()
        error = None
        self._writes_now(call)
        if not call.owner.alive:
            call.over, error = True, Died()
        assert call.running is not None
        self._go_on(call, call.running.resume(error))
        self._look_at_blocked()

    def _look_at_blocked(self) -> None:
        """See whether what was just done has let somebody go on who waited for a lock."""
        moved = True
        while moved:
            moved = False
            for call in list(self._blocked):
                assert call.running is not None
                answer = call.running.look()
                if answer is not None:
                    self._blocked.remove(call)
                    self._go_on(call, answer)
                    moved = True

    def _delay(self, call: Call, parked: Parked) -> float:
        if parked.why == "sleep":
            return parked.seconds
        if parked.why == "committed" or call.over or call.statements <= 1 or call.pace is None:
            return 0.0
        if call.slow:
            return call.pace.between(0.05, 2.0)
        return call.pace.between(0.0, 0.003)

    def _passing(self, call: Call, why: str) -> BaseException | None:
        """Say what to raise at a place that a call has come to; look at what it has committed."""
        if why == "committed":
            self.oracles.look(call)
        if call.over:
            return None
        error = self._fault_at(call, why)
        call.writing = why == "write" and error is None
        call.over = error is not None
        return error

    def _passes(self, call: Call, why: str) -> BaseException | None:
        """Do what ``_passing`` does where nothing comes between a place and what follows it."""
        error = self._passing(call, why)
        self._writes_now(call)
        return error

    def _writes_now(self, call: Call) -> None:
        """Take note of when a write to jobs begins: what it waits for then does not make it look again."""
        if call.writing:
            call.writing = False
            call.wrote_last = self.clock.micros
            call.wrote_first = call.wrote_last if call.wrote_first is None else call.wrote_first

    def _fault_at(self, call: Call, why: str) -> BaseException | None:
        if not call.owner.alive:
            return Died()
        if why == "committed":
            if call.dies_after:
                call.owner.die(f"after a commit of {call.kind}")
                self.saw("died after a commit")
                return Died()
            if call.reply_lost:
                self.saw("reply lost after a commit")
                self._collide_with_claims(call)
                return Unreachable("the reply was lost")
        if why in ("statement", "write"):
            call.statements += 1
            if call.statements == call.dies_at:
                call.owner.die(f"within {call.kind}")
                self.saw("died within a call")
                return Died()
            if call.statements == call.breaks_at:
                self.saw("connection broke within a call")
                return Unreachable("the connection broke")
        return None

    def _collide_with_claims(self, call: Call) -> None:
        """Let somebody come to a job whose claim nobody knows of."""
        for job in sorted(call.claimed):
            draw = self.faults.happens("collision", "claim", *call.place, job[:8])
            if draw is not None:
                self.collide(self.by_id[job], 0.1, draw)

    def _over(self, call: Call, ended: Ended) -> None:
        error = ended.error
        if error is not None and not _is_ours(error):
            self.violates("error", f"{call.kind} of {call.owner.name} raised {type(error).__name__}: {error}")
        self.oracles.ended(call, ended)
        if not isinstance(error, Died) and not call.given_up:
            self._answer(call, ended)

    def _answer(self, call: Call, ended: Ended, after: float = 0.0) -> None:
        assert call.pace is not None
        delay = after + call.pace.between(0.0001, 0.003)
        self.at(delay, lambda: call.done(ended), call.owner)

    def drop_calls(self, owner: Owner) -> None:
        """Let the server find out at once that a process is gone."""
        for call in self.calls:
            if call.owner is owner and call not in self._blocked:
                self._wait(call, 0.001)


def _is_ours(error: BaseException) -> bool:
    """Whether a call has failed for a fault of ours, or as it should."""
    injected = (Died, Unreachable)
    expected = (Expected, LeaseGone, DatabaseBusy)
    return isinstance(error, injected + expected) or isinstance(error.__cause__, injected)
