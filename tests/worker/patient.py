"""Settings of workers that claim ahead on slow machines too, and let it wait for as long as a test may take.

BACKWAVE_TEST_PATIENCE   seconds after which what waits is handed back all the same
"""

import os

from django_backwave.core import ahead, driver
from tests.worker.settings import *  # noqa: F403

ahead.WITHIN = 10.0
driver.PATIENCE = float(os.environ.get("BACKWAVE_TEST_PATIENCE", "300"))
