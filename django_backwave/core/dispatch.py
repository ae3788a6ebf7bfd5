"""Which queue to claim from next: those with due jobs, in turn, so that none starves."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Rotation:
    """The queues believed to have due jobs, each served in its turn.

    Belief is only a hint: an empty claim corrects it, and a scan finds what it missed.
    """

    def __init__(self) -> None:
        """Begin with no queue."""
        self._turns: OrderedDict[str, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether any queue is believed to have due jobs."""
        return bool(self._turns)

    def add(self, names: Iterable[str]) -> None:
        """Take up queues at the end of the round; those already in it keep their turn."""
        for name in names:
            self._turns.setdefault(name)

    def next(self) -> str:
        """Return the queue whose turn it is, and put it at the end of the round."""
        name = next(iter(self._turns))
        self._turns.move_to_end(name)
        return name

    def others(self, count: int) -> tuple[str, ...]:
        """Return the next queues in the round, up to so many, but for the one that was served last."""
        return tuple(islice(self._turns, min(count, len(self._turns) - 1)))

    def served(self, names: Iterable[str]) -> None:
        """Put queues at the end of the round: they had their turn along with another."""
        for name in names:
            if name in self._turns:
                self._turns.move_to_end(name)

    def drop(self, name: str) -> None:
        """Forget a queue: it gave fewer jobs than were asked for."""
        self._turns.pop(name, None)
