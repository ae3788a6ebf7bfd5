"""Each test here bears the number of a guarantee, and skips for nothing but a named capability."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.db import connection

from tests.conformance.capabilities import lacking, reason
from tests.databases import chosen

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hold the tests of this folder to these rules, and hand their numbers to the report."""
    for item in items:
        if HERE in item.path.parents:
            item.user_properties.append(("guarantee", guarantee_of(item)))
            needed = [name for marker in item.iter_markers("needs") for name in marker.args]
            if missing := lacking(tuple(needed), chosen()):
                item.add_marker(pytest.mark.skip(reason=reason(missing)))


def guarantee_of(item: pytest.Item) -> str:
    """Return the guarantee that a test is marked with: it must be the one that its file is named for."""
    marker = item.get_closest_marker("guarantee")
    if marker is None:
        raise pytest.UsageError(
            f"{item.nodeid} holds no guarantee. Mark it, or its file, with guarantee(number)."
        )
    [number] = marker.args
    named = named_for(item.path.stem)
    if number != named:
        raise pytest.UsageError(f"{item.nodeid} is marked {number}, and stands in the file of {named}.")
    return str(number)


def named_for(stem: str) -> str:
    """Return the guarantee that a file is named for: G4 for `test_g04_fence`, else its word."""
    numbered = re.match(r"test_g(\d\d)_", stem)
    return f"G{int(numbered[1])}" if numbered else stem.removeprefix("test_")


@pytest.fixture(autouse=True)
def _server(record_property, request) -> None:
    """Tell the report which server was really met."""
    request.getfixturevalue("django_db_setup")
    with request.getfixturevalue("django_db_blocker").unblock():
        record_property("server", server())


def server() -> str:
    """Return the database and its version, as far as it matters."""
    if connection.vendor == "postgresql":
        return f"PostgreSQL {connection.pg_version // 10_000}"
    connection.ensure_connection()
    if connection.vendor == "mysql":
        name = "MariaDB" if connection.mysql_is_mariadb else "MySQL"
        return f"{name} {'.'.join(map(str, connection.mysql_version[:2]))}"
    return f"SQLite {'.'.join(map(str, connection.Database.sqlite_version_info[:2]))}"
