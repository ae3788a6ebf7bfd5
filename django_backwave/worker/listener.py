"""The listener: hears of what is enqueued on PostgreSQL, and wakes the pump.

It saves time and does nothing else: the pump polls all the same, and while there is nothing to hear the
worker works without. So whatever happens here ends no worker.
"""

from __future__ import annotations

import logging
import selectors
import socket
from typing import TYPE_CHECKING

from django_backwave.core.protocol import Woken
from django_backwave.store.notify import ANYWHERE, Subscription, alias_to_listen, cannot_listen
from django_backwave.worker import clock
from django_backwave.worker.connections import drop_connection, own_connection

if TYPE_CHECKING:
    from django_backwave.worker.worker import Worker

logger = logging.getLogger("django_backwave.worker")

#: Seconds of silence after which the server is asked whether it is still there, and then has to answer.
ASK_AFTER, ANSWER_IN = 15.0, 10.0

#: Seconds until the first and, as it doubles, the longest wait before connecting again.
RETRY_FIRST, RETRY_CAP = 0.5, 30.0


def listening_alias(using: str) -> str | None:
    """Return the alias over which to listen for jobs of another, None if there is nothing to listen to."""
    alias = alias_to_listen(using)
    if alias is None:
        return None
    reason = cannot_listen(alias)
    if reason is not None:
        logger.warning("action=notify_unavailable database=%s error=%s: the worker polls", alias, reason)
        return None
    return alias


class Listener:
    """Listens until the worker has ended, on a connection of its own."""

    def __init__(self, worker: Worker, alias: str) -> None:
        """Serve a worker; ``run`` is the body of the listener's thread."""
        self._worker = worker
        self._alias = alias
        self._silent = False  # there is nothing to hear, and that was told
        self._failures = 0
        self._listens_since: float | None = None
        self._bell, self._rope = socket.socketpair()  # who pulls the rope ends a wait

    def stop(self) -> None:
        """Let ``run`` return."""
        self._rope.close()

    def run(self) -> None:
        """Listen until the worker has ended, and connect again as often as it takes."""
        own_connection(self._alias, lease=self._worker.options.lease)
        with self._bell:
            while not self._worker.exited.is_set():
                try:
                    self._listen()
                except Exception as error:
                    drop_connection(self._alias)
                    self._fell_silent(error)
        drop_connection(self._alias)

    def _listen(self) -> None:
        subscription = Subscription(self._alias)
        if self._silent:
            logger.info("action=notify_back worker=%s database=%s", self._worker.name, self._alias)
        self._silent = False
        self._listens_since = clock.monotonic()
        self._wake({ANYWHERE})  # who knows what was said while nobody listened
        with selectors.DefaultSelector() as selector:
            selector.register(subscription, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while not self._worker.exited.is_set():
                if selector.select(ANSWER_IN if subscription.asked else ASK_AFTER):
                    self._wake(subscription.heard())
                elif subscription.asked:
                    raise TimeoutError(f"the server has not answered for {ANSWER_IN:g} seconds")
                else:
                    subscription.ask()

    def _wake(self, payloads: set[str]) -> None:
        for payload in payloads:
            self._worker.pump.put(Woken(clock.monotonic(), payload or None))

    def _fell_silent(self, error: Exception) -> None:
        """Say once that the worker only polls, and wait before the next try."""
        if not self._silent:
            logger.warning(
                "action=notify_unavailable worker=%s database=%s error=%s: %s: the worker only polls for now",
                self._worker.name,
                self._alias,
                type(error).__name__,
                str(error).partition("\n")[0],
            )
        self._silent = True
        since, self._listens_since = self._listens_since, None
        if since is not None and clock.monotonic() - since >= RETRY_CAP:
            self._failures = 0  # and not after a connection that was lost as soon as it was made
        wait = min(RETRY_CAP, RETRY_FIRST * 2.0 ** min(self._failures, 32))
        self._failures += 1
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            selector.select(wait * (0.5 + 0.5 * clock.random()))
