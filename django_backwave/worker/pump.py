"""The pump: the one thread that claims, settles and sweeps, on a connection of its own.

It waits for events, steps the driver with them, and carries out the driver's commands for the store; each
answer is an event again.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError

from django_backwave.core.protocol import (
    Claim,
    ClaimAnswered,
    CommandFailed,
    Event,
    Finished,
    Prune,
    ReleaseUnknown,
    Report,
    Scan,
    Scanned,
    Settle,
    Settled,
    StoreCommand,
    Sweep,
    Swept,
    Tick,
)
from django_backwave.store.claim import Order, Taken, scan, take
from django_backwave.store.expire import SLICE as SWEEP_SLICE
from django_backwave.store.expire import expire, expire_waiting
from django_backwave.store.keys import SLICE as FORGET_SLICE
from django_backwave.store.keys import forget
from django_backwave.store.operations import SLICE as OPERATIONS_SLICE
from django_backwave.store.operations import prune as prune_operations
from django_backwave.store.release import holds_unknown, release_unknown
from django_backwave.store.retention import SLICE as PRUNE_SLICE
from django_backwave.store.retention import prune, prune_workers
from django_backwave.store.settle import settle, settle_and_take
from django_backwave.worker import clock
from django_backwave.worker.connections import drop_connection, forget_queries, own_connection
from django_backwave.worker.courtesy import Courtesy

if TYPE_CHECKING:
    from django_backwave.worker.worker import Worker

logger = logging.getLogger("django_backwave.worker")

#: The longest time, in seconds, that the pump rests: each round shows that it lives.
LONGEST_REST = 1.0


class Pump:
    """Feeds the driver and does its errands at the store."""

    def __init__(self, worker: Worker) -> None:
        """Serve a worker; ``run`` is the body of the pump's thread."""
        self._worker = worker
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._errands: deque[StoreCommand] = deque()
        self._thread: threading.Thread | None = None
        self._courtesy = Courtesy(worker.using)
        self._troubled = False
        self.round_at = clock.monotonic()

    def put(self, event: Event) -> None:
        """Give the pump something to feed to the driver. Safe from any thread."""
        self._inbox.put(event)

    def order(self, command: StoreCommand) -> None:
        """Have the pump carry out a command after those it has."""
        self._errands.append(command)
        if threading.current_thread() is not self._thread:
            self._inbox.put(Tick(clock.monotonic()))  # it may be resting

    def run(self) -> None:
        """Serve until the driver says Exit."""
        self._thread = threading.current_thread()
        own_connection(self._worker.using, lease=self._worker.options.lease)
        try:
            while not self._worker.exited.is_set():
                self._round()
        finally:
            drop_connection(self._worker.using)

    def _round(self) -> None:
        rest = min(LONGEST_REST, self._worker.rest())
        for event in self.events(rest):
            self._worker.feed(event)
        while self._errands and not self._worker.exited.is_set():
            with self._courtesy.writing():
                events = self._carry_out(self._errands.popleft())
            for event in events:
                self._worker.feed(event)
            self._worker.exited.wait(self._courtesy.rest())
        forget_queries(self._worker.using)
        self.round_at = clock.monotonic()

    def events(self, rest: float) -> list[Event]:
        """Wait for events, but no longer than ``rest`` seconds; handlers' ends become one event.

        Safe from any thread: who feeds them in the pump's place puts a Tick, for it may have waited for them.
        """
        events: list[Event] = []
        reports: list[Report] = []
        try:
            item = self._inbox.get(timeout=rest) if rest > 0 else self._inbox.get_nowait()
            while True:
                if isinstance(item, Finished):
                    reports += item.reports
                elif not isinstance(item, Tick):
                    events.append(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass
        now = clock.monotonic()
        if reports:
            events.append(Finished(now, reports))
        return events or [Tick(now)]

    def _carry_out(self, command: StoreCommand) -> list[Event]:
        claim = None
        if isinstance(command, Settle) and self._errands and isinstance(self._errands[0], Claim):
            claim = self._errands.popleft()
        sent_at = clock.monotonic()
        try:
            if isinstance(command, Settle) and isinstance(claim, Claim):
                events = self._settle_and_claim(command, claim, sent_at)
            else:
                events = [self._answer(command, sent_at)]
        except Exception as error:
            # Whatever it is, results are kept and the driver tries again after a while; a worker that
            # died of it would only hand the same trouble to the next one.
            self._trouble(command, error)
            failed = [command] if claim is None else [command, claim]
            return [CommandFailed(clock.monotonic(), each) for each in failed]
        if self._troubled:
            self._troubled = False
            logger.info("action=database_back worker=%s", self._worker.name)
        return events

    def _settle_and_claim(self, settling: Settle, claim: Claim, sent_at: float) -> list[Event]:
        worker = self._worker
        verdicts, taken = settle_and_take(
            settling.reports,
            self._order(claim),
            worker=worker.name,
            unroutable_grace=worker.grace,
            using=worker.using,
        )
        return [Settled(clock.monotonic(), verdicts), self._claimed(claim, taken, sent_at)]

    def _answer(self, command: StoreCommand, sent_at: float) -> Event:
        worker, using = self._worker, self._worker.using
        match command:
            case Scan(queues):
                due = scan(queues, using=using)
                return Scanned(clock.monotonic(), due)
            case Claim():
                taken = take(self._order(command), worker=worker.name, using=using)
                return self._claimed(command, taken, sent_at)
            case Settle(reports):
                verdicts = settle(reports, worker=worker.name, unroutable_grace=worker.grace, using=using)
                return Settled(clock.monotonic(), verdicts)
            case ReleaseUnknown(known):
                released = release_unknown(known, worker=worker.name, using=using)
                more = holds_unknown(known, worker=worker.name, using=using)
                if released:
                    logger.warning("action=released_unknown count=%s", len(released))
                return Swept(clock.monotonic(), command, more=more)
            case Sweep():
                leases = expire(jitter=clock.random, using=using)
                worker.notifier.expired(leases)
                expired = expire_waiting(using=using)
                worker.notifier.late(expired)
                more = SWEEP_SLICE in (len(leases), len(expired))
                return Swept(clock.monotonic(), command, more=more)
            case Prune():
                count = prune(keep_done=worker.keep_done, keep_dead=worker.keep_dead, using=using)
                forgotten = forget(using=using)
                resolved = prune_operations(using=using)
                prune_workers(using=using)
                more = count == PRUNE_SLICE or forgotten == FORGET_SLICE or resolved == OPERATIONS_SLICE
                return Swept(clock.monotonic(), command, more=more)

    def _order(self, command: Claim) -> Order:
        lease = self._worker.options.lease
        return Order(
            command.queue,
            command.limit,
            command.slots,
            lease,
            command.without,
            command.past,
            also=command.also,
        )

    def _claimed(self, command: Claim, taken: Taken, sent_at: float) -> ClaimAnswered:
        self._worker.notifier.late(taken.late)
        return ClaimAnswered(
            clock.monotonic(),
            command,
            taken.jobs,
            sent_at,
            late=len(taken.late),
            passed=taken.passed,
            past=taken.past,
        )

    def _trouble(self, command: StoreCommand, error: Exception) -> None:
        self._troubled = True
        drop_connection(self._worker.using)
        logger.warning(
            "action=database_trouble command=%s error=%s: %s",
            type(command).__name__,
            type(error).__name__,
            str(error).strip(),
            exc_info=None if isinstance(error, DatabaseError | InterfaceError) else error,
        )
