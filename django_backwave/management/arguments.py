"""Parsers of command-line values, each with a message that names the value and the rule."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 10**7  # seconds


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers between two bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(
                f"must be a whole number between {least:,} and {most:,}, got {text!r}."
            )
        return int(text)

    return parse


def seconds(least: float) -> Callable[[str], float]:
    """Return a parser of durations in seconds, with a least one."""
    return number(least, LONGEST, "seconds")


def number(least: float, most: float, unit: str) -> Callable[[str], float]:
    """Return a parser of numbers of a unit between two bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # refuses NaN, too
            raise argparse.ArgumentTypeError(
                f"must be a number of {unit} between {least:,g} and {most:,}, got {text!r}."
            )
        return value

    return parse
