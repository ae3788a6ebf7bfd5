"""The type checkers that our users have object to what is wrong in `jobs.py`, and to nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
JOBS = Path(__file__).with_name("jobs.py")

pytestmark = [pytest.mark.slow, pytest.mark.only_on("sqlite")]


def lines_marked_wrong() -> set[int]:
    lines = JOBS.read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if line.endswith("  # wrong")}


def run(module: str, *arguments: str) -> str:
    pytest.importorskip(module, reason=f"{module} is not installed")
    command = [sys.executable, "-m", module, *arguments, str(JOBS)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900).stdout


def test_mypy() -> None:
    said = run("mypy", "--no-pretty")

    assert {int(number) for number in re.findall(r"jobs\.py:(\d+): error", said)} == lines_marked_wrong(), (
        said
    )


def test_pyright() -> None:
    """As the fork whose wheel brings all that it needs; the rules are those of pyright itself."""
    said = run("basedpyright", "--outputjson", "--level", "error", "--pythonpath", sys.executable)

    errors = json.loads(said)["generalDiagnostics"]
    assert {error["range"]["start"]["line"] + 1 for error in errors} == lines_marked_wrong(), said
