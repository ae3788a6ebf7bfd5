"""What a check finds: its severity, one line with numbers, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is. An error is a broken promise; a warning is something for an operator to look at."""

    OK = "ok"
    UNAVAILABLE = "not available"  # this database, or this user's rights, cannot answer
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer of one check: ``text`` is one line, ``remedy`` what to do about it, if anything."""

    check: str
    severity: Severity
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is looked at, and from where on it is told. Durations are seconds."""

    rows: int = 1000  # of each state
    timeout: float = 5.0  # of each statement
    unswept: float = 60.0  # workers sweep every few seconds
    unserved: float = 60.0  # a deploy may leave a queue alone for a moment
    due_age: float = 3600.0
    pause_age: float = 3600.0
    silent_age: float = 3600.0  # what died longer ago is history
    transaction_age: float = 600.0
    history_length: int = 1_000_000  # InnoDB's undo records
    dead_rows: int = 10_000
    dead_share: float = 0.5
    clock: float = 5.0


class Unavailable(Exception):
    """Raised by a check that this database cannot answer; the message says why."""


def counted(number: int, one: str, many: str = "", *, more: bool = False) -> str:
    """Say how many: ``1 job``, ``3 jobs``, ``at least 1,000 jobs``."""
    word = one if number == 1 and not more else many or f"{one}s"
    return f"{'at least ' if more else ''}{number:,} {word}"


def listed(names: list[str], most: int = 3) -> str:
    """Name the first few of them."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
