"""Courtesy: where one connection writes at a time, leave the others time to write.

SQLite keeps no queue of those who wait for its one lock: each looks again after a while, and a writer that
comes back at once is met by nobody. A few busy workers could so keep a web request from writing until its
patience ends ("database is locked"). So a worker rests after each write for as long as the write has taken,
and for much longer than it had to wait itself: then the lock is free for about half of the time, however
many workers there are.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_backwave.store.locking import has_row_locks
from django_backwave.worker import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: How many times as long as it has waited for the lock a worker rests, and the longest rest in seconds.
PER_WAIT, LONGEST = 4.0, 1.0


class Courtesy:
    """Measures the writes of one thread on one connection, and says for how long it shall rest."""

    def __init__(self, using: str) -> None:
        """Measure nothing where rows have locks of their own: there writers meet only on a row."""
        self._using = using
        self._needed = not has_row_locks(using)
        self._waited: float | None = None  # for the lock; None: nothing was written
        self._rest = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measure what is written within the block."""
        if not self._needed:
            yield
            return
        begun, self._waited = clock.monotonic(), None
        try:
            with connections[self._using].execute_wrapper(self._watch):
                yield
        finally:
            self._rest = 0.0
            if self._waited is not None:
                took = clock.monotonic() - begun - self._waited
                self._rest = min(LONGEST, took + PER_WAIT * self._waited)

    def rest(self) -> float:
        """Return the seconds to rest after the latest block."""
        return self._rest

    def _watch(self, run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not sql.startswith("BEGIN"):
            return run(sql, params, many, context)
        begun = clock.monotonic()
        try:
            return run(sql, params, many, context)
        finally:
            self._waited = (self._waited or 0.0) + clock.monotonic() - begun
