"""What commands ask about the jobs' database before they begin."""

from __future__ import annotations

from django.core.management.base import CommandError
from django.db import DatabaseError, connections

from django_backwave.backend import jobs_database
from django_backwave.store.doctor.results import listed
from django_backwave.store.doctor.schema import gaps
from django_backwave.store.heartbeat import is_one_database


def usable_database(alias: str | None) -> str:
    """Return the alias given, or that of the jobs' database, once it is known to have our tables.

    Raises CommandError, with the remedy, for an unknown alias, a server out of reach, missing tables.
    """
    using = alias or jobs_database()
    if using not in connections:
        known = ", ".join(sorted(connections))
        raise CommandError(f"There is no database {using!r} in DATABASES; there are: {known}.")
    try:
        lacking = gaps(using=using)
    except DatabaseError as error:
        raise CommandError(f"Database {using!r} cannot be reached: {str(error).strip()}") from error
    if lacking:
        raise CommandError(
            f"Database {using!r} has no {listed(lacking)}. Run: manage.py migrate --database {using}"
        )
    return using


def handlers_database(using: str, *, name: str) -> str:
    """Return the alias by which the project's code knows the database that an alias leads to.

    That of the jobs' database, if both are one: a handler writes by it, so its transactions are there. Else
    the alias itself. ``name``: a worker's name to find it out by. Raises CommandError if it cannot be asked.
    """
    code = jobs_database()
    if code == using:
        return using
    try:
        there = code in connections and not gaps(using=code)
        return code if there and is_one_database(using, code, name=name) else using
    except DatabaseError as error:
        raise CommandError(
            f"Handlers use database {code!r}, which cannot be reached: {str(error).strip()}"
        ) from error
