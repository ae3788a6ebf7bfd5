"""The pytest plugin: fixtures wherever the package is installed, and pytest nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import django_backwave

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = Path(django_backwave.__file__).parent

TEST = """
import pytest
from tests.testing.handlers import fail, note

def test_fixtures(run_jobs, enqueued_jobs, assert_enqueued, assert_not_enqueued, backwave_clock):
    note.enqueue(1)
    assert_enqueued(note, 1)
    assert len(enqueued_jobs()) == 1
    backwave_clock.advance(hours=1)
    assert [run.outcome for run in run_jobs()] == ["succeeded"]
    assert_not_enqueued(note)

@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_marks_apply(run_jobs):
    fail.enqueue()
    with pytest.raises(ValueError):
        run_jobs()

def test_no_clock_is_left_behind():
    from django_backwave.store import clock
    assert not clock.is_virtual()
"""


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "BACKWAVE_TEST_DATABASE": "sqlite",
        "BACKWAVE_TEST_FOLDER": str(folder),
    }
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.process
def test_the_fixtures_are_there_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(TEST)

    # By its module, and not by the entry point: what is installed may be older than this source.
    plugins = ["-p", "no:backwave", "-p", "django_backwave.testing.plugin"]
    done = run("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *plugins, folder=tmp_path)

    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.process
def test_loading_it_loads_nothing_of_django(tmp_path: Path) -> None:
    code = "import sys, django_backwave.testing.plugin; print('django' in sys.modules)"

    assert run("-c", code, folder=tmp_path).stdout == "False\n"


def test_it_is_an_entry_point_of_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"backwave": "django_backwave.testing.plugin"}


def test_no_other_module_imports_pytest() -> None:
    found = [path for path in PACKAGE.rglob("*.py") if "import pytest" in path.read_text()]

    assert found == [PACKAGE / "testing" / "plugin.py"]
