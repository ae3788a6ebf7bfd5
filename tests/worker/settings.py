"""Settings of the worker processes that tests start.

BACKWAVE_TEST_MODULES   further modules with handlers
BACKWAVE_TEST_GRACE     seconds until what cannot be routed is quarantined
BACKWAVE_TEST_AROUND    what surrounds each handler, as dotted paths
BACKWAVE_TEST_DEBUG     `yes` for a project in development
BACKWAVE_TEST_USE_TZ    `no` for a project without time zones, five hours from UTC
BACKWAVE_TEST_DIRECT    `yes` for an alias "direct" that leads to the jobs' database as well
"""

import os

from django_backwave.core import holding, policy, upkeep
from tests.settings import *  # noqa: F403

BACKWAVE = {
    "MODULES": ["tests.worker.handlers", *os.environ.get("BACKWAVE_TEST_MODULES", "").split()],
    "AROUND": os.environ.get("BACKWAVE_TEST_AROUND", "").split(),
    "UNROUTABLE_GRACE": float(os.environ.get("BACKWAVE_TEST_GRACE", "3600")),
}

if os.environ.get("BACKWAVE_TEST_DIRECT") == "yes":
    DATABASES["direct"] = {**DATABASES["default"]}  # noqa: F405

DEBUG = os.environ.get("BACKWAVE_TEST_DEBUG") == "yes"

if os.environ.get("BACKWAVE_TEST_USE_TZ") == "no":
    USE_TZ = False
    TIME_ZONE = "America/New_York"

# Nobody should have to wait for these in a test.
upkeep.SWEEP_EVERY = 0.5
holding.TIMEOUT_GRACE = 0.7
policy.UNROUTABLE_FIRST = 0.2
