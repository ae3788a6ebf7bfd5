"""The pump: the one thread that claims, settles and sweeps, on a connection of its own.

It waits for events, steps the driver with them, and carries out the driver's commands for the store; each
answer is an event again.
"""

from __future__ import annotations

import logging
import queue
from collections import deque
from typing import TYPE_CHECKING, Any

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
from django_backwave.store.claim import scan, take, take_without
from django_backwave.store.expire import SLICE as SWEEP_SLICE
from django_backwave.store.expire import expire, expire_waiting
from django_backwave.store.release import holds_unknown, release_unknown
from django_backwave.store.retention import SLICE as PRUNE_SLICE
from django_backwave.store.retention import prune, prune_workers
from django_backwave.store.settle import settle
from django_backwave.worker import clock
from django_backwave.worker.connections import drop_connection, forget_queries, own_connection

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
        self._troubled = False
        self.round_at = clock.monotonic()

    def put(self, event: Event) -> None:
        """Give the pump something to feed to the driver. Safe from any thread."""
        self._inbox.put(event)

    def order(self, command: StoreCommand) -> None:
        """Have the pump carry out a command after those it has."""
        self._errands.append(command)
        self._inbox.put(Tick(clock.monotonic()))  # it may be resting

    def run(self) -> None:
        """Serve until the driver says Exit."""
        own_connection(self._worker.using, lease=self._worker.options.lease)
        try:
            while not self._worker.exited.is_set():
                self._round()
        finally:
            drop_connection(self._worker.using)

    def _round(self) -> None:
        rest = min(LONGEST_REST, self._worker.rest())
        for event in self._events(rest):
            self._worker.feed(event)
        while self._errands and not self._worker.exited.is_set():
            self._worker.feed(self._carry_out(self._errands.popleft()))
        forget_queries(self._worker.using)
        self.round_at = clock.monotonic()

    def _events(self, rest: float) -> list[Event]:
        """Wait for events, but no longer than ``rest`` seconds; handlers' ends become one event."""
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

    def _carry_out(self, command: StoreCommand) -> Event:
        sent_at = clock.monotonic()
        try:
            event = self._answer(command, sent_at)
        except Exception as error:
            # Whatever it is, results are kept and the driver tries again after a while; a worker that
            # died of it would only hand the same trouble to the next one.
            self._trouble(command, error)
            return CommandFailed(clock.monotonic(), command)
        if self._troubled:
            self._troubled = False
            logger.info("action=database_back worker=%s", self._worker.name)
        return event

    def _answer(self, command: StoreCommand, sent_at: float) -> Event:
        worker, using = self._worker, self._worker.using
        match command:
            case Scan(queues):
                due = scan(queues, using=using)
                return Scanned(clock.monotonic(), due)
            case Claim():
                return self._claim(command, sent_at)
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
                prune_workers(using=using)
                return Swept(clock.monotonic(), command, more=count == PRUNE_SLICE)

    def _claim(self, command: Claim, sent_at: float) -> ClaimAnswered:
        worker, past = self._worker, command.past
        options: dict[str, Any] = {
            "worker": worker.name,
            "lease": worker.options.lease,
            "using": worker.using,
        }
        if command.without:
            names, queue = command.without, command.queue
            taken, past = take_without(names, queue, command.limit, past=past, **options)
        else:
            taken = take(command.queue, command.limit, **options)
        worker.notifier.late(taken.late)
        now, late = clock.monotonic(), len(taken.late)
        return ClaimAnswered(now, command, taken.jobs, sent_at, late=late, past=past)

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
