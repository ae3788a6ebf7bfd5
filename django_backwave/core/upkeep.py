"""When to sweep, to prune, and to hand back what a claim took whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave.core.protocol import Prune, ReleaseUnknown, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from django_backwave.core.protocol import AttemptKey, Command, StoreCommand

#: Seconds between sweeps, and between prunes.
SWEEP_EVERY, PRUNE_EVERY = 4.0, 60.0

#: Seconds until a full slice of a prune is followed by the next.
NEXT_SLICE = 1.0

#: Seconds before a locked row is tried again.
LOCKED_RETRY = 0.25


class Upkeep:
    """The worker's chores at the database, one of a kind under way at most."""

    def __init__(self, now: float, random: Callable[[], float]) -> None:
        """Begin with a sweep; ``random`` draws a number in [0, 1)."""
        self._random = random
        self._under_way: set[type] = set()
        self._next_sweep = now
        self._next_prune = now + PRUNE_EVERY * random()
        self._doubt_until = now
        self._release_wanted = False
        self._release_at = now

    # Sweeps and prunes.

    def chores(self, now: float) -> list[Command]:
        """Return the sweep and the prune that are due."""
        commands: list[Command] = []
        if now >= self._next_sweep and Sweep not in self._under_way:
            self._next_sweep = now + self._spread(SWEEP_EVERY)
            commands.append(Sweep())
        if now >= self._next_prune and Prune not in self._under_way:
            self._next_prune = now + self._spread(PRUNE_EVERY)
            commands.append(Prune())
        self._under_way.update(type(command) for command in commands)
        return commands

    def chores_at(self) -> list[float]:
        """Return when the next ones are due."""
        times = {Sweep: self._next_sweep, Prune: self._next_prune}
        return [at for kind, at in times.items() if kind not in self._under_way]

    def done(self, now: float, command: StoreCommand, *, more: bool) -> None:
        """Take note of an answer; ``more``: the bound of a slice was reached, or rows were locked."""
        self._under_way.discard(type(command))
        match command:
            case ReleaseUnknown() if more:
                self._release_wanted, self._release_at = True, now + LOCKED_RETRY
            case Sweep() if more:
                self._next_sweep = now
            case Prune() if more:
                self._next_prune = now + NEXT_SLICE

    def failed(self, command: StoreCommand) -> None:
        """Take note that a chore was not done."""
        self._under_way.discard(type(command))
        if isinstance(command, ReleaseUnknown):
            self._release_wanted = True

    def _spread(self, seconds: float) -> float:
        return seconds * (0.75 + 0.5 * self._random())

    # Handing back what was claimed without an answer. A claim under way would lose what it returns.

    def doubt(self, until: float) -> None:
        """Hand back what is not known now, and again while a lost claim may still commit."""
        self._doubt_until = until
        self._release_wanted = True

    def in_doubt(self, now: float) -> bool:
        """Whether a claim whose answer was lost may still commit."""
        return now < self._doubt_until

    def want_release(self) -> None:
        """Hand back what is not known as soon as that may be."""
        self._release_wanted = True

    @property
    def releasing(self) -> bool:
        """Whether a release is under way."""
        return ReleaseUnknown in self._under_way

    @property
    def release_pending(self) -> bool:
        """Whether a release is wanted or under way."""
        return self._release_wanted or self.releasing

    def release(self, now: float, known: Collection[AttemptKey]) -> list[Command]:
        """Return the release that is due, of all but the attempts known."""
        if not self._release_wanted or self.releasing or now < self._release_at:
            return []
        self._release_wanted = False
        self._under_way.add(ReleaseUnknown)
        return [ReleaseUnknown(frozenset(known))]

    def release_at(self, now: float) -> list[float]:
        """Return when the next release is due."""
        due = self._release_wanted and not self.releasing
        return [max(now, self._release_at)] if due else []
