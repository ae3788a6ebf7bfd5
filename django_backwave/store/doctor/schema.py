"""Whether tables, indexes and constraints are those that this code was written for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_backwave.models import Action, Attempt, Job, Key, Mark, Operation, Pause, Tag, Worker
from django_backwave.store.doctor.results import Result, Severity, Unavailable, counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model

APP = "django_backwave"
MODELS: tuple[type[Model], ...] = (Job, Attempt, Worker, Action, Tag, Mark, Pause, Key, Operation)

# What CREATE INDEX CONCURRENTLY leaves behind when it fails, and constraints that were never validated.
_INVALID = """
    SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass AND NOT indisvalid
     UNION ALL
    SELECT conname::text FROM pg_constraint WHERE conrelid = %s::regclass AND NOT convalidated
"""


def gaps(*, using: str) -> list[str]:
    """Return this app's tables, and columns of those that there are, that the database lacks.

    Each as "table shop_order" or "column shop_order.total". No command can do without them.
    """
    connection = connections[using]
    found = []
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor))
        for options in (model._meta for model in MODELS):
            table = options.db_table
            if table not in tables:
                found.append(f"table {table}")
                continue
            there = {column.name for column in connection.introspection.get_table_description(cursor, table)}
            wanted = [field.column for field in options.concrete_fields]
            found += [f"column {table}.{column}" for column in wanted if column not in there]
    return found


def check_migrations(*, using: str) -> Iterator[Result]:
    """Tell of migrations of this package that the database has not seen."""
    executor = MigrationExecutor(connections[using])
    if APP not in executor.loader.migrated_apps:
        raise Unavailable(f"MIGRATION_MODULES switches the migrations of {APP} off")
    leaves = executor.loader.graph.leaf_nodes(APP)
    names = [migration.name for migration, _ in executor.migration_plan(leaves) if migration.app_label == APP]
    if names:
        yield Result(
            check="migrations",
            severity=Severity.ERROR,
            text=f"{counted(len(names), 'migration')} not applied: {listed(names)}.",
            remedy=f"Run: manage.py migrate {APP} --database {using}",
        )


def check_schema(*, using: str) -> Iterator[Result]:
    """Tell of indexes and constraints that the migrations made and that are not there, or not valid."""
    missing = [name for model in MODELS for name in _missing(model, using)]
    if missing:
        yield Result(
            check="schema",
            severity=Severity.ERROR,
            text=f"{counted(len(missing), 'index or constraint', 'indexes and constraints')} "
            f"missing or not valid: {listed(missing)}.",
            remedy="Create them as manage.py sqlmigrate shows: without an index claims slow down, without a"
            " constraint wrong rows can be written.",
        )


def _missing(model: type[Model], using: str) -> list[str]:
    connection = connections[using]
    options = model._meta
    wanted = [index.name for index in options.indexes]
    wanted += [constraint.name for constraint in options.constraints]
    with connection.cursor() as cursor:
        there = connection.introspection.get_constraints(cursor, options.db_table)
        invalid = []
        if connection.vendor == "postgresql":
            table = connection.ops.quote_name(options.db_table)
            cursor.execute(_INVALID, [table, table])
            invalid = [name for (name,) in cursor.fetchall()]
    return [name for name in wanted if name not in there] + invalid
