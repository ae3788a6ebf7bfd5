"""The database of a run: a server or a file of its own, so that its faults disturb nobody else."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.postgres import PostgresServer
from tests.worker.proxy import Proxy


class Stage:
    """Where the tables are, and how the processes reach them; ``server`` is None on SQLite."""

    def __init__(self, folder: Path, server: PostgresServer | None, proxies: list[Proxy]) -> None:
        self.folder = folder
        self.server = server
        self.proxies = proxies

    @property
    def file(self) -> Path:
        """The database's file, on SQLite."""
        return self.folder / "chaos.sqlite3"

    def environment(self, seat: int) -> dict[str, str]:
        """Return what a process needs to know beside `child_environment`; each seat has its own proxy."""
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "BACKWAVE_CHAOS_FOLDER": str(self.folder),
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent),
        }
        if self.server is not None and self.proxies:
            url, port = self.server.url("postgres"), self.proxies[seat].port
            environment["BACKWAVE_TEST_DATABASE_URL"] = url.replace(f":{self.server.port}/", f":{port}/")
        return environment

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold SQLite's one write lock, as a long transaction of somebody else's does."""
        connection = sqlite3.connect(self.file, isolation_level=None, timeout=30)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.close()


@contextmanager
def stage(database: str, folder: Path, seats: int) -> Iterator[Stage]:
    """Provide a database with our tables, for this process, too, and proxies in front of a server."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer()) if database == "postgres" else None
        proxies = [stack.enter_context(Proxy(server.port)) for _ in range(seats)] if server else []
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "BACKWAVE_TEST_DATABASE": database,
            "BACKWAVE_TEST_OTHER_NAME": str(folder / "other.sqlite3"),
        }
        made = Stage(folder, server, proxies)
        # A test that starts us may have named its own.
        for name in (
            "BACKWAVE_TEST_DATABASE_URL",
            "BACKWAVE_TEST_POSTGRES_URL",
            "BACKWAVE_TEST_DATABASE_NAME",
        ):
            os.environ.pop(name, None)
        if server:
            os.environ["BACKWAVE_TEST_POSTGRES_URL"] = server.url("postgres")
        else:
            os.environ["BACKWAVE_TEST_DATABASE_NAME"] = str(made.file)
        _make_tables()
        stack.callback(_disconnect)
        yield made


def _make_tables() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


def _disconnect() -> None:
    from django.db import connections

    connections.close_all()
