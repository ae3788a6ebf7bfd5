"""A table of jobs that one statement fills, for tests of plans over many rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from django.db import connection, transaction

from django_backwave.models import Job

TABLE = Job._meta.db_table


@contextmanager
def filled(statements: Mapping[str, str]) -> Iterator[None]:
    """Fill the table by the vendor's statement, let the planner know, and leave the table empty."""
    with connection.cursor() as cursor:
        with transaction.atomic():
            cursor.execute(statements[connection.vendor])
        cursor.execute(f"VACUUM ANALYZE {TABLE}" if connection.vendor == "postgresql" else "ANALYZE")
        yield
        if connection.vendor == "postgresql":
            cursor.execute(f"TRUNCATE {TABLE}")
        else:
            Job.objects.all()._raw_delete("default")
            cursor.execute("DELETE FROM sqlite_stat1")
