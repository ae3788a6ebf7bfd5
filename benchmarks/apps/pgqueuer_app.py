"""pgqueuer: async handlers, batches of 50, asyncpg and uvloop, as its own command would run it."""

from __future__ import annotations

import asyncio
import signal

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.apps import database_url
from benchmarks.stamps import record

#: Its best here: 10 gives a third of the rate, 100 gives no more.
BATCH = 50

queries: Queries | None = None
connection: asyncpg.Connection | None = None


async def connect() -> None:
    """Connect."""
    global queries, connection
    connection = await asyncpg.connect(database_url())
    queries = Queries(AsyncpgDriver(connection))


async def disconnect() -> None:
    """Disconnect."""
    await connection.close()


async def prepare() -> None:
    """Create the tables."""
    await queries.install()


async def enqueue(number: int) -> None:
    """Enqueue one job."""
    await queries.enqueue("noop", str(number).encode())


async def enqueue_many(numbers: list[int]) -> None:
    """Enqueue jobs in one statement."""
    count = len(numbers)
    await queries.enqueue(["noop"] * count, [str(number).encode() for number in numbers], [0] * count)


async def work() -> None:
    """Run jobs until SIGTERM."""
    link = await asyncpg.connect(database_url())
    queuer = PgQueuer(AsyncpgDriver(link))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        record(int(job.payload))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.qm.shutdown.set)
    await queuer.qm.run(batch_size=BATCH)


if __name__ == "__main__":
    uvloop.run(work())
