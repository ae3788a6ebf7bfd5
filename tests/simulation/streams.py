"""Random numbers addressed by what they are for: removing one decision leaves all others as they are."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

SEEDS = 2**64


class Stream:
    """The random numbers of one address, always the same ones."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._drawn = 0

    def bits(self) -> int:
        """Return 64 random bits."""
        self._drawn += 1
        digest = blake2b(f"{self._address}#{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        return (self.bits() >> 11) / 2**53

    def chance(self, share: float) -> bool:
        """Return True in this share of all cases."""
        return self.unit() < share

    def between(self, least: float, most: float) -> float:
        """Return a number in [least, most)."""
        return least + (most - least) * self.unit()

    def among(self, least: int, most: int) -> int:
        """Return a whole number from least to most."""
        return least + self.bits() % (most - least + 1)

    def pick[T](self, choices: Sequence[T]) -> T:
        """Return one of these."""
        return choices[self.bits() % len(choices)]


class Streams:
    """All streams of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def of(self, *address: object) -> Stream:
        """Return the stream for an address, from its beginning."""
        return Stream(":".join(map(str, (self.seed, *address))))
