"""Arrays as PostgreSQL writes them in text: one parameter for a column of a batch.

The driver's own conversion of a list asks each element for its type; here a column is of one type, and a
batch has fifteen of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from uuid import UUID


def uuids(values: Iterable[UUID]) -> str:
    """Return an array of UUIDs."""
    return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"


def numbers(values: Iterable[float | None]) -> str:
    """Return an array of numbers or NULLs, exact to the last bit."""
    return _array(list(values), repr)


def flags(values: Iterable[bool]) -> str:
    """Return an array of booleans."""
    return _array(list(values), lambda value: "t" if value else "f")


def instants(values: Iterable[datetime | None]) -> str:
    """Return an array of aware instants or NULLs."""
    texts: list[str] = []
    last, text = None, "NULL"
    for value in values:
        if value != last:  # what was claimed together has one instant
            last, text = value, "NULL" if value is None else f'"{value.isoformat()}"'
        texts.append(text)
    return "{" + ",".join(texts) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Return an array of texts or NULLs."""
    return _array(list(values), _text)


def _array[T](values: list[T | None], element: Callable[[T], str]) -> str:
    first = values[0] if values else None
    # As most columns of most batches. Zeros may differ in their signs.
    if first != 0 and values.count(first) == len(values):
        return "{" + ",".join(["NULL" if first is None else element(first)] * len(values)) + "}"
    return "{" + ",".join(["NULL" if value is None else element(value) for value in values]) + "}"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
