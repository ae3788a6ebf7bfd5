"""When to look which queues have due jobs: soon after work, and more and more rarely after none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from django_backwave.core.protocol import Scanned

#: The first wait of an idle worker, in seconds; it doubles up to the poll interval.
EAGER = 0.025

#: While there is work a scan is followed by so many times as long without one, up to so many seconds.
SCAN_SHARE, SCAN_CAP = 20, 10.0


class Lookout:
    """The times of the scans, and what the latest one means."""

    def __init__(self, now: float, *, poll: float, random: Callable[[], float]) -> None:
        """Begin with a scan at once.

        ``poll``: about the longest wait of an idle worker in seconds, for chance makes it up to a quarter
        longer. While there is work a slow scan may be followed by up to ``SCAN_CAP`` seconds without one.
        """
        self._poll = poll
        self._random = random
        self._idle = 0
        self._told: set[str] = set()  # queues of which a wake-up has told
        self._sent_at = now
        self._calm = False  # no job has come up since the latest scan was sent …
        self.fresh = False  # … and this is what it was when that scan was answered
        self.scanning = False
        self.next_at = now

    def sent(self, now: float) -> None:
        """Take note that a scan is under way."""
        self.scanning = self._calm = True
        self._sent_at = now

    def failed(self) -> None:
        """Take note that a scan was not answered."""
        self.scanning = False

    def answered(self, event: Scanned, *, closed: Collection[str], busy: bool) -> list[str]:
        """Return the queues with due jobs, and set the time of the next scan.

        ``closed``: queues that are paused, or else they would wake us for nothing. ``busy``: there was work
        in a queue already.
        """
        self.scanning = False
        self.fresh = self._calm
        seconds = {queue: seconds for queue, seconds in event.due.items() if queue not in closed}
        due = [queue for queue in seconds if seconds[queue] <= 0]
        self._idle = 0 if due else self._idle + 1
        wait = min(self._poll, EAGER * 2.0 ** min(self._idle, 32))
        wait = self._poll if due else wait * (0.75 + 0.5 * self._random())
        if due or busy:
            # Behind an old snapshot a scan may be dear; then it must not take most of the time.
            wait = max(wait, min(SCAN_SHARE * (event.now - self._sent_at), SCAN_CAP))
        self.next_at = event.now + min([wait, *(later for later in seconds.values() if later > 0)])
        return due

    def by(self, at: float) -> None:
        """Look at this time at the latest."""
        self.next_at = min(self.next_at, at)

    def soon(self, now: float) -> None:
        """Look again in a moment."""
        self.by(now + EAGER)

    def stirred(self, now: float, *, busy: bool) -> None:
        """Look again soon: where there was work there may be more, and what ran may have enqueued."""
        self.fresh = self._calm = False
        self._idle = 0
        if not busy:
            self.soon(now)

    def told(self, queue: str) -> None:
        """Take note that a wake-up has told of a queue."""
        self._told.add(queue)

    def came_short(self, queue: str, now: float, *, busy: bool) -> None:
        """Take note that a queue had less than was asked of it.

        Look again soon if a wake-up told of it: not each job is told of, and one may be under way.
        """
        if queue in self._told:
            self._told.discard(queue)
            self._idle = 0
            self.soon(now)
        if not busy:
            self.by(now + self._poll)
