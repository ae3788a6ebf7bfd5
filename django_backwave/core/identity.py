"""What an enqueue with a key comes to: one decision over what is known of the key's generations.

A queue and a key name logical work. Each run of it is a generation, 1, 2, 3 …, and a job of its own.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


class OnConflict(StrEnum):
    """What an enqueue asks for where its key has a generation whose window is not over."""

    RETURN = "return"  # that generation, untouched
    NEW_GENERATION = "new_generation"  # another run, once that one is settled
    REJECT = "reject"
    REPLACE = "replace"  # that generation with the new work, as long as it has never started


class Window(StrEnum):
    """Until when a key leads to the generation that exists, beside a number of seconds from its enqueue."""

    FOREVER = "forever"
    UNFINISHED = "unfinished"  # until no generation is unfinished
    PENDING = "pending"  # until the newest has started


class Standing(Enum):
    """How far a generation has come."""

    PENDING = "pending"  # it waits, and no attempt of it has ever started
    STARTED = "started"  # it is unfinished; a claim counts as a start
    SETTLED = "settled"  # it is finished, or its row is gone


class Intent(NamedTuple):
    """What an enqueue says of its key. ``names``: the job names that are its own, former ones included."""

    key: str
    on_conflict: OnConflict
    window: Window | float
    names: frozenset[str]


class Current(NamedTuple):
    """The generation that a key leads to: the newest unfinished one, else the newest.

    ``newest``: how far the newest generation has come; ``age``: seconds since its enqueue.
    """

    name: str
    standing: Standing
    newest: Standing
    age: float

    @property
    def is_unfinished(self) -> bool:
        """Whether some generation has not been settled."""
        return self.standing is not Standing.SETTLED


class Verdict(Enum):
    """What becomes of an enqueue with a key."""

    NEW = "new"
    RETURN = "return"
    REPLACE = "replace"
    DUPLICATE = "duplicate"  # refused: there is a generation
    BUSY = "busy"  # refused: there is a generation that is unfinished
    TAKEN = "taken"  # refused: the key belongs to another job name


def decide(intent: Intent, current: Current | None) -> Verdict:
    """Say what becomes of an enqueue; ``current`` is None where the key has no generation yet."""
    if current is None or _is_over(intent.window, current):
        return Verdict.NEW
    if current.name not in intent.names:
        return Verdict.TAKEN
    match intent.on_conflict:
        case OnConflict.RETURN:
            return Verdict.RETURN
        case OnConflict.NEW_GENERATION if not current.is_unfinished:
            return Verdict.NEW
        case OnConflict.REPLACE if current.standing is Standing.PENDING:
            return Verdict.REPLACE
        case OnConflict.REJECT:
            return Verdict.DUPLICATE
    return Verdict.BUSY if current.is_unfinished else Verdict.DUPLICATE


def _is_over(window: Window | float, current: Current) -> bool:
    match window:
        case Window.FOREVER:
            return False
        case Window.UNFINISHED:
            return not current.is_unfinished
        case Window.PENDING:
            return current.newest is not Standing.PENDING
    return current.age >= window
