"""Settings of workers that depend on notifications: when idle they look for jobs no more often than need be.

BACKWAVE_TEST_NOTIFY    `no` to switch notifications off
BACKWAVE_TEST_PORT      the port to listen over, through an alias of its own
"""

import os

from django_backwave.core import lookout
from tests.worker.settings import *  # noqa: F403
from tests.worker.settings import BACKWAVE, DATABASES

lookout.EAGER = 30.0

BACKWAVE["NOTIFY"] = os.environ.get("BACKWAVE_TEST_NOTIFY") != "no"
if port := os.environ.get("BACKWAVE_TEST_PORT"):
    DATABASES["listening"] = DATABASES["default"] | {"PORT": port}
    BACKWAVE["NOTIFY"] = "listening"
