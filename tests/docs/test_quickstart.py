"""The quickstart works: every file is written and every command run, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, Block, blocks

# The environment is that of the tests, and the package that of this checkout.
DONE_ALREADY = {"python -m venv .venv", ". .venv/bin/activate", "python -m pip install django-backwave"}

BLOCKS = list(blocks(DOCS / "quickstart.md"))


@pytest.mark.process
@pytest.mark.only_on("sqlite")
def test_every_step_does_what_the_page_says(tmp_path: Path) -> None:
    ran = []
    for block in BLOCKS:
        if block.caption:
            write(block, tmp_path)
        elif block.language == "console":
            ran += [run(command, shown, tmp_path) for command, shown in commands(block.code)]

    assert ran.count(True) >= 10, "the page's commands were not found"


def test_only_the_environment_is_left_out() -> None:
    told = {command for block in BLOCKS if block.language == "console" for command, _ in commands(block.code)}

    assert told >= DONE_ALREADY


def write(block: Block, folder: Path) -> None:
    """Write a block into the file of its caption, or add it at the end."""
    name, _, how = block.caption.partition(" ")
    with (folder / name).open("a" if how == "(at the end)" else "w") as file:
        file.write(f"\n{block.code}")


def commands(code: str) -> list[tuple[str, str]]:
    """Return each command of a console with the output that is shown below it."""
    parts = re.split(r"^\$ (.*)\n", code, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def run(command: str, shown: str, folder: Path) -> bool:
    """Run a command and compare what it prints; return whether it is one that is to be run."""
    if command in DONE_ALREADY:
        return False
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    printed = done.stdout
    expected_to_fail = "Error" in shown

    assert bool(done.returncode) is expected_to_fail, f"$ {command}\n{printed}"
    assert re.search(pattern(shown), plain(printed)), f"$ {command}\n{printed}\nThe page shows:\n{shown}"
    return True


def environment() -> dict[str, str]:
    """Return a user's environment: nothing of the test run's but the interpreter and the package."""
    ours = ("BACKWAVE_", "DJANGO_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def pattern(shown: str) -> str:
    """Return the pattern of an output as the page shows it, where … stands for anything."""
    return ".*".join(re.escape(plain(part)) for part in shown.split("…"))


def plain(text: str) -> str:
    """Return a text with one space for all white space between words, without what Django adds under DEBUG.

    Those lines come from a thread of their own, so their place among the others is chance.
    """
    lines = [line for line in text.splitlines() if not line.startswith("Task id=")]
    return " ".join(" ".join(lines).split())
