"""Leave room in the pages of the jobs' primary key.

A job's row is written anew at each step of its life, and each time its key gets one entry more. Where jobs
end in the order in which they came, PostgreSQL clears a page of the index at once. Where they do not, because
they lie in many queues or priorities, it looks through full pages again and again and finds little to clear:
with 500 queues that took an eighth of its time. The setting is for pages to come, so it takes no time on a
table that is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import migrations

if TYPE_CHECKING:
    from django.apps.registry import Apps
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

#: Percent of a page that are filled at first; PostgreSQL's own is 90.
FILLED = 70


def leave_room(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Fill pages to come less."""
    _alter(apps, editor, f"SET (fillfactor = {FILLED})")


def leave_none(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """Go back to what PostgreSQL does by itself."""
    _alter(apps, editor, "RESET (fillfactor)")


def _alter(apps: Apps, editor: BaseDatabaseSchemaEditor, change: str) -> None:
    connection = editor.connection
    if connection.vendor != "postgresql":
        return
    table = apps.get_model("django_backwave", "Job")._meta.db_table
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, table)
    for name, constraint in constraints.items():
        if constraint["primary_key"]:
            editor.execute(f"ALTER INDEX {editor.quote_name(name)} {change}")


class Migration(migrations.Migration):
    """Alters an index on PostgreSQL; reads and writes no row."""

    dependencies = [("django_backwave", "0007_key_index")]
    operations = [migrations.RunPython(leave_room, leave_none, elidable=False)]
