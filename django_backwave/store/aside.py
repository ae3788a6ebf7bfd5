"""Claim while job names are paused: look past them, a bounded number of jobs at a time.

No index leads to "the first due job of any other name", and none is worth its cost in every claim. So a
claim looks at one window of at most ``WINDOW`` jobs of each priority, and tells how far it came; the next
one begins there. A hundred thousand paused jobs at the head of a queue cost a hundred such looks, once in a
while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_backwave.core.protocol import Place
from django_backwave.instants import to_utc
from django_backwave.models.fields import by_instant
from django_backwave.store import clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from django_backwave.models import Job

#: How many jobs of each priority one claim looks at.
WINDOW = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The due jobs of one priority behind ``after`` and up to ``end``; None: from the first, to the last."""

    after: Place | None
    end: Place | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """What a claim leaves aside: these names; and where it looks for others, by priority, highest first."""

    names: tuple[str, ...]
    windows: dict[int, Window]

    def parts(self, due: QuerySet[Job], priority: int) -> Iterator[QuerySet[Job]]:
        """Yield those among a priority's due jobs that a claim may take, in order, in parts."""
        window = self.windows[priority]
        for part in _parts(due, window.after, window.end):
            yield part.exclude(name__in=self.names)

    def past(self) -> tuple[Place, ...]:
        """Return how far a claim has come that took all it could in these windows."""
        return tuple(place for window in self.windows.values() if (place := window.end or window.after))

    def values(self) -> dict[str, Any]:
        """Return the parameters of the claim's statement on PostgreSQL."""
        after = [window.after for window in self.windows.values()]
        end = [window.end for window in self.windows.values()]
        return {
            "without": list(self.names),
            "priorities": list(self.windows),
            "after_at": [place and place.due_at for place in after],
            "after_id": [place and place.job_id for place in after],
            "end_at": [place and place.due_at for place in end],
            "end_id": [place and place.job_id for place in end],
        }


#: PostgreSQL: the windows, in place of the priorities that are found step by step.
LEVELS = """level(priority, after_at, after_id, end_at, end_id) AS (
            SELECT * FROM unnest(%(priorities)s::smallint[],
                                 %(after_at)s::timestamptz[], %(after_id)s::uuid[],
                                 %(end_at)s::timestamptz[], %(end_id)s::uuid[])
        )"""

#: PostgreSQL: what a job has to fulfil besides. Comparisons of rows are conditions of the claim's index.
CONDITION = """
    AND (j.due_at, j.id) > (COALESCE(level.after_at, '-infinity'),
                            COALESCE(level.after_id, '00000000-0000-0000-0000-000000000000'))
    AND (j.due_at, j.id) <= (COALESCE(level.end_at, 'infinity'),
                             COALESCE(level.end_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
    AND j.name <> ALL(%(without)s::varchar[])"""


def look(
    queue: QuerySet[Job],
    priorities: Iterable[int],
    names: Sequence[str],
    past: Sequence[Place],
    *,
    using: str,
    now: datetime | None,
) -> Aside:
    """Find the windows in which the next claim of a queue looks, beyond the places ``past``."""
    begun = {place.priority: place for place in past}
    windows = {}
    for priority in priorities:
        due = queue.filter(priority=priority, due_at__lte=clock.statement(using, now))
        after = begun.get(priority)
        windows[priority] = Window(after=after, end=_end(due, priority, after))
    return Aside(names=tuple(names), windows=windows)


def _end(due: QuerySet[Job], priority: int, after: Place | None) -> Place | None:
    """Return the last place of the window behind another one; None if the due jobs end before."""
    room = WINDOW
    for part in _parts(due, after, None):
        places = part.order_by(by_instant("due_at"), "pk").values_list("due_at", "pk")
        for at, job_id in places[room - 1 : room]:
            return Place(priority, to_utc(at), job_id)
        room -= places[:room].count()
    return None


def _parts(jobs: QuerySet[Job], after: Place | None, end: Place | None) -> Iterator[QuerySet[Job]]:
    """Yield what lies behind a place and up to another, in order, each part one range of the claim's index.

    Many jobs may have come due at the same instant, so an instant alone is no place; and comparisons of
    rows, or an OR in their stead, are no range of an index everywhere.
    """
    between = jobs
    if after and end and after.due_at == end.due_at:
        yield jobs.filter(due_at=after.due_at, pk__gt=after.job_id, pk__lte=end.job_id)
        return
    if after:
        yield jobs.filter(due_at=after.due_at, pk__gt=after.job_id)
        between = between.filter(due_at__gt=after.due_at)
    yield between.filter(due_at__lt=end.due_at) if end else between
    if end:
        yield jobs.filter(due_at=end.due_at, pk__lte=end.job_id)
