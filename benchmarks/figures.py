"""Numbers made of numbers: medians, percentiles, ratios, and how they are written. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of those that were measured; None if none was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    if not values:
        raise ValueError("There is no percentile of nothing.")
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 1).__int__() - 1)]


def ratio(value: float | None, base: float | None) -> float | None:
    """Return value / base; None where one is missing or the base is nothing."""
    return value / base if value is not None and base else None


def rate(value: float | None) -> str:
    """Write jobs per second."""
    return "–" if value is None else f"{value:,.0f}"


def number(value: float | None, unit: str = "", digits: int = 1) -> str:
    """Write a number with its unit."""
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def times(value: float | None) -> str:
    """Write a ratio."""
    return "–" if value is None else f"{value:.2f} ×"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
