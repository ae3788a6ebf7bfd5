"""A run from its plan to its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.database import Database
from tests.simulation.faults import Plan
from tests.simulation.oracles import Violation
from tests.simulation.people import Operator, invite
from tests.simulation.worker import Host
from tests.simulation.workload import HORIZON
from tests.simulation.world import World

#: Virtual seconds after the horizon within which everything has to end, and all workers after that.
TO_END, TO_EXIT = 300.0, 60.0


@dataclass(slots=True)
class Result:
    """What came of a run. ``digest``: a hash of all that happened."""

    plan: Plan
    violation: Violation | None
    digest: str
    seconds: float
    events: int
    faults: list[str]
    situations: dict[str, int]
    edges: dict[tuple[int, int], int]
    trace: list[str] = field(repr=False)


def run(plan: Plan, database: Database) -> Result:
    """Carry out a plan."""
    world = World(plan, database)
    database.reset(world.clock)
    with database.patched():
        _Course(world).begin()
        world.run()
    return Result(
        plan=plan,
        violation=world.violation,
        digest=world.digest,
        seconds=world.clock.seconds,
        events=world.events,
        faults=list(world.faults.fired),
        situations=world.situations,
        edges=world.edges,
        trace=world.trace,
    )


class _Course:
    """The course of a run: trouble up to the horizon, then calm until all is done, then the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: list[Host] = []
        self._ended_at: float | None = None

    def begin(self) -> None:
        count = self.world.streams.of("hosts").pick((1, 2, 3, 3, 4))
        self.hosts += [Host(self.world, index, self.hosts) for index in range(count)]
        invite(self.world, self.hosts)
        for host in self.hosts:
            self.world.at(self.world.streams.of("arrival", host.index).between(0.0, 3.0), host.start)
        self.world.at(HORIZON + 0.001, self._calm)

    def _calm(self) -> None:
        """Let no more happen: everything is resumed, and old code replaced."""
        Operator(self.world, "last operator", self.hosts).resume()
        for host in self.hosts:
            process = host.process
            if process is not None and process.alive and process.old_code:
                self.world.at(0.0, process.stop, process)
        self.world.at(4.0, self._look)

    def _look(self) -> None:
        """See whether all is done."""
        world, lives = self.world, any(not host.lost for host in self.hosts)
        processes = [host.process for host in self.hosts if host.process is not None and host.process.alive]
        idle = all(process.idle for process in processes) and not world.calls
        if idle and world.oracles.all_ended():
            self._end(live=True)
        elif world.clock.seconds > HORIZON + (TO_END if lives else TO_EXIT):
            if lives and world.oracles.all_ended():
                world.violates("liveness", "all jobs have ended, and a worker is not done")
            self._end(live=lives)
        else:
            world.at(1.0, self._look)

    def _end(self, *, live: bool) -> None:
        self.world.oracles.finish(live=live)
        for host in self.hosts:
            host.lost = True
            process = host.process
            if process is not None and process.alive:
                self.world.at(0.0, process.stop, process)
        self.world.at(TO_EXIT, self._finished)
        self._wait_for_exits()

    def _wait_for_exits(self) -> None:
        if any(host.process is not None and host.process.alive for host in self.hosts) or self.world.calls:
            self.world.at(0.5, self._wait_for_exits)
        else:
            self.world.finished = True

    def _finished(self) -> None:
        for host in self.hosts:
            if host.process is not None and host.process.alive:
                self.world.violates(
                    "exit", f"{host.process.name} has not ended {TO_EXIT:g} s after it was told to"
                )
        self.world.finished = True
