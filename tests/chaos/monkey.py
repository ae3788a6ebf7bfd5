"""The monkey: does harm, by a seed.

What it does and when is drawn from the seed alone; whom it hits, too, among those who are there then. First
it does each kind of harm once, then whatever comes.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from django.db import Error, connection

from django_backwave import operations
from django_backwave.core.states import JobState
from django_backwave.models import Job
from tests.chaos.fleet import LEASE, Fleet, Worker, kill
from tests.worker.proxy import Proxy

#: Seconds between two faults, on average and at most.
GAP, LONGEST_GAP = 1.3, 4.0

#: So many children live on after a fault that ends some: a slow machine takes its time to start others.
LEFT = 2

ACTOR = "monkey"

#: Kind of fault → how often it is drawn, beside the others.
ANYWHERE = {
    "kill a child": 4,
    "kill a supervisor": 1,
    "kill a whole worker": 1,
    "freeze a child": 4,
    "freeze a whole worker": 1,
    "freeze a child briefly": 1,
    "terminate a worker": 1,
    "kill a client": 1,
    "cancel jobs": 4,
    "requeue jobs": 1,
}
ON_POSTGRES = {
    "restart the server": 1,
    "crash the server": 1,
    "cut connections": 2,
    "delay connections": 2,
    "silence connections": 1,
    "lose a commit": 2,
    "terminate backends": 3,
}
ON_SQLITE = {"lock the database": 4}


class Monkey:
    """Works on a fleet. ``done`` are the kinds of faults, ``kills`` when a process was killed."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.done: list[str] = []
        self.kills: dict[int, float] = {}
        self._fleet = fleet
        self._stage = fleet.stage
        self._draw = random.Random(f"monkey-{seed}")
        self._weights = ANYWHERE | (ON_POSTGRES if self._stage.server else ON_SQLITE)
        self._to_undo: list[tuple[float, Callable[[], object]]] = []

    def run(self, seconds: float) -> None:
        """Do harm for some time, and then put everything right."""
        end = time.monotonic() + seconds
        for kind in self._kinds():
            gap = min(self._draw.expovariate(1 / GAP), LONGEST_GAP)
            # A stream of its own, so that what it does here changes nothing later.
            own = random.Random(self._draw.getrandbits(64))
            if time.monotonic() + gap > end:
                break
            self._wait(gap)
            self._do(kind, own)
        self._wait(max(0.0, end - time.monotonic()))
        for _, undo in self._to_undo:
            undo()
        self._to_undo.clear()

    def _kinds(self) -> Iterator[str]:
        first = list(self._weights)
        self._draw.shuffle(first)
        yield from first
        while True:
            yield from self._draw.choices(list(self._weights), weights=list(self._weights.values()))

    def _wait(self, seconds: float) -> None:
        """Let some time pass, in which what is due is put right and what has ended is started again."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due = [undo for at, undo in self._to_undo if at <= now]
            self._to_undo = [(at, undo) for at, undo in self._to_undo if at > now]
            for undo in due:
                undo()
            self._fleet.tend()
            if now >= end:
                return
            threading.Event().wait(min(0.05, end - now))

    def _do(self, kind: str, draw: random.Random) -> None:
        """Do one kind of harm; it counts if there was anybody to harm."""
        if getattr(self, f"_{kind.replace(' ', '_')}")(draw) is not False:
            self.done.append(kind)

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self._to_undo.append((time.monotonic() + seconds, undo))

    # Processes.

    def _kill(self, pid: int) -> None:
        self.kills[pid] = kill(pid, signal.SIGKILL)

    def _kill_a_child(self, draw: random.Random) -> bool:
        children = self._fleet.children()
        if len(children) <= LEFT:
            return False
        self._kill(draw.choice(children))
        return True

    def _kill_a_supervisor(self, draw: random.Random) -> bool:
        return self._end(draw, lambda worker: self._kill(worker.process.pid))

    def _kill_a_whole_worker(self, draw: random.Random) -> bool:
        """Nobody is left who could settle its leases: they have to lapse."""

        def end(worker: Worker) -> None:
            self._kill(worker.process.pid)
            for pid in worker.children():
                self._kill(pid)

        return self._end(draw, end)

    def _terminate_a_worker(self, draw: random.Random) -> bool:
        """As a deploy does."""
        return self._end(draw, lambda worker: worker.process.send(signal.SIGTERM))

    def _end(self, draw: random.Random, end: Callable[[Worker], None]) -> bool:
        """End a worker with its children, if enough of the others' live on."""
        worker = draw.choice(self._fleet.workers)
        if len(self._fleet.children()) - len(worker.children()) < LEFT:
            return False
        worker.ends_soon = True
        end(worker)
        return True

    def _freeze(self, pids: list[int], seconds: float) -> bool:
        for pid in pids:
            kill(pid, signal.SIGSTOP)
            self._later(seconds, partial(kill, pid, signal.SIGCONT))
        return bool(pids)

    def _freeze_a_child(self, draw: random.Random) -> bool:
        """For longer than its lease: what it reports afterwards is stale."""
        children = self._fleet.children()
        chosen = [draw.choice(children)] if children else []
        return self._freeze(chosen, draw.uniform(1.5, 3.0) * LEASE)

    def _freeze_a_child_briefly(self, draw: random.Random) -> bool:
        children = self._fleet.children()
        chosen = [draw.choice(children)] if children else []
        return self._freeze(chosen, draw.uniform(0.2, 0.8) * LEASE)

    def _freeze_a_whole_worker(self, draw: random.Random) -> bool:
        worker = draw.choice(self._fleet.workers)
        return self._freeze([worker.process.pid, *worker.children()], draw.uniform(1.5, 3.0) * LEASE)

    def _kill_a_client(self, draw: random.Random) -> None:
        client = draw.choice(self._fleet.clients)
        client.ends_soon = True
        client.process.send(signal.SIGKILL)

    # Operators.

    def _cancel_jobs(self, draw: random.Random) -> bool:
        return self._operate(operations.cancel, draw, JobState.READY, JobState.RUNNING)

    def _requeue_jobs(self, draw: random.Random) -> bool:
        return self._operate(operations.requeue, draw, JobState.DEAD_LETTERED, JobState.CANCELLED)

    def _operate(self, operation: Callable[..., object], draw: random.Random, *states: JobState) -> bool:
        """Do something to a few jobs; if the connection dies with it, the record tells what came of it."""
        try:
            numbers = [state.value for state in states]
            ids = list(
                Job.objects.filter(state__in=numbers).order_by("-pk").values_list("pk", flat=True)[:40]
            )
            chosen = draw.sample(ids, min(len(ids), draw.randint(1, 5)))
            operation(chosen, actor=ACTOR)
        except Error:
            connection.close()
            return False
        return bool(chosen)

    # The database.

    def _restart_the_server(self, draw: random.Random) -> None:
        connection.close()
        self._stage.server.restart("fast")

    def _crash_the_server(self, draw: random.Random) -> None:
        connection.close()
        self._stage.server.stop("immediate")
        self._wait(draw.uniform(0.0, LEASE))
        self._stage.server.start()

    def _proxy(self, draw: random.Random) -> Proxy:
        return draw.choice(self._stage.proxies)

    def _cut_connections(self, draw: random.Random) -> None:
        proxy = self._proxy(draw)
        proxy.cut()
        self._later(draw.uniform(0.1, 1.5) * LEASE, proxy.restore)

    def _delay_connections(self, draw: random.Random) -> None:
        proxy = self._proxy(draw)
        proxy.hold()
        self._later(draw.uniform(0.05, 0.5) * LEASE, proxy.restore)

    def _silence_connections(self, draw: random.Random) -> None:
        """Half open: nobody answers, for longer than the lease, and then they break or wake up."""
        proxy = self._proxy(draw)
        proxy.hold()
        seconds = draw.uniform(1.5, 3.0) * LEASE
        if draw.random() < 0.5:
            self._later(seconds, proxy.cut)
        self._later(seconds + 0.1, proxy.restore)

    def _lose_a_commit(self, draw: random.Random) -> None:
        """The next COMMIT through a proxy is the last that is heard of its connection: sent on, or not."""
        proxy = self._proxy(draw)
        proxy.swallow(b"COMMIT", after=b"", forward=draw.random() < 0.7)
        self._later(LEASE / 2, proxy.cut)
        self._later(LEASE / 2 + 0.1, proxy.restore)

    def _terminate_backends(self, draw: random.Random) -> bool:
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pid FROM pg_stat_activity"
                    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid"
                )
                pids = [pid for (pid,) in cursor.fetchall()]
                chosen = draw.sample(pids, min(len(pids), draw.randint(1, 6)))
                for pid in chosen:
                    cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
        except Error:
            connection.close()
            return False
        return bool(chosen)

    def _lock_the_database(self, draw: random.Random) -> None:
        with self._stage.locked():
            self._wait(draw.uniform(0.2, 1.5) * LEASE)
