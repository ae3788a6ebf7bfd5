"""A clock that stands still until a test moves it, in the place of the database's (G10)."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils import timezone

from django_backwave.backend import jobs_database
from django_backwave.instants import to_rim, to_utc
from django_backwave.payload import shown
from django_backwave.store import clock as store_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    #: Told of each move, after it: the instants before and now.
    type Watcher = Callable[[datetime, datetime], None]


class Clock:
    """Tells the time of everything about jobs while ``virtual_clock`` is open. Other code keeps its own."""

    def __init__(self, start: datetime | None = None) -> None:
        """Begin at an instant; None: at the database's time when somebody first asks."""
        self._at = None if start is None else checked_instant(start, "start")
        self._ahead = timedelta()  # moved before anybody had asked
        self._watchers: list[Watcher] = []

    @property
    def now(self) -> datetime:
        """The time: aware and in UTC under USE_TZ, else naive local time."""
        return to_rim(self.tell(jobs_database()))

    def tell(self, using: str) -> datetime:
        """Return the time, aware and in UTC; the first time it may read the database's clock."""
        if self._at is None:
            with store_clock.told_by(None):
                self._at = store_clock.read(using) + self._ahead
        return self._at

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Move the clock forward. Nothing runs because of it: that is for ``run_jobs``.

        Within a handler it is as if the handler took so long: its lease is renewed meanwhile, it learns of a
        cancel, and its time-out applies. Raises ValueError for what is no way forward.
        """
        step = (by or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step <= timedelta():
            raise ValueError(f"A clock only moves forward, got {step}. Write clock.advance(hours=1), say.")
        if self._at is None:
            self._ahead += step
        else:
            self._move(self._at + step)

    def move_to(self, instant: datetime) -> None:
        """Move the clock to an instant, aware under USE_TZ. Raises ValueError if that is past."""
        to = checked_instant(instant, "the instant")
        now = self.tell(jobs_database())
        if to < now:
            raise ValueError(f"A clock only moves forward: it is {to_rim(now)}, got {to_rim(to)}.")
        self._move(to)

    @contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Tell somebody of each move for a while."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _move(self, to: datetime) -> None:
        before, self._at = self._at or to, to
        for watcher in self._watchers:
            watcher(before, to)


_open: list[Clock] = []


@contextmanager
def virtual_clock(start: datetime | None = None) -> Iterator[Clock]:
    """Let jobs live by a clock that stands still until it is moved, and give that clock.

    Enqueues, ``run_jobs`` and everything else that asks what is due go by it, in this process. It begins at
    ``start``, else at the time of the database. A TestCase writes ``self.enterContext(virtual_clock())``.
    """
    clock = Clock(start)
    _open.append(clock)
    try:
        with store_clock.told_by(clock.tell):
            yield clock
    finally:
        _open.remove(clock)


def current() -> Clock | None:
    """Return the clock that is open, the innermost if there are several."""
    return _open[-1] if _open else None


def checked_instant(value: object, what: str) -> datetime:
    """Return a datetime as an aware one in UTC. Raises TypeError or ValueError."""
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be a datetime, got {shown(value)}.")
    if settings.USE_TZ and timezone.is_naive(value):
        raise ValueError(f"{what} must be an aware datetime, because USE_TZ is True; got {shown(value)}.")
    return to_utc(value)
