"""The shop's views, under the shop's own settings and so in a pytest run of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.databases import SERVER_URLS, chosen
from tests.example.running import ROOT, environment

pytestmark = [pytest.mark.process, pytest.mark.only_on("sqlite", "postgres")]


def test_the_views(tmp_path: Path) -> None:
    checks = Path(__file__).with_name("checks_of_views.py")
    settings = tmp_path / "pytest.ini"
    settings.write_text(
        "[pytest]\nDJANGO_SETTINGS_MODULE = config.settings\ndjango_find_project = false\n"
        "filterwarnings = error\n"
    )
    # Our own conftest.py and its plugin set up the databases of the test project, which is another one.
    options = ("-c", str(settings), "--confcutdir", str(tmp_path), "--noconftest", "-p", "no:cacheprovider")
    changes = {"DATABASE_URL": _with_database(chosen())} if chosen() != "sqlite" else {}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--color=no", *options, str(checks)],
        cwd=ROOT,
        env=environment(SHOP_FOLDER=str(tmp_path), **changes),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def _with_database(name: str) -> str:
    """Return a server's URL with a name of ours; pytest-django makes "test_" and this name."""
    return urlsplit(os.environ[SERVER_URLS[name]])._replace(path="/backwave_views").geturl()
