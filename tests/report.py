"""What ran and what was skipped, one file for each database: `build/tests-<database>.json`.

`tests/conftest.py` lets a `Report` listen to the run. Afterwards `python -m tests.report sqlite
postgres` checks that each of these databases was really tested: a run that skips everything is
green, and worth nothing.

The tests of `tests/conformance` are told apart: `build/conformance-<server>.json` has how many of
each guarantee passed, of which `tests/evidence.py` makes the table in the docs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import evidence
from tests.conformance.capabilities import may_skip

FOLDER = Path(__file__).resolve().parent.parent / "build"

# Reasons for a skip that are accepted beside the marker `only_on`: reason → why.
ALLOWED_SKIPS: dict[str, str] = {}


class Collected:
    """Counts what is decided before any test runs: errors, modules that skip themselves, tests left out.

    Under pytest-xdist each of its processes collects everything, and only they know it. So each tells its
    numbers, which are the same, to the process that writes the report.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a module that could not be imported, or that skips itself as a whole."""
        if report.failed:
            self.counts["errors"] += 1
        elif report.skipped:
            self.skipped[skip_reason(report)] += 1

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count the tests that the command line left out."""
        self.counts["deselected"] += len(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell it, in a process of pytest-xdist."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["collected"] = [dict(self.counts), dict(self.skipped)]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take it over; a process that died has nothing to tell, and what it did is an error already."""
        counts, skipped = getattr(node, "workeroutput", {}).get("collected", ({}, {}))
        self.counts |= Counter(counts)
        self.skipped |= Counter(skipped)


class Report:
    """Counts the results of one run and writes them down at its end."""

    def __init__(self, database: str, collected: Collected) -> None:
        self._database = database
        self._collected = collected
        self._counts: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._evidence = evidence.Run()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one test, whose set-up and tear-down matter only if they fail or skip."""
        self._evidence.add(report, skip_reason(report) if report.skipped else None)
        if report.skipped:
            if hasattr(report, "wasxfail"):
                self._counts["xfailed"] += 1
            else:
                self._skipped[skip_reason(report)] += 1
        elif report.failed:
            self._counts["failed" if report.when == "call" else "errors"] += 1
        elif report.when == "call":
            self._counts["passed"] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the file."""
        counts = self._counts + self._collected.counts
        content = {
            "exit_status": int(exitstatus),
            **{name: counts[name] for name in ("passed", "failed", "errors", "xfailed", "deselected")},
            "skipped": dict(self._skipped + self._collected.skipped),
            "conformance": self._evidence.content(),
        }
        FOLDER.mkdir(exist_ok=True)
        path(self._database).write_text(json.dumps(content, indent=2) + "\n")
        self._evidence.write(FOLDER)


def path(database: str) -> Path:
    """Return the file for `database`."""
    return FOLDER / f"tests-{database}.json"


def skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return why a test was skipped, in the words of whoever skipped it."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def only_on_reason(databases: Sequence[str]) -> str:
    """Return the reason for a skip by the marker `only_on`."""
    return "only on " + ", ".join(sorted(databases))


def is_allowed(reason: str, database: str) -> bool:
    """Say whether a skip is accepted: about another database, for what this one lacks, or listed above."""
    if may_skip(reason, database):
        return True
    if reason.startswith("only on "):
        return database not in reason.removeprefix("only on ").split(", ")
    return reason in ALLOWED_SKIPS


def problems(database: str, content: dict[str, Any] | None) -> Iterator[str]:
    """Yield what keeps a report from proving that `database` was tested."""
    if content is None:
        yield "there is no report: it was not run"
        return
    if content["exit_status"] or content["failed"] or content["errors"]:
        yield f"the run failed (exit status {content['exit_status']})"
    if not content["passed"]:
        yield "no test was run"
    if content["deselected"]:
        yield f"{content['deselected']} tests were left out on the command line"
    for reason, count in content["skipped"].items():
        if not is_allowed(reason, database):
            yield f"{count} skipped for a reason that tests/report.py does not allow: {reason}"
    yield from evidence.problems(content["conformance"], database)


def main(databases: Sequence[str]) -> int:
    """Print a line for each database; return the exit status, 1 if one was not really tested."""
    status = 0
    for database in databases:
        file = path(database)
        content = json.loads(file.read_text()) if file.exists() else None
        found = list(problems(database, content))
        if content:
            skipped = sum(content["skipped"].values())
            print(f"{database}: {content['passed']} passed, {skipped} skipped")
        for problem in found:
            print(f"{database}: {problem}", file=sys.stderr)
        status = status or bool(found)
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
