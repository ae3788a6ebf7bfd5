"""Which databases the tests use: from environment variables to Django's DATABASES, and back again.

Nobody has to set any of them; pytest's plugin (`tests/plugin.py`) fills in what is missing.

BACKWAVE_TEST_DATABASE        what `default` is in this run: `sqlite`, `postgres` or `mysql`
BACKWAVE_TEST_POSTGRES_URL    a server to use instead of starting one,
                              `postgres://user:password@host:port/name`
BACKWAVE_TEST_MYSQL_URL       the same for MySQL and MariaDB, of which none is ever started
BACKWAVE_TEST_FOLDER          where the SQLite files of this run lie

A process that a test starts must meet the very database of that test. `child_environment()` tells
it the first two of these; the test itself may add the third, say, to put a proxy between them:

BACKWAVE_TEST_DATABASE_NAME   the database's name or file for `default`
BACKWAVE_TEST_OTHER_NAME      the file for `other`
BACKWAVE_TEST_DATABASE_URL    the server for `default`, instead of those above
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

ENGINES = {
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
}
SERVER_URLS = {"postgres": "BACKWAVE_TEST_POSTGRES_URL", "mysql": "BACKWAVE_TEST_MYSQL_URL"}


def chosen() -> str:
    """Return the database of this run: "sqlite", "postgres" or "mysql"."""
    name = os.environ.get("BACKWAVE_TEST_DATABASE", "sqlite")
    if name != "sqlite" and name not in SERVER_URLS:
        raise ValueError(f"BACKWAVE_TEST_DATABASE must be sqlite, postgres or mysql, got {name!r}.")
    return name


def parse_url(url: str) -> dict[str, Any]:
    """Turn `engine://user:password@host:port/name?option=value` into an entry for DATABASES."""
    parts = urlsplit(url)
    if parts.scheme not in ENGINES:
        raise ValueError(f"A database URL starts with one of {', '.join(ENGINES)}, got {url!r}.")
    return {
        "ENGINE": ENGINES[parts.scheme],
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def default_database() -> dict[str, Any]:
    """Return DATABASES["default"] for this process."""
    name = os.environ.get("BACKWAVE_TEST_DATABASE_NAME")
    if chosen() == "sqlite":
        return _sqlite("default", name)
    server = SERVER_URLS[chosen()]
    url = os.environ.get("BACKWAVE_TEST_DATABASE_URL") or os.environ.get(server)
    if not url:
        raise ValueError(f"Set {server} to a server's URL; only pytest can do without it.")
    database = parse_url(url)
    if chosen() == "mysql":
        _use_pymysql(database)
    if name:
        database["NAME"] = name
    return database


def other_database() -> dict[str, Any]:
    """Return DATABASES["other"]: a second database, beside the one of the jobs."""
    return _sqlite("other", os.environ.get("BACKWAVE_TEST_OTHER_NAME"))


def child_environment(**changes: str) -> dict[str, str]:
    """Return the environment for a process that shall use the databases of the running test.

    Start `tests/manage.py` with it; `changes` go on top, for example BACKWAVE_TEST_DATABASE_URL.
    """
    from django.db import connections  # Settings import this module, and django.db reads them.

    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "BACKWAVE_TEST_DATABASE_NAME": names["default"],
        "BACKWAVE_TEST_OTHER_NAME": names["other"],
        **changes,
    }


def _use_pymysql(database: dict[str, Any]) -> None:
    """Let the pure-Python driver stand in for mysqlclient, which needs a compiler to install."""
    import pymysql

    pymysql.install_as_MySQLdb()
    database["OPTIONS"] |= {"charset": "utf8mb4"}
    database["TEST"] = {"CHARSET": "utf8mb4"}


def _sqlite(alias: str, name: str | None) -> dict[str, Any]:
    """Return a SQLite database, set up as we tell our users to set it up."""
    folder = Path(os.environ.get("BACKWAVE_TEST_FOLDER", "."))
    return {
        "ENGINE": "django.db.backends.sqlite3",
        # Outside of tests (say, for makemigrations) no file is left behind.
        "NAME": name or ":memory:",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
        # A real file: threads and processes of a test connect to it, each for itself.
        "TEST": {"NAME": str(folder / f"{alias}.sqlite3")},
    }
