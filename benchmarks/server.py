"""The services: a PostgreSQL with durable settings, a fresh database for each run, brokers that answer."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.postgres import PostgresServer

# PostgreSQL's defaults are durable; said again, so that nobody has to know. The size of the log between two
# checkpoints is the one thing changed: with the default, runs differ by whether a checkpoint falls into them.
DURABLE = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
port = {port}
max_connections = 300
fsync = on
synchronous_commit = on
full_page_writes = on
shared_buffers = 256MB
max_wal_size = 4GB
"""
SHOWN = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
)


class Databases:
    """Makes databases on one server, and drops those it made."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._prefix = f"backwave_bench_{secrets.token_hex(3)}"
        self._templates: dict[str, str] = {}
        self._made = 0

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"{self._url}/{name}"

    def settings(self) -> dict[str, str]:
        """Return what the server says of its version and its durability."""
        with self._administration() as connection:
            return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in SHOWN}

    def template(self, key: str) -> str | None:
        """Return the database that was prepared for `key`, or None."""
        return self._templates.get(key)

    def keep(self, name: str, key: str) -> None:
        """Keep a database as the template for `key`."""
        self._templates[key] = name

    def create(self, *, template: str | None = None) -> str:
        """Create a database, empty or as a copy, and return its name."""
        self._made += 1
        name = f"{self._prefix}_{self._made}"
        with self._administration() as connection:
            copied = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + copied)
        return name

    def drop(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        with self._administration() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def drop_all(self) -> None:
        """Drop what this object made, also after a failure in the middle."""
        with suppress(psycopg.OperationalError), self._administration() as connection:
            pattern = self._prefix.replace("_", "\\_") + "%"
            rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE %s", [pattern])
            for (name,) in rows.fetchall():
                self.drop(name)

    def _administration(self) -> psycopg.Connection:
        return psycopg.connect(self.url("postgres"), autocommit=True)


@contextmanager
def databases(url: str | None) -> Iterator[Databases]:
    """Yield the databases of the server at `url`, or of a server of our own."""
    if url:
        made = Databases(url)
        try:
            yield made
        finally:
            made.drop_all()
        return
    server = PostgresServer(DURABLE)
    try:
        server.start()
        yield Databases(server.url("").rstrip("/"))
    finally:
        server.remove()


def answers(url: str) -> bool:
    """Say whether something listens where `url` points to."""
    parts = urlsplit(url)
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), timeout=2):
        return True
    return False
