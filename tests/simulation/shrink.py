"""Delta debugging: the smallest list of faults with which a run still fails in the same way.

Each fault is addressed by what it acts on, so leaving some out leaves the others what they were; though what
they meet may be something else. After Zeller's ddmin: ever smaller parts are left out as long as it fails.
"""

from __future__ import annotations

from collections.abc import Callable

#: Runs that one shrinking may take.
BUDGET = 60


def shrink(faults: list[str], fails: Callable[[list[str]], bool], budget: int = BUDGET) -> list[str]:
    """Return a part of the faults of which none can be left out, as far as the budget goes."""
    parts = 2
    while faults and budget > 0:
        size = max(1, -(-len(faults) // parts))
        for start in range(0, len(faults), size):
            budget -= 1
            rest = faults[:start] + faults[start + size :]
            if fails(rest):
                faults, parts = rest, max(2, parts - 1)
                break
            if budget <= 0:
                return faults
        else:
            if size == 1:
                return faults
            parts = min(len(faults), parts * 2)
    return faults
