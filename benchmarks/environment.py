"""The virtual environment of the contestants, and what a report must say of this machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.paths import REQUIREMENTS, VENV

PYTHON = VENV / "bin" / "python"
# Names the requirements that were installed: made last, so that a broken installation is done again.
STAMP = VENV / "installed.txt"


def ensure() -> None:
    """Create the environment, unless it holds what requirements.txt asks for."""
    wanted = REQUIREMENTS.read_text()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    say(f"Creating {VENV} (a minute or so)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", REQUIREMENTS], check=True)
    STAMP.write_text(wanted)


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package in the environment of the contestants."""
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    names = sorted(set(packages))
    return json.loads(subprocess.check_output([PYTHON, "-c", code, *names], text=True))


def machine() -> dict[str, str]:
    """Describe the machine: what a number without it is worth nothing."""
    return {
        # Without what a builder has added to the kernel's version.
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _gigabytes(_field(Path("/proc/meminfo"), "MemTotal")),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "python": subprocess.check_output(
            [PYTHON, "-c", "import platform; print(platform.python_version())"], text=True
        ).strip(),
    }


def revision(source: Path) -> str:
    """Return the version of django_backwave in a checkout, with its commit where git knows one."""
    code = "import django_backwave; print(django_backwave.__version__)"
    version = subprocess.check_output([PYTHON, "-P", "-c", code], env={"PYTHONPATH": str(source)}, text=True)
    try:
        commit = subprocess.check_output(
            ["git", "-C", source, "describe", "--always", "--dirty"],  # noqa: S607 - wherever git is
            text=True,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.CalledProcessError):
        return version.strip()
    return f"{version.strip()} ({commit.strip()})"


def say(line: str) -> None:
    """Tell the person who waits what is being done."""
    print(line, file=sys.stderr, flush=True)


def _gigabytes(text: str) -> str:
    """Return "24684084 kB" as gigabytes."""
    return f"{int(text.split()[0]) / 1024**2:.0f} GB" if text else "unknown"


def _field(path: Path, name: str) -> str:
    """Return the first value of `name` in a file of lines "name : value"; "" if there is none."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
