"""How many jobs to claim ahead of a free slot: as many as the worker will start within a moment.

A job claimed ahead saves the wait for a round trip, and with it most of the time of a short job. It must
never be hoarded: so the number follows the worker's own recent run times, slow ones at once and quick ones
by and by, and what has waited too long all the same is handed back.
"""

from __future__ import annotations

#: Seconds within which a worker shall have started what it claims ahead.
WITHIN = 0.1

#: Jobs that are claimed ahead at most, however quick they are.
MOST = 490

#: Seconds after which jobs that were claimed ahead and have not started are handed back.
PATIENCE = 0.25

#: How much one run time counts, where it is longer than the mean of the latest, and where it is not.
SLOWER, QUICKER = 0.3, 0.1


class Ahead:
    """Estimates the room ahead for a worker with so many slots."""

    def __init__(self, concurrency: int) -> None:
        """Begin with no run time known, and so with no room."""
        self._concurrency = concurrency
        self._mean: float | None = None

    def ran(self, seconds: float) -> None:
        """Take note of how long an attempt has held its slot."""
        if self._mean is None:
            self._mean = seconds
        else:
            self._mean += (seconds - self._mean) * (SLOWER if seconds > self._mean else QUICKER)

    def was_wrong(self) -> None:
        """Take note that jobs claimed ahead had to wait for too long: begin again with no room."""
        self._mean = None

    @property
    def room(self) -> int:
        """The jobs that may be held beyond the slots."""
        if self._mean is None:
            return 0
        return int(min(MOST, self._concurrency * WITHIN / max(self._mean, 1e-6)))
