"""How a wait for a job spends its time: quick looks first, slower ones later, and when to listen instead.

Looking is what finds the end. Whoever listens is told of it at once, and still looks every few seconds, for a
notification may be lost.
"""

from __future__ import annotations

import math

#: Seconds until the second look and, as they double, between two looks at most.
FIRST, LONGEST = 0.005, 1.0

#: Seconds of looking after which it is worth a connection to listen.
LISTEN_AFTER = 0.1

#: Seconds between two looks of who listens.
LISTENING = 5.0

#: Seconds until the second try to listen and, as they double, between two tries at most.
RETRY_FIRST, RETRY_LONGEST = 1.0, 30.0


class Patience:
    """One wait. All instants are seconds on the waiting process's own clock."""

    def __init__(self, began: float, timeout: float | None, *, may_listen: bool) -> None:
        """Begin; ``timeout``: seconds, None for ever. ``may_listen``: whether there is something to hear."""
        self._end = math.inf if timeout is None else began + timeout
        self._listen_at = began + LISTEN_AFTER if may_listen else math.inf
        self._retry, self._pause = RETRY_FIRST, FIRST

    def is_over(self, now: float) -> bool:
        """Whether the time is up."""
        return now >= self._end

    def tries_to_listen(self, now: float) -> bool:
        """Whether it is time to try to listen, for who does not; that counts as a try."""
        if now < self._listen_at:
            return False
        self._listen_at, self._retry = now + self._retry, min(2 * self._retry, RETRY_LONGEST)
        return True

    def pause(self, now: float, *, listening: bool, chance: float) -> float:
        """Return for how many seconds to pause until the next look.

        ``chance``, a number in [0, 1), takes up to a half away, so that those who began together part.
        """
        longest = LISTENING if listening else self._pause
        if not listening:
            self._pause = min(2 * self._pause, LONGEST)
        return max(0.0, min(longest * (1 - chance / 2), self._end - now))
