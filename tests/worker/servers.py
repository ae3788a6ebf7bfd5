"""Servers of these tests' own, that they may stop or hide: an alias here, and the environment of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from django.core.management import call_command
from django.db import connections

from django_backwave.models import Job
from tests.databases import parse_url
from tests.postgres import PostgresServer


@contextmanager
def alias_on(server: PostgresServer, alias: str) -> Iterator[str]:
    """Make an alias for an empty database of ours on a server."""
    connection = connections["default"].copy(alias)
    connection.settings_dict = connection.settings_dict | parse_url(server.url("postgres"))
    connections[alias] = connection
    try:
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        Job.objects.using(alias).all().delete()
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]


def environment(server: PostgresServer, port: int | None = None) -> dict[str, str]:
    """Return what makes that database a worker's; ``port``: of a proxy before the server."""
    url = server.url("postgres")
    if port is not None:
        url = url.replace(f":{urlsplit(url).port}/", f":{port}/")
    return {"BACKWAVE_TEST_DATABASE_URL": url, "BACKWAVE_TEST_DATABASE_NAME": "postgres"}
