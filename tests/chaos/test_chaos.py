"""A minute of chaos, as everybody can repeat it: `python -m tests.chaos --seed N`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import chosen

ROOT = Path(__file__).resolve().parent.parent.parent

#: Seconds of faults, and the seed; by hand, one takes another.
SECONDS = os.environ.get("BACKWAVE_CHAOS_SECONDS", "60")
SEED = os.environ.get("BACKWAVE_CHAOS_SEED", "6")


@pytest.mark.process
@pytest.mark.only_on("sqlite", "postgres")
def test_nothing_is_lost_or_done_twice_whatever_is_killed_and_when() -> None:
    """G1 to G8: in a process of its own, with its own database, that it may break."""
    command = [
        sys.executable,
        "-m",
        "tests.chaos",
        "--database",
        chosen(),
        "--seconds",
        SECONDS,
        "--seed",
        SEED,
    ]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "longest recovery" in ended.stdout
