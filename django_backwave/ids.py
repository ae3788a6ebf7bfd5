"""Job ids: UUID version 7, made by the client and rising within a process."""

from __future__ import annotations

import os
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta


class IdSource:
    """Makes UUIDv7 (RFC 9562, section 5.7) that rise strictly, also within one millisecond.

    48 bits of Unix time in milliseconds, then 74 random bits, of which a run of ids in the same
    millisecond counts upwards (section 6.2, method 2). A clock that jumps back is waited out by
    counting on from the last id.
    """

    def __init__(self) -> None:
        """Begin with no id made."""
        self.reset()

    def reset(self) -> None:
        """Forget the last id, and a lock that another thread may have held at a fork."""
        self._lock = threading.Lock()
        self._last = 0  # milliseconds and random bits of the last id, as one number

    def next(self) -> uuid.UUID:
        """Return an id greater than any that this source has made."""
        return self.run(1)[0]

    def run(self, count: int) -> list[uuid.UUID]:
        """Return so many ids in a row, each greater than the one before."""
        millis = time.time_ns() // 1_000_000
        # The top random bit stays clear, so that counting up does not run into the time at once.
        fresh = (millis << 74) | (int.from_bytes(os.urandom(10), "big") >> 7)
        with self._lock:
            first = fresh if fresh >> 74 > self._last >> 74 else self._last + 1
            self._last = first + count - 1
        return [_uuid(value) for value in range(first, first + count)]


def _uuid(value: int) -> uuid.UUID:
    """Put version and variant between the time and the random bits."""
    stamp, rest = value >> 74, value & ((1 << 74) - 1)
    return uuid.UUID(int=stamp << 80 | 7 << 76 | rest >> 62 << 64 | 2 << 62 | rest & (1 << 62) - 1)


_source = IdSource()


def new_id() -> uuid.UUID:
    """Return a new job id, greater than any that this process has made."""
    return _source.next()


def new_ids(count: int) -> list[uuid.UUID]:
    """Return so many new job ids, each greater than the one before."""
    return _source.run(count)


def made_at(id: uuid.UUID) -> datetime:
    """Return when an id of ours was made, by the clock of the host that made it."""
    return _EPOCH + timedelta(milliseconds=id.int >> 80)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# A forked child must not repeat its parent's ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_source.reset)
