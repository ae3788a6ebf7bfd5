"""What the demo tells the person who runs it, and how it waits: for conditions, never for luck."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable

WIDTH = 96

#: Seconds between two looks at a condition.
LOOK_EVERY = 0.05


class DemoFailed(Exception):
    """Something did not happen in time, or is not as it should be."""


def scene(number: int, title: str) -> None:
    """Begin a scene."""
    print(f"\n{number}. {title}\n", flush=True)


def say(text: str, *, indent: int = 3) -> None:
    """Print a paragraph."""
    margin = " " * indent
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(lines), flush=True)


def wait_until(
    what: str,
    condition: Callable[[], bool],
    *,
    check: Callable[[], None] = lambda: None,
    within: float = 30.0,
) -> None:
    """Say what is waited for, wait, and say how long it took.

    ``check`` runs at each look and raises if there is nothing left to wait for. Raises DemoFailed
    after ``within`` seconds.
    """
    started = time.monotonic()
    live = sys.stdout.isatty()
    if live:
        print(f"   wait: {what} ...", end="\r", flush=True)
    while not condition():
        check()
        if time.monotonic() - started > within:
            raise DemoFailed(f"waited {within:.0f} s in vain until {what}")
        time.sleep(LOOK_EVERY)
    took = f"{time.monotonic() - started:.1f} s"
    print(f"   wait: {what:<{WIDTH - 16}} {took:>6}", flush=True)
