"""How long to wait before the next try: plain numbers in, seconds out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

#: Nothing is ever due again sooner than this, in seconds: a failing job must not spin.
SHORTEST_DELAY = 1.0

#: Bounds, in seconds, of the wait between two tries to route one job.
UNROUTABLE_FIRST, UNROUTABLE_CAP = 5.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff with a cap and jitter, stored with each job as numbers.

    ``base`` is the delay in seconds after the first failure; each further failure doubles it, up to
    ``cap`` seconds. ``jitter`` is the share (0 to 1) of the delay that chance may take away, so that
    jobs which failed together do not come back together.
    """

    base: float = 2.0
    cap: float = 300.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        """Refuse numbers that give no sensible delay."""
        for name, least, most in (("base", 0, 10**9), ("cap", 0, 10**9), ("jitter", 0, 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"Backoff {name} must be a number of seconds, got {value!r}.")
            if not least <= value <= most:  # refuses NaN, too
                raise ValueError(f"Backoff {name} must be between {least} and {most}, got {value!r}.")

    @classmethod
    def of_row(cls, base: float, cap: float, jitter: float) -> Backoff:
        """Return what a row's numbers say, bent into range: a row made by hand must stop nobody."""
        return cls(base=_bent(base, 10**9), cap=_bent(cap, 10**9), jitter=_bent(jitter, 1))

    def delay(self, failures: int, *, jitter: float) -> float:
        """Return the seconds to wait after the given number of failures (1 or more).

        ``jitter`` is a random number in [0, 1), handed in by the caller.
        """
        doublings = min(max(failures, 1) - 1, 64)  # 2.0**64 is past any cap and no overflow
        full = min(self.cap, self.base * 2.0**doublings)
        return max(SHORTEST_DELAY, full * (1.0 - self.jitter * jitter))


def delay_seconds(word: str, delay: float | timedelta) -> float:
    """Return the delay that a handler asks for in seconds; ``word`` is what it asks with.

    Raises TypeError or ValueError for what is no delay, or shorter than the shortest.
    """
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{word} takes seconds or a timedelta, got {delay!r}.")
    if not SHORTEST_DELAY <= seconds < 10**9:
        raise ValueError(
            f"{word} takes at least {SHORTEST_DELAY:g} second and less than 10**9, got {delay!r}."
        )
    return float(seconds)


def _bent(value: float, most: float) -> float:
    return min(max(value, 0.0), most) if value == value else 0.0  # NaN is not equal to itself


def routing_delay(unroutable_for: float, *, jitter: float) -> float:
    """Return the seconds until a job that no worker could route is offered again."""
    full = min(UNROUTABLE_CAP, max(UNROUTABLE_FIRST, unroutable_for))
    return full * (1.0 - 0.2 * jitter)
