"""procrastinate: an async task on psycopg, started by its own command."""

from __future__ import annotations

from procrastinate import App, PsycopgConnector

from benchmarks.apps import database_url
from benchmarks.stamps import record

app = App(connector=PsycopgConnector(conninfo=database_url()))


@app.task(name="noop")
async def noop(number: int) -> None:
    """Run."""
    record(number)


async def connect() -> None:
    """Connect."""
    await app.open_async()


async def disconnect() -> None:
    """Disconnect."""
    await app.close_async()


async def prepare() -> None:
    """Create the tables."""
    await app.schema_manager.apply_schema_async()


async def enqueue(number: int) -> None:
    """Enqueue one job."""
    await noop.defer_async(number=number)


async def enqueue_many(numbers: list[int]) -> None:
    """Enqueue jobs in one statement."""
    await noop.batch_defer_async(*({"number": number} for number in numbers))
