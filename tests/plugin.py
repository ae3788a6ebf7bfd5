"""A pytest plugin that provides the databases before pytest-django reads the settings.

Settings are read once and very early, so whatever they depend on must be in the environment by
then. The processes of pytest-xdist inherit that environment, and with it the one server and the one
folder of the run.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from tests.databases import chosen
from tests.postgres import PostgresServer


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Make a folder for SQLite's files and, for a run on PostgreSQL, a server if none is given."""
    if "BACKWAVE_TEST_FOLDER" not in os.environ:
        folder = os.environ["BACKWAVE_TEST_FOLDER"] = tempfile.mkdtemp(prefix="backwave-")
        early_config.add_cleanup(lambda: shutil.rmtree(folder))
    if chosen() == "postgres" and not os.environ.get("BACKWAVE_TEST_POSTGRES_URL"):
        server = PostgresServer()
        early_config.add_cleanup(server.remove)
        server.start()
        os.environ["BACKWAVE_TEST_POSTGRES_URL"] = server.url("backwave")
