"""Orders under chaos: workers are killed and frozen at random moments, again and again.

Each order takes pieces from the stock and enters that in the ledger. At the end the ledger must equal
the orders exactly if the job is atomic; and it must not if it is not, or else the run has shown nothing.
Chance is seeded: the same seed strikes the same workers in the same order.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from django.db import OperationalError, connection, transaction
from django.db.models import Sum

from django_backwave import JobState, enqueue_many
from django_backwave.jobs import BackWaveTask
from django_backwave.models import Attempt, Job
from shop import middle
from shop.demo.processes import WorkerProcess
from shop.demo.show import DemoFailed
from shop.models import Entry, Order, Stock

ITEMS = tuple(f"item {n}" for n in range(12))
PIECES = 1_000_000

WORKERS = 3
LEASE = 1.0
OPTIONS = ("--queue", "stock", "--concurrency", "3", "--lease", str(LEASE), "--poll", "0.1")

#: Seconds between two strikes, and the longest that a worker stays frozen: for longer than its lease.
STRIKE_EVERY, FREEZE = (0.02, 0.3), (0.2, 2.0 * LEASE)

#: Kills that must hit a handler between its writes and its end, or the run has shown nothing.
HITS = 20


@dataclass
class Tally:
    """What one run did, and what it found."""

    name: str
    orders: int = 0
    kills: int = 0
    hits: int = 0
    freezes: int = 0
    entries: int = 0
    twice: int = 0
    missing: int = 0
    abandoned: int = 0
    off: int = 0
    unfinished: int = 0
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the ledger equals the orders, and the stock the ledger."""
        return not (self.twice or self.missing or self.off) and self.entries == self.orders

    def check(self, *, atomic: bool, hits: int) -> None:
        """Raise DemoFailed if the run has not shown what it shall."""
        _require(self.unfinished == 0, f"{self.unfinished} jobs have not succeeded")
        _require(self.missing == 0, f"{self.missing} orders are not in the ledger")
        _require(self.hits >= hits, f"only {self.hits} kills hit a handler in the middle, not {hits}")
        if atomic:
            _require(self.exact, f"the ledger does not equal the orders: {self}")
        else:
            _require(self.twice > 0, "no order is in the ledger twice, so nothing was shown")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoFailed(otherwise)


@dataclass
class Chaos:
    """One run with one of the two jobs."""

    task: BackWaveTask
    folder: Path
    orders: int = 500
    hits: int = HITS
    seed: int = 1
    stay: float = 0.06
    within: float = 300.0
    workers: list[WorkerProcess] = field(default_factory=list)
    frozen: dict[int, float] = field(default_factory=dict)

    def run(self) -> Tally:
        """Place the orders, strike until enough kills have hit, let the rest be done, and count."""
        self.chance = random.Random(self.seed)
        self.tally = Tally(self.task.job_name.rpartition(".")[2])
        self.middle = self.folder / f"middle-{self.tally.name}"
        self.middle.mkdir()
        os.environ |= {"SHOP_MIDDLE": str(self.middle), "SHOP_MIDDLE_SECONDS": str(self.stay)}
        self._reset()
        begun = time.monotonic()
        self.deadline = begun + self.within
        try:
            for _ in range(WORKERS):
                self._start()
            self._strike_until_done()
        finally:
            for worker in self.workers:
                worker.clear_away()
            for name in ("SHOP_MIDDLE", "SHOP_MIDDLE_SECONDS"):
                del os.environ[name]
        self.tally.seconds = time.monotonic() - begun
        return self._count()

    def _reset(self) -> None:
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 200")
        for model in (Attempt, Job, Entry, Order, Stock):
            model.objects.all().delete()
        Stock.objects.bulk_create(Stock(item=item, pieces=PIECES) for item in ITEMS)

    def _start(self) -> None:
        label = f"{self.tally.name}-{len(self.workers)}"
        self.workers.append(WorkerProcess(label, *OPTIONS, folder=self.folder))

    def _strike_until_done(self) -> None:
        while self.tally.orders < self.orders or self.tally.hits < self.hits or self._left():
            self._thaw(time.monotonic())
            # A worker may be frozen inside its write, which on SQLite shuts everybody out until it thaws:
            # and that is up to this very loop, so it must not wait for long.
            with suppress(OperationalError):
                self._place()
            if time.monotonic() > self.deadline:
                raise DemoFailed(f"not done within {self.within:.0f} s: {self.tally}, left: {self._left()}")
            if self.tally.orders < self.orders or self.tally.hits < self.hits:
                self._strike()
            else:
                time.sleep(0.05)
            time.sleep(self.chance.uniform(*STRIKE_EVERY))

    def _place(self) -> None:
        """Place some orders for each hit so far, and more once all are done: work until the last hit."""
        portion = -(-self.orders // (self.hits + 1))
        enough = self.tally.hits >= self.hits
        due = self.orders if enough else min(self.orders, portion * (self.tally.hits + 1))
        if due <= self.tally.orders:
            if enough or self._left():
                return
            due = self.tally.orders + portion
        with transaction.atomic():
            orders = [self._order(n) for n in range(self.tally.orders, due)]
            Order.objects.bulk_create(orders)
            enqueue_many(self.task, [((order.pk,), {}) for order in orders])
        self.tally.orders = due

    def _order(self, number: int) -> Order:
        item, quantity = ITEMS[number % len(ITEMS)], 1 + number % 4
        return Order(email=f"chaos-{number}@example.com", item=item, quantity=quantity, amount=100)

    def _strike(self) -> None:
        """Kill or freeze a worker; mostly one that has a handler in the middle."""
        alive = [worker for worker in self.workers if worker.exit_code is None]
        awake = [worker for worker in alive if worker.pid not in self.frozen and worker.name()]
        busy = [worker for worker in awake if middle.there(self.middle, worker.pid)]
        aimed, choice, killed = (self.chance.random() for _ in range(3))
        victims = busy if aimed < 0.8 else awake
        if not victims:
            return
        victim = victims[int(choice * len(victims))]
        if killed < 0.7:
            victim.kill()
            self.tally.kills += 1
            self.tally.hits += bool(middle.there(self.middle, victim.pid))
            self._start()
        else:
            os.kill(victim.pid, signal.SIGSTOP)
            self.frozen[victim.pid] = time.monotonic() + self.chance.uniform(*FREEZE)
            self.tally.freezes += 1

    def _thaw(self, now: float) -> None:
        for pid in [pid for pid, until in self.frozen.items() if until <= now]:
            del self.frozen[pid]
            os.kill(pid, signal.SIGCONT)

    def _left(self) -> int:
        return Job.objects.exclude(state=JobState.SUCCEEDED).count()

    def _count(self) -> Tally:
        tally = self.tally
        times = Counter(Entry.objects.values_list("order", flat=True))
        tally.entries = sum(times.values())
        tally.twice = sum(1 for count in times.values() if count > 1)
        tally.missing = Order.objects.count() - len(times)
        tally.abandoned = Attempt.objects.filter(outcome="abandoned").count()
        tally.unfinished = self._left()
        taken = Stock.objects.aggregate(left=Sum("pieces"))["left"]
        ordered = Order.objects.aggregate(pieces=Sum("quantity"))["pieces"]
        tally.off = len(ITEMS) * PIECES - taken - ordered
        connection.close()
        return tally
