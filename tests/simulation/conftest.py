"""The simulator's database for tests: the one of this run, made once for each module.

Tests of other modules that come between, in the same process, may close every connection that it has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.databases import chosen


@pytest.fixture(scope="module")
def simulated(django_db_blocker: Any) -> Iterator[Any]:
    """Return the database that the simulator uses in this run."""
    from tests.simulation.database import InMemory, Postgres

    with django_db_blocker.unblock():
        database = InMemory() if chosen() == "sqlite" else Postgres(os.environ["BACKWAVE_TEST_POSTGRES_URL"])
        yield database
        database.close()


@pytest.fixture
def database(simulated: Any, django_db_blocker: Any) -> Iterator[Any]:
    """Let a test use it."""
    with django_db_blocker.unblock():
        yield simulated
