"""The heart: renews the leases of what the worker holds, in a thread and on a connection of its own.

It waits for nothing but its own statements: not for a flush, not for the pump.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from django.db import DatabaseError

from django_backwave.core.protocol import Paused, Renewed
from django_backwave.store.heartbeat import announce, renew, withdraw
from django_backwave.store.pause import Pauses, pauses
from django_backwave.worker import clock
from django_backwave.worker.connections import drop_connection, forget_queries, own_connection

if TYPE_CHECKING:
    from django_backwave.worker.worker import Worker

logger = logging.getLogger("django_backwave.worker")

#: Seconds between two writes of the worker's own row.
ANNOUNCE_EVERY = 10.0

#: Seconds between two writes of a job's progress, at least.
PROGRESS_EVERY = 1.0


NOTHING_PAUSED = Pauses(frozenset(), frozenset())


class Heart:
    """Beats until the worker has ended."""

    def __init__(self, worker: Worker) -> None:
        """Serve a worker; ``run`` is the body of the heart's thread."""
        self._worker = worker
        self._wake = threading.Event()
        self._announced_at: float | None = None
        self._pauses: Pauses | None = None
        self._beat_at = clock.monotonic()
        self._news = False
        self.interval = worker.beat_every()
        self.round_at = clock.monotonic()

    def hurry(self, interval: float) -> None:
        """Beat at this interval from now on, if it is shorter: a job with a short lease came in."""
        if interval < self.interval:
            self.interval = interval
            self._wake.set()

    def progress_told(self) -> None:
        """Beat soon, for a handler has told its progress. Never waits."""
        if not self._news:
            self._news = True
            self._wake.set()

    def stop(self) -> None:
        """Let ``run`` return."""
        self._wake.set()

    def run(self) -> None:
        """Beat until the worker has ended."""
        own_connection(self._worker.using, lease=self._worker.options.lease)
        try:
            while not self._worker.exited.is_set():
                self._beat()
                forget_queries(self._worker.using)
                self.round_at = clock.monotonic()
                self.interval = self._worker.beat_every()
                self._rest()
            withdraw(self._worker.name, using=self._worker.using)
        except DatabaseError as error:  # only the farewell can fail so; the row is pruned some day
            logger.warning("action=withdraw_failed error=%s", type(error).__name__)
        finally:
            drop_connection(self._worker.using)

    def _rest(self) -> None:
        """Wait until the next beat is due: after the interval, or sooner if there is progress to write."""
        while not self._worker.exited.is_set():
            wait = min(self.interval, PROGRESS_EVERY) if self._news else self.interval
            rest = self._beat_at + wait - clock.monotonic()
            if rest <= 0:
                break
            self._wake.wait(rest)
            self._wake.clear()

    def _beat(self) -> None:
        worker = self._worker
        sent_at = self._beat_at = clock.monotonic()
        self._news = False  # what is told from here on is for the next beat
        told = worker.told()
        try:
            renewals = renew(
                worker.beating(),
                worker=worker.name,
                lease=worker.options.lease,
                progress={key: text for key, (_, text) in told.items()},
                using=worker.using,
            )
            if worker.wrote(told, renewals):
                self._news = True
            worker.feed(Renewed(clock.monotonic(), renewals, sent_at))
            self._read_pauses()
            self._announce()
        except Exception as error:
            if told:
                self._news = True
            drop_connection(worker.using)
            logger.warning("action=heartbeat_failed error=%s: %s", type(error).__name__, str(error).strip())

    def _read_pauses(self) -> None:
        now = pauses(using=self._worker.using)
        if now != (self._pauses or NOTHING_PAUSED):
            queues, names = (",".join(sorted(each)) or "none" for each in now)
            logger.info("action=pauses_changed queues=%s names=%s", queues, names)
        self._pauses = now
        self._worker.feed(Paused(clock.monotonic(), now.queues, now.names))

    def _announce(self) -> None:
        now = clock.monotonic()
        if self._announced_at is None or now - self._announced_at >= ANNOUNCE_EVERY:
            announce(**self._worker.description(), using=self._worker.using)
            self._announced_at = now
