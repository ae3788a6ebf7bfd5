"""What several tests of the store share."""

from __future__ import annotations

import pytest
from django.db import connection

from django_backwave.models import Job
from django_backwave.store import plans


@pytest.fixture(params=["project", "worker"])
def planner(request, db):
    """Plan as on a connection of the project, and as on a worker's own, which keeps what it has planned."""
    if request.param == "worker":
        with connection.cursor() as cursor:
            for parameter, value in plans.UNSHAKEN.items():
                cursor.execute(f"SET LOCAL {parameter} = {value}")


@pytest.fixture
def no_vacuum():
    """Keep autovacuum from telling the planner how full the table is, and from removing dead rows."""
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        yield
        cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
