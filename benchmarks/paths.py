"""Where things are: the repository, and what `make clean` removes."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build"
#: Raw results, the table and the charts.
RESULTS = BUILD / "bench"
#: The environment with the other queues.
VENV = BUILD / "bench-venv"
REQUIREMENTS = HERE / "requirements.txt"
