"""Pages by key and not by number: no page costs more for lying deep, and nothing is ever counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.paginator import Page as DjangoPage
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Q

from django_backwave.instants import to_utc
from django_backwave.models.fields import by_instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import Model, QuerySet

#: How many rows a page looks at, at most, for conditions that no index serves.
WINDOW = 50_000


@dataclass(frozen=True, slots=True)
class Position:
    """Where a row stands in a walk: its instant, if the walk goes by one, and its primary key.

    What lies beyond a ``closed`` position begins with that very row.
    """

    at: datetime | None
    pk: Any
    closed: bool = False

    def token(self) -> str:
        """Return the position as a page's address carries it."""
        at = "" if self.at is None else to_utc(self.at).isoformat().replace("+00:00", "Z")
        return f"{'=' if self.closed else ''}{at}~{self.pk}"

    @classmethod
    def parse(cls, token: str, model: type[Model], *, timed: bool) -> Position:
        """Read a token. Raises ValueError if it is none, or of another kind of walk."""
        at, mark, pk = token.removeprefix("=").partition("~")
        if not mark or bool(at) is not timed or "\0" in pk:
            raise ValueError(f"no position: {token!r}")
        try:
            instant = to_utc(datetime.fromisoformat(at)) if at else None
            return cls(instant, model._meta.pk.to_python(pk), closed=token.startswith("="))
        except (OverflowError, ValidationError) as error:
            raise ValueError(f"no position: {token!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A way through rows along an index.

    It goes by the instant ``key``, or else by the primary key alone. Each lane is a condition behind which
    an index gives that order; several lanes are merged. ``rest`` is what no index serves: it is
    looked for among the next ``WINDOW`` rows only.
    """

    key: str | None = None
    descending: bool = True
    lanes: tuple[Q, ...] = field(default_factory=lambda: (Q(),))
    rest: Q = field(default_factory=Q)

    def order(self, *, forward: bool) -> list[Any]:
        """Return what to order by, along the walk or back."""
        descending = self.descending is forward
        pk = "-pk" if descending else "pk"
        return [by_instant(self.key, descending=descending), pk] if self.key else [pk]

    def side(self, position: Position, *, beyond: bool, forward: bool) -> Q:
        """Return the condition for rows beyond a position, or for those up to and with it."""
        falling = (self.descending is forward) is beyond
        strict = "lt" if falling else "gt"
        by_key = Q(**{f"pk__{strict}{'' if beyond and not position.closed else 'e'}": position.pk})
        if self.key is None:
            return by_key
        # One bound on the instant alone, so that any database sees a range of its index.
        return Q(**{f"{self.key}__{strict}e": position.at}) & (
            Q(**{f"{self.key}__{strict}": position.at}) | by_key
        )

    def position(self, row: Model) -> Position:
        """Return where a row stands."""
        return Position(getattr(row, self.key) if self.key else None, row.pk)

    def rank(self, position: Position) -> tuple[Any, Any]:
        """Return what positions of several lanes compare by."""
        return (None if position.at is None else to_utc(position.at), position.pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows in the walk's order, and where the pages before and after begin; None: nothing there.

    ``searched_to`` is set if the page is short only because the window ended there.
    """

    rows: Sequence[Any] = ()
    before: Position | None = None
    after: Position | None = None
    searched_to: Position | None = None


def read_page(
    rows: QuerySet[Any], walk: Walk, *, size: int, start: Position | None = None, forward: bool = True
) -> Page:
    """Return the page that begins beyond ``start``, or the one that ends before it."""
    found, stop = _read(rows, walk, size=size, start=start, forward=forward)
    if not forward and len(found) < size and stop is None:
        # The way back has reached the beginning: show the whole first page, if the window holds it.
        first_page = read_page(rows, walk, size=size)
        if first_page.searched_to is None:
            return first_page
    more = walk.position(found[size - 1]) if len(found) > size else stop
    searched_to = stop if len(found) <= size else None
    # The way back from an empty page begins with the very row at which this page began.
    back = walk.position(found[0]) if found else start and replace(start, closed=not start.closed)
    if forward:
        return Page(rows=found[:size], before=start and back, after=more, searched_to=searched_to)
    return Page(rows=found[:size][::-1], before=more, after=back, searched_to=searched_to)


def _read(
    rows: QuerySet[Any], walk: Walk, *, size: int, start: Position | None, forward: bool
) -> tuple[list[Any], Position | None]:
    """Return up to one row more than ``size``, and where the window ended if it did."""
    lanes = [rows.filter(lane).order_by(*walk.order(forward=forward)) for lane in walk.lanes]
    if start is not None:
        lanes = [lane.filter(walk.side(start, beyond=True, forward=forward)) for lane in lanes]
    stop = None
    if walk.rest:
        stop = _window_end(lanes, walk, forward=forward)
        if stop is not None:
            lanes = [lane.filter(walk.side(stop, beyond=False, forward=forward)) for lane in lanes]
        lanes = [lane.filter(walk.rest) for lane in lanes]
    found = _merged(rows, lanes, walk, size=size + 1, forward=forward) if lanes else []
    return found, stop


def _merged(
    rows: QuerySet[Any], lanes: Sequence[QuerySet[Any]], walk: Walk, *, size: int, forward: bool
) -> list[Any]:
    """Return the first rows of all lanes together."""
    if len(lanes) == 1:
        return list(lanes[0][:size])
    # Only keys are read of what may not be shown.
    places = _places([lane[:size] for lane in lanes], walk)
    places.sort(key=walk.rank, reverse=walk.descending is forward)
    found = {row.pk: row for row in rows.filter(pk__in=[place.pk for place in places[:size]])}
    shown = [(found[place.pk], place) for place in places[:size] if place.pk in found]
    for row, place in shown:
        setattr(
            row, str(walk.key), place.at
        )  # a worker may have moved it in between: it stands where it stood
    return [row for row, _ in shown]


def _window_end(lanes: Sequence[QuerySet[Any]], walk: Walk, *, forward: bool) -> Position | None:
    """Return the nearest end of the lanes' shares of the window, None if all lanes end before."""
    if not lanes:
        return None
    last = max(1, WINDOW // len(lanes)) - 1
    ends = _places([lane[last : last + 1] for lane in lanes], walk)
    nearest = max if walk.descending is forward else min
    return nearest(ends, key=walk.rank) if ends else None


def _places(slices: Sequence[QuerySet[Any]], walk: Walk) -> list[Position]:
    """Return where the rows of these slices stand; in one round trip, if the database can."""
    keys = [rows.values_list(*filter(None, (walk.key, "pk"))) for rows in slices]
    if connections[keys[0].db].features.supports_slicing_ordering_in_compound and len(keys) > 1:
        keys = [keys[0].union(*keys[1:], all=True)]
    return [Position(values[0] if walk.key else None, values[-1]) for each in keys for values in each]


class FirstPage(Paginator):  # type: ignore[type-arg] # not generic at run time
    """A paginator of one page that counts nothing, for Django's autocomplete."""

    @property
    def count(self) -> int:
        """Return the number of rows on the one page."""
        return len(self._rows)

    @property
    def num_pages(self) -> int:
        """Return 1."""
        return 1

    def page(self, number: Any) -> Any:
        """Return the one page, whichever is asked for."""
        return DjangoPage(self._rows, 1, self)

    @property
    def _rows(self) -> list[Any]:
        if "rows" not in vars(self):
            self.rows = list(self.object_list[: self.per_page])
        return self.rows
