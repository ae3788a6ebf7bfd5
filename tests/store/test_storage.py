"""How PostgreSQL stores the jobs."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps
from django.db import connection

from django_backwave.models import Job

pytestmark = pytest.mark.django_db

migration = import_module("django_backwave.migrations.0008_primary_key_room")


def options():
    """Return the storage options of the primary key."""
    with connection.cursor() as cursor:
        index = f"{Job._meta.db_table}_pkey"
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [index])
        return cursor.fetchone()[0]


@pytest.mark.only_on("postgres")
def test_pages_of_the_primary_key_have_room_for_a_jobs_next_rows():
    assert options() == ["fillfactor=70"]


@pytest.mark.only_on("postgres")
def test_that_can_be_taken_back():
    with connection.schema_editor() as editor:
        migration.leave_none(apps, editor)
        assert options() is None
        migration.leave_room(apps, editor)
        assert options() == ["fillfactor=70"]


@pytest.mark.only_on("sqlite", "mysql")
def test_other_databases_are_asked_nothing(django_assert_num_queries):
    editor = connection.schema_editor(collect_sql=True)
    with django_assert_num_queries(0):
        migration.leave_room(apps, editor)
        migration.leave_none(apps, editor)
    assert editor.collected_sql == []
