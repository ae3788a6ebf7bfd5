"""Settings of all processes of a run: the test project's, with the handlers and the ledger.

BACKWAVE_CHAOS_FOLDER   where the handlers' journal lies
"""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]
BACKWAVE = {"MODULES": ["tests.chaos.handlers"]}

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # With so many processes and only one write lock; the worker's own threads have bounds of their own.
    DATABASES["default"]["OPTIONS"]["timeout"] = 30
