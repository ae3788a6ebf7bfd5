"""Arrays as PostgreSQL writes them in text: one parameter for a column of a batch.

The driver's own conversion of a list asks each element for its type; here a column is of one type, and a
batch has fifteen of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from uuid import UUID


def uuids(values: Iterable[UUID]) -> str:
    """Return an array of UUIDs."""
    return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"


def numbers(values: Iterable[float | None]) -> str:
    """Return an array of numbers or NULLs, exact to the last bit."""
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def flags(values: Iterable[bool]) -> str:
    """Return an array of booleans."""
    return "{" + ",".join(["t" if value else "f" for value in values]) + "}"


def instants(values: Iterable[datetime | None]) -> str:
    """Return an array of aware instants or NULLs."""
    return "{" + ",".join(["NULL" if value is None else f'"{value.isoformat()}"' for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Return an array of texts or NULLs."""
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
