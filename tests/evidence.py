"""The table of evidence in the docs: for each guarantee and database, how many tests passed.

`make conformance` runs the tests of `tests/conformance` on every database, and each run leaves a file,
`build/conformance-<server>.json`. `python -m tests.evidence` makes the table in `docs/guarantees.md` of these
files; a test and the continuous integration compare the table with what is there.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.capabilities import may_skip

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- evidence: made by `python -m tests.evidence` -->\n", "<!-- end of evidence -->\n"

#: What the tests hold, in the order of the table: guarantee → its name there.
NAMES = {
    "G1": "Transactional enqueue",
    "G2": "Nothing lost",
    "G3": "One live lease",
    "G4": "The fence",
    "G5": "Effect-once",
    "G6": "Attempts",
    "G7": "Atomic jobs",
    "G8": "Cancel",
    "G9": "Lost leases are told",
    "G10": "One clock",
    "G11": "Deploys are free",
    "G12": "Cost",
    "retries": "Retries and backoff",
    "expiry": "Expiry",
    "capabilities": "What the database can do",
}

type Cell = tuple[int, int]  # passed, skipped for a capability that the database lacks


class Run:
    """What one run of the tests has shown, on one server."""

    def __init__(self) -> None:
        self._server = ""
        self._passed: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._failed = False

    def add(self, report: pytest.TestReport, skipped_for: str | None) -> None:
        """Count one test of `tests/conformance`, its set-up and tear-down only if they fail or skip."""
        told = dict(report.user_properties)
        if "guarantee" not in told:
            return
        self._server = str(told.get("server", self._server))
        if skipped_for is not None:
            self._skipped[str(told["guarantee"])] += 1
            self._reasons[skipped_for] += 1
        elif report.failed:
            self._failed = True
        elif report.when == "call":
            self._passed[str(told["guarantee"])] += 1

    def content(self) -> dict[str, Any]:
        """Return it as the report keeps it."""
        return {
            "server": self._server,
            "passed": dict(self._passed),
            "skipped": dict(self._skipped),
            "reasons": dict(self._reasons),
        }

    def write(self, folder: Path) -> None:
        """Write the file of this server; a run that failed, or left a guarantee out, is no evidence."""
        if self._passed.keys() >= NAMES.keys() and not self._failed:
            name = self._server.lower().replace(" ", "-")
            (folder / f"conformance-{name}.json").write_text(json.dumps(self.content(), indent=2) + "\n")


def problems(content: dict[str, Any], database: str) -> Iterator[str]:
    """Yield what keeps a run from being the evidence that the docs show."""
    for reason, count in content["reasons"].items():
        if not may_skip(reason, database):
            yield f"{count} tests of tests/conformance skipped for no capability that it lacks: {reason}"
    server = content["server"]
    columns = {column: cells for column, cells in committed(PAGE.read_text()).items() if same(column, server)}
    if not columns:
        yield f"docs/guarantees.md has no column for {server or 'a database on which nothing ran'}"
    for column, cells in columns.items():
        wrong = [name for name in NAMES if cells.get(name) != cell(content, name)]
        if wrong:
            yield f"the table in docs/guarantees.md is not this run, column {column}: {', '.join(wrong)}"


def same(column: str, server: str) -> bool:
    """Say whether two names are of one kind of server, whatever its version."""
    return column.split()[0] == (server.split() or [""])[0]


def cell(content: dict[str, Any], guarantee: str) -> Cell:
    """Return the two numbers of a guarantee in a run."""
    return content["passed"].get(guarantee, 0), content["skipped"].get(guarantee, 0)


def committed(page: str) -> dict[str, dict[str, Cell]]:
    """Read the table of a page: server → guarantee → numbers."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table.splitlines() if line]
    head, *rest = rows if rows else [[]]
    labels = {f"{number} {name}" if number[0] == "G" else name: number for number, name in NAMES.items()}
    return {
        server: {labels[row[0]]: _numbers(row[column]) for row in rest if row[0] in labels}
        for column, server in enumerate(head)
        if column
    }


def _numbers(text: str) -> Cell:
    found = re.findall(r"\d+", text)
    return int(found[0]), int(found[1]) if len(found) > 1 else 0


def table(columns: dict[str, dict[str, Cell]]) -> str:
    """Return the table in Markdown; `columns` is what `committed` reads."""
    servers = sorted(columns, key=_order)
    lines = [["", *servers], ["---", *("---:" for _ in servers)]]
    for number, name in NAMES.items():
        label = f"{number} {name}" if number[0] == "G" else name
        lines.append([label, *(_text(columns[server].get(number, (0, 0))) for server in servers)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(numbers: Cell) -> str:
    passed, skipped = numbers
    return f"{passed} ({skipped} n/a)" if skipped else str(passed)


def _order(server: str) -> tuple[int, str]:
    kinds = ("SQLite", "PostgreSQL", "MariaDB", "MySQL")
    return kinds.index(server.split()[0]), server


def main() -> None:
    """Write what the runs have shown into the page; the column of a server that has not run stays."""
    files = list((ROOT / "build").glob("conformance-*.json"))
    if not files:
        sys.exit("There is no build/conformance-*.json. Run: make conformance")
    page = PAGE.read_text()
    columns = committed(page)
    for file in files:
        run = json.loads(file.read_text())
        columns[run["server"]] = {number: cell(run, number) for number in NAMES}
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table(columns)}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
