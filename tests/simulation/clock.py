"""Virtual time: whole microseconds from the beginning of a run, which is an instant like any other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BEGINNING = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

SECOND = 1_000_000


class Clock:
    """True time; the scheduler alone moves it."""

    def __init__(self) -> None:
        self.micros = 0

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self.micros / SECOND

    @property
    def instant(self) -> datetime:
        """The instant, as databases and people write it."""
        return at(self.micros)


class OwnClock:
    """A host's monotonic clock: it may jump ahead, or stand still until true time has caught up."""

    def __init__(self, true: Clock) -> None:
        self._true = true
        self._offset = 0
        self._latest = 0.0
        self.honest = True

    def jump(self, seconds: float) -> None:
        """Put the clock forward, or, with a negative number, let it stand still for a while."""
        self.read()
        self._offset += round(seconds * SECOND)
        self.honest = False

    def read(self) -> float:
        """Return the time, in seconds."""
        self._latest = max(self._latest, 1000.0 + (self._true.micros + self._offset) / SECOND)
        return self._latest

    def until(self, own: float) -> float:
        """Return the true seconds until this clock shows a time."""
        return own - (1000.0 + (self._true.micros + self._offset) / SECOND)


def at(micros: int) -> datetime:
    """Return the instant so many microseconds after the beginning."""
    return BEGINNING + timedelta(microseconds=micros)


def micros_of(instant: datetime) -> int:
    """Return what ``at`` was given."""
    return (instant - BEGINNING) // timedelta(microseconds=1)
