"""Everybody but the workers: clients who enqueue, operators, strangers, and fate, which strikes hosts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction

from django_backwave.models import Job, Pause
from django_backwave.store import adjust, enqueue, operate, pause
from tests.simulation.clock import SECOND, at
from tests.simulation.database import ALIAS, Ended
from tests.simulation.streams import Stream
from tests.simulation.worker import Host
from tests.simulation.workload import HORIZON, QUEUES, Spec
from tests.simulation.world import Call, Expected, World

#: How many operators, strangers, outages and blows to one host a run may have at most.
OPERATORS, STRANGERS, OUTAGES, BLOWS = 14, 8, 2, 2


class RolledBack(Expected):
    """A client has changed its mind within its transaction."""


class Person:
    """Somebody who calls the store and never dies of it."""

    alive, frozen_until = True, 0

    def __init__(self, world: World, name: str, hosts: list[Host]) -> None:
        self.name = name
        self._world = world
        self._hosts = hosts

    def die(self, why: str) -> None:
        """Stop where it stands: its transaction is rolled back."""

    def call(
        self,
        kind: str,
        work: Callable[[Call], Any],
        done: Callable[[Ended], None],
        *,
        slowly: bool = False,
    ) -> None:
        """Make a call under this name."""
        self._world.call(Call(self, kind, work, done, place=(self.name, kind), slow=slowly))

    def woken(self, queue: str | None) -> None:
        """Let a notification go out to all workers."""
        happens = self._world.faults.happens
        for host in self._hosts:
            draw = self._world.streams.of("hint", self.name, host.index)
            if happens("hint-lost", self.name, host.index) is not None:
                self._world.saw("notification lost")
                continue
            self._world.at(draw.between(0.0002, 0.02), partial(host.wake, queue))
            if happens("hint-doubled", self.name, host.index) is not None:
                self._world.saw("notification doubled")
                self._world.at(draw.between(0.0, 0.5), partial(host.wake, queue))


class Client(Person):
    """Who enqueues one job."""

    def enqueue(self, spec: Spec) -> None:
        """Enqueue it, in a transaction that may be rolled back."""
        oracles, regret = self._world.oracles, self._world.faults.happens("rollback", spec.number)

        def work(_: Call) -> None:
            with transaction.atomic(using=ALIAS):
                enqueue.insert_one(spec.job, using=ALIAS)
                if regret is not None:
                    raise RolledBack

        def done(ended: Ended) -> None:
            job = spec.job.id.hex
            if ended.error is None:
                oracles.accepted.add(job)
                self.woken(spec.job.queue)
            elif isinstance(ended.error, RolledBack):
                oracles.rolled_back.add(job)
                self._world.saw("enqueue rolled back")

        self.call("enqueue", work, done)


class Operator(Person):
    """Who does one thing to jobs or queues."""

    def act(self, draw: Stream) -> None:
        """Do what this operator came for."""
        verb = draw.pick(VERBS)
        count = 9 if verb == "requeue" else draw.pick((1, 1, 2, 4))
        self.do(verb, sorted({draw.pick(self._world.specs).job.id for _ in range(count)}), draw)

    def do(self, verb: str, ids: list[UUID], draw: Stream, *, slowly: bool = False) -> None:
        """Do one thing to these jobs."""
        when = at(self._world.clock.micros + round(draw.between(-2.0, 15.0) * SECOND))
        given: dict[str, Any] = {"actor": self.name, "using": ALIAS}
        acts: dict[str, Callable[[], Any]] = {
            "cancel": lambda: operate.cancel(ids, **given),
            "requeue": lambda: operate.requeue(ids, reset_failures=draw.chance(0.7), **given),
            "reschedule": lambda: adjust.reschedule(ids, when, **given),
            "run-now": lambda: adjust.run_now(ids, **given),
            "change": lambda: adjust.change(ids, priority=7, queue=draw.pick(QUEUES), **given),
            "pause": lambda: pause.pause(Pause.Kind.QUEUE, QUEUES[0], **given),
            "pause-name": lambda: pause.pause(Pause.Kind.NAME, "new", **given),
        }

        def done(ended: Ended) -> None:
            if ended.error is None:
                self._world.saw(f"operator: {verb}")
                self.woken(None)

        self.call(verb, lambda _: acts[verb](), done, slowly=slowly)

    def resume(self) -> None:
        """Let everything that is paused go on."""

        def work(_: Call) -> None:
            paused = pause.pauses(using=ALIAS)
            for kind, targets in ((Pause.Kind.QUEUE, paused.queues), (Pause.Kind.NAME, paused.names)):
                for target in sorted(targets):
                    pause.resume(kind, target, actor=self.name, using=ALIAS)

        self.call("resume", work, lambda _: None)


class Stranger(Person):
    """Who holds the lock of a job's row for a while, and writes nothing."""

    def hold(self, draw: Stream) -> None:
        """Hold a row; on SQLite, where rows have no locks, there is nothing to hold."""
        self.hold_job(draw.pick(self._world.specs), draw.between(0.1, 5.0))

    def hold_job(self, spec: Spec, seconds: float) -> None:
        """Hold this job's row for so many seconds."""

        def work(call: Call) -> None:
            with transaction.atomic(using=ALIAS):
                rows = Job.objects.using(ALIAS).filter(pk=spec.job.id).select_for_update()
                if list(rows.values_list("pk")):
                    self._world.saw("a stranger held a row")
                call.sleep(seconds)

        self.call("hold", work, lambda _: None)


#: What operators do, and how often.
VERBS = (
    *("cancel", "cancel", "requeue", "requeue", "requeue"),
    *("reschedule", "run-now", "change", "pause", "pause-name"),
)


def _collide(world: World, hosts: list[Host], spec: Spec, seconds: float, draw: Stream) -> None:
    """Let somebody come to a job while its handler runs for so many seconds, or when it ends."""
    number = world.situations.get("somebody came to a running job", 0)
    world.saw("somebody came to a running job")
    after = max(0.0, seconds + draw.between(-0.1, 0.05)) if draw.chance(0.6) else draw.between(0.0, seconds)
    if world.database.name == "postgres" and draw.chance(0.4):
        stranger = Stranger(world, f"passer-by{number}", hosts)
        world.at(after, partial(stranger.hold_job, spec, draw.between(0.05, 2.0)))
        return
    operator = Operator(world, f"passer-by{number}", hosts)
    verb = draw.pick(("cancel", "cancel", "requeue", "run-now"))
    world.at(after, partial(operator.do, verb, [spec.job.id], draw, slowly=draw.chance(0.7)))


def invite(world: World, hosts: list[Host]) -> None:  # noqa: C901 - one loop for each kind of people
    """Put everybody into the calendar."""
    for spec in world.specs:
        client = Client(world, f"client{spec.number}", hosts)
        world.at(spec.at, partial(client.enqueue, spec))
    for number in range(OPERATORS):
        if (draw := world.faults.happens("operator", number)) is not None:
            operator = Operator(world, f"operator{number}", hosts)
            world.at(draw.between(0.0, HORIZON), partial(operator.act, draw))
    for number in range(STRANGERS if world.database.name == "postgres" else 0):
        if (draw := world.faults.happens("stranger", number)) is not None:
            stranger = Stranger(world, f"stranger{number}", hosts)
            world.at(draw.between(0.0, HORIZON - 6.0), partial(stranger.hold, draw))
    for number in range(OUTAGES):
        if (draw := world.faults.happens("outage", number)) is not None:
            start = draw.between(0.0, HORIZON - 6.0)
            end = min(HORIZON, start + draw.between(0.2, 8.0))
            world.outages.append((round(start * SECOND), round(end * SECOND)))
    world.collide = partial(_collide, world, hosts)
    for host in hosts:
        for number in range(BLOWS):
            _strike(world, host, number)


def _strike(world: World, host: Host, number: int) -> None:  # noqa: C901 - one function a blow
    """Let fate strike a host."""

    def blow(kind: str, act: Callable[[Stream], None]) -> None:
        if (draw := world.faults.happens(kind, host.index, number)) is not None:
            world.at(draw.between(0.5, HORIZON - 1.0), partial(act, draw))

    def freeze(draw: Stream) -> None:
        if (process := host.process) is not None and process.alive:
            seconds = host.lease * draw.between(0.2, 2.5)
            world.note(f"{process.name} freezes for {seconds:.3f} s")
            world.saw("frozen past the lease" if seconds > host.lease else "frozen")
            process.frozen_until = max(process.frozen_until, world.clock.micros + round(seconds * SECOND))

    def kill(_: Stream) -> None:
        if host.process is not None:
            host.process.die("killed")

    def jump(draw: Stream) -> None:
        host.clock.jump(draw.between(-8.0, 12.0))
        world.saw("a worker's own clock jumped")

    def cut(draw: Stream) -> None:
        host.cut_until = world.clock.micros + round(draw.between(0.3, 10.0) * SECOND)
        world.saw("a worker was cut off")

    def stop(_: Stream) -> None:
        if (process := host.process) is not None and process.alive:
            world.at(0.0, process.stop, process)

    blow("freeze", freeze)
    blow("kill", kill)
    blow("clock", jump)
    blow("cut", cut)
    blow("stop", stop)
    if number == 0:
        blow("loss", lambda _: host.lose())
