"""What every command asks about the jobs' database before it begins."""

from __future__ import annotations

from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from django_backwave.backend import jobs_database
from django_backwave.store.monitor import tables_missing


def usable_database(alias: str | None) -> str:
    """Return the alias given, or that of the jobs' database, once it is known to have our tables.

    Raises CommandError, with the remedy, for an unknown alias, a server out of reach, missing tables.
    """
    using = alias or jobs_database()
    if using not in connections:
        known = ", ".join(sorted(connections))
        raise CommandError(f"There is no database {using!r} in DATABASES; there are: {known}.")
    try:
        missing = tables_missing(using=using)
    except DatabaseError as error:
        raise CommandError(f"Database {using!r} cannot be reached: {str(error).strip()}") from error
    if missing:
        raise CommandError(
            f"Database {using!r} has no table {', '.join(missing)}. Run: manage.py migrate --database {using}"
        )
    return using
