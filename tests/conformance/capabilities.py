"""What databases can do, by name: the only reasons for which a conformance test may be skipped.

A test says `needs("row_locks")`. `test_capabilities.py` asks the database itself, so that no entry here can
excuse a test on a database that could run it.
"""

from __future__ import annotations

#: Capability → (what it means, the databases that have it, by the names of `tests/databases.py`).
CAPABILITIES: dict[str, tuple[str, frozenset[str]]] = {
    "row_locks": (
        "two transactions can hold locks on rows of one table at the same time",
        frozenset({"postgres", "mysql"}),
    ),
    "server_clock": (
        "the database has a clock of its own, and not that of the process which asks",
        frozenset({"postgres", "mysql"}),
    ),
    "one_statement": (
        "one statement can pick, lock, change and return rows",
        frozenset({"postgres"}),
    ),
}

NEEDS = "needs "


def lacking(needed: tuple[str, ...], database: str) -> list[str]:
    """Return which of these capabilities a database does not have; an unknown one is a mistake."""
    for name in needed:
        if name not in CAPABILITIES:
            raise ValueError(f"No capability {name!r}; there are {', '.join(CAPABILITIES)}.")
    return [name for name in needed if database not in CAPABILITIES[name][1]]


def reason(missing: list[str]) -> str:
    """Return the reason for a skip, in the words that `may_skip` reads."""
    return NEEDS + ", ".join(missing)


def may_skip(told: str, database: str) -> bool:
    """Say whether this is the reason of a capability that this database really lacks."""
    if not told.startswith(NEEDS):
        return False
    names = told.removeprefix(NEEDS).split(", ")
    return all(name in CAPABILITIES and database not in CAPABILITIES[name][1] for name in names)
