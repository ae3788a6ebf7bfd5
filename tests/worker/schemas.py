"""One handler, in versions that take different schemas; each tells its journal which version has run.

BACKWAVE_TEST_SCHEMA    what this version's jobs mean
BACKWAVE_TEST_ACCEPTS   what it takes as well
"""

from __future__ import annotations

import os

from django_backwave import job
from tests.processes import append

OWN = os.environ.get("BACKWAVE_TEST_SCHEMA")
ACCEPTS = os.environ.get("BACKWAVE_TEST_ACCEPTS", "").split()


@job(name="receipt", schema=OWN, accepts=ACCEPTS, takes_context=True)
def receipt(context, journal: str) -> str:
    """Say which code has run which job."""
    append(journal, f"{OWN} ran {context.task_result.schema}")
    return f"read as {OWN}"
