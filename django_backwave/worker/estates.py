"""What dead workers have left: leases under their names, which the supervisor settles.

A dead process is proof that its code has stopped. So its leases are settled at once, and not when they lapse:
as abandoned, unless the worker had said that it ended in order. A statement that it had sent may commit after
its death, so that is repeated for as long as one lease; what comes even later lapses, and is swept like any
other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_backwave.store.expire import SLICE, Expired, expire_dead
from django_backwave.store.heartbeat import withdraw
from django_backwave.worker.connections import drop_connection, own_connection
from django_backwave.worker.notifier import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("django_backwave.worker")

#: The first wait, in seconds, before leases are looked for again; it doubles. The wait after an error.
WAIT_FIRST, WAIT_TROUBLE = 0.25, 1.0

#: The lease from which the bounds of these statements follow: none may hold the supervisor up for long.
SHORT_LEASE = 10.0

#: Seconds that receivers of signals have.
TELL_PATIENCE = 5.0


@dataclass(slots=True)
class _Estate:
    """What one worker may have left."""

    name: str
    ordered: bool
    until: float
    settle_at: float
    wait: float = WAIT_FIRST


class Estates:
    """Settles them, on a connection that is open only meanwhile."""

    def __init__(self, *, using: str, lease: float, jitter: Callable[[], float]) -> None:
        """Begin with none. ``jitter`` draws a random number in [0, 1)."""
        self._using = using
        self._lease = lease
        self._jitter = jitter
        self._left: list[_Estate] = []

    def add(self, name: str, now: float, *, ordered: bool) -> None:
        """Take charge of what a worker of this name has left, for as long as one lease."""
        self._left.append(_Estate(name, ordered, until=now + self._lease, settle_at=now))

    def settle(self, now: float) -> None:
        """Settle what is due to be looked at."""
        self._settle([estate for estate in self._left if estate.settle_at <= now], now)

    def settle_all(self, now: float) -> None:
        """Settle what is there, once, before the supervisor ends."""
        self._settle(self._left, now)

    def _settle(self, estates: list[_Estate], now: float) -> None:
        if not estates:
            return
        own_connection(self._using, lease=SHORT_LEASE)
        try:
            for estate in estates:
                self._settle_one(estate)
                estate.settle_at, estate.wait = min(now + estate.wait, estate.until), estate.wait * 2
        except Exception as error:  # of the database; whatever it is, it is tried again
            for estate in estates:
                estate.settle_at = max(estate.settle_at, now + WAIT_TROUBLE)
            logger.warning(
                "action=database_trouble command=settle_dead error=%s: %s",
                type(error).__name__,
                str(error).strip(),
            )
        finally:
            drop_connection(self._using)
        self._left = [estate for estate in self._left if now < estate.until]

    def _settle_one(self, estate: _Estate) -> None:
        more = True
        while more:
            ended = expire_dead(estate.name, ordered=estate.ordered, jitter=self._jitter, using=self._using)
            _tell(ended, ordered=estate.ordered)
            more = len(ended) == SLICE
        withdraw(estate.name, using=self._using)


def _tell(ended: list[Expired], *, ordered: bool) -> None:
    """Log each lease that was settled; of abandoned ones send the signals, too, as a worker does."""
    if ordered:
        for lease in ended:
            logger.warning(
                "action=released_after_end job=%s name=%s attempt=%s worker=%s next=%s",
                lease.key.job_id,
                lease.name,
                lease.key.attempt,
                lease.worker,
                lease.state.label,
            )
    elif ended:
        notifier = (
            Notifier()
        )  # its thread lives for this only: receivers may hang, and the supervisor must not
        notifier.start()
        notifier.expired(ended)
        notifier.stop(TELL_PATIENCE)
