"""The table of evidence is that of the tests which are there, and nothing but a capability excuses one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import evidence
from tests.conformance.conftest import guarantee_of, named_for
from tests.evidence import NAMES, PAGE, committed, problems, table
from tests.report import is_allowed

COLUMNS = committed(PAGE.read_text())
FOLDER = evidence.ROOT / "tests" / "conformance"


@pytest.fixture(scope="module")
def collected() -> Counter[str]:
    """Return how many tests of each guarantee there are."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", str(FOLDER)]
    told = subprocess.check_output(command, cwd=evidence.ROOT, text=True)
    files = re.findall(r"^(\S+\.py): (\d+)$", told, re.MULTILINE)
    return Counter({named_for(Path(file).stem): int(number) for file, number in files})


def test_every_kind_of_database_has_a_column():
    assert {column.split()[0] for column in COLUMNS} >= {"SQLite", "PostgreSQL", "MariaDB"}


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_counts_the_tests_that_are_there(collected, column):
    told = {name: sum(numbers) for name, numbers in COLUMNS[column].items()}

    assert told == {name: collected[name] for name in NAMES}, "run: make conformance"
    assert all(passed for passed, _ in COLUMNS[column].values())


def test_each_guarantee_has_one_file_and_each_file_a_guarantee():
    assert sorted(named_for(file.stem) for file in FOLDER.glob("test_*.py")) == sorted(NAMES)


def test_a_table_is_read_as_it_is_written():
    columns = {
        "SQLite 3.40": {name: (7, 2 if name == "G3" else 0) for name in NAMES},
        "PostgreSQL 18": dict.fromkeys(NAMES, (9, 0)),
    }

    assert committed(f"text\n{evidence.BEGIN}{table(columns)}{evidence.END}more") == columns


def run_like_the_table(**changes) -> dict:
    column = next(column for column in COLUMNS if column.startswith("SQLite"))
    cells = COLUMNS[column]
    content = {
        "server": column,
        "passed": {name: passed for name, (passed, _) in cells.items()},
        "skipped": {name: skipped for name, (_, skipped) in cells.items()},
        "reasons": {"needs row_locks": 3},
    }
    return content | changes


def test_a_run_like_the_table_is_evidence_on_any_version_of_the_server():
    assert list(problems(run_like_the_table(server="SQLite 4.1"), "sqlite")) == []


def test_a_run_that_passed_less_is_none():
    content = run_like_the_table()
    content["passed"]["G4"] -= 1

    [problem] = problems(content, "sqlite")

    assert problem.startswith("the table in docs/guarantees.md is not this run, column SQLite")
    assert problem.endswith(": G4")


@pytest.mark.parametrize(
    "reason", ["only on postgres", "no time today", "needs patience", "needs row_locks, luck"]
)
def test_a_skip_for_another_reason_is_a_problem(reason):
    [problem] = problems(run_like_the_table(reasons={reason: 1}), "sqlite")

    assert problem.endswith(f"skipped for no capability that it lacks: {reason}")


def test_a_run_without_these_tests_is_none():
    content = {"server": "", "passed": {}, "skipped": {}, "reasons": {}}

    assert list(problems(content, "sqlite")) == [
        "docs/guarantees.md has no column for a database on which nothing ran"
    ]


def test_the_skip_of_a_capability_is_allowed_in_the_report_where_it_is_lacking():
    assert is_allowed("needs row_locks", "sqlite")
    assert not is_allowed("needs row_locks", "mysql")


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ([], r"test_it holds no guarantee\. Mark it, or its file, with guarantee\(number\)\."),
        (["G5"], r"test_it is marked G5, and stands in the file of G4\."),
    ],
    ids=["unmarked", "in the wrong file"],
)
def test_a_test_without_its_guarantee_ends_the_collection(marks, message):
    marker = pytest.mark.guarantee(*marks) if marks else None
    item = SimpleNamespace(
        nodeid="tests/conformance/test_g04_it.py::test_it",
        path=FOLDER / "test_g04_it.py",
        get_closest_marker=lambda _: marker,
    )

    with pytest.raises(pytest.UsageError, match=message):
        guarantee_of(item)


def told(when: str, outcome: str, guarantee: str) -> SimpleNamespace:
    """Return what pytest reports of one phase of a test."""
    return SimpleNamespace(
        when=when,
        passed=outcome == "passed",
        failed=outcome == "failed",
        user_properties=[("guarantee", guarantee), ("server", "SQLite 3.40")],
    )


@pytest.mark.parametrize("case", ["whole", "one left out", "one failed", "a tear-down failed"])
def test_only_a_whole_run_without_a_failure_is_evidence(tmp_path, case):
    run = evidence.Run()
    for name in list(NAMES)[1 if case == "one left out" else 0 :]:
        run.add(told("call", "passed", name), None)
    if case == "one failed":
        run.add(told("call", "failed", "G4"), None)
    if case == "a tear-down failed":
        run.add(told("teardown", "failed", "G4"), None)
    run.write(tmp_path)

    files = [file.name for file in tmp_path.iterdir()]
    assert files == (["conformance-sqlite-3.40.json"] if case == "whole" else [])
