"""Settings of workers in which what was claimed ahead waits for as long as a test may take."""

from django_backwave.core import driver
from tests.worker.settings import *  # noqa: F403

driver.PATIENCE = 300.0
