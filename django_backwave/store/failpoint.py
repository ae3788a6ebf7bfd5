"""Named places between the writes of one transaction, where a test can let the process fail.

Each is a no-op in production. A test that arms one raises there, or kills the process, and then looks whether
all of the transaction is in the database, or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every place, so that a test can go through all of them.
POINTS = (
    "claim: group taken",
    "settle: rows written",
    "settle: history written",
    "settle: tags written",
    "complete: row written",
    "complete: history written",
    "complete: tags written",
    "enqueue: row written",
    "key: row locked",
    "key: generation noted",
    "replace: row written",
    "expire: rows written",
    "expire: history written",
    "release: row written",
    "cancel: rows written",
    "requeue: rows written",
    "run again: jobs written",
    "adjust: rows written",
    "pause: row written",
    "resume: row deleted",
    "prune: jobs deleted",
    "forget: keys deleted",
    "operation: recorded",
    "resolve: tombstone written",
    "prune: operations deleted",
    "once: row locked",
    "once: mark written",
)

_armed: dict[str, Callable[[], None]] = {}


def passing(point: str) -> None:
    """Do nothing, unless a test has armed this place."""
    if _armed:
        _armed.get(point, _nothing)()


def arm(point: str, action: Callable[[], None]) -> None:
    """Let ``action`` happen whenever somebody passes there."""
    if point not in POINTS:
        raise ValueError(f"there is no failpoint {point!r}")
    _armed[point] = action


def disarm() -> None:
    """Let nothing happen anywhere."""
    _armed.clear()


def _nothing() -> None: ...
