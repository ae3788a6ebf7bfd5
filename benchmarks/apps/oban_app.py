"""oban: an async handler, a queue with a limit of its own, started by its own command."""

from __future__ import annotations

from oban import Oban, worker
from oban.schema import install

from benchmarks.apps import database_url
from benchmarks.stamps import record

pool = None
oban: Oban | None = None


@worker(queue="default")
class Noop:
    """The job."""

    async def process(self, job: object) -> None:
        """Run."""
        record(job.args["number"])


async def connect() -> None:
    """Connect."""
    global pool, oban
    pool = await Oban.create_pool(database_url())
    oban = Oban(pool=pool)


async def disconnect() -> None:
    """Disconnect."""
    await pool.close()


async def prepare() -> None:
    """Create the tables."""
    await install(pool)


async def enqueue(number: int) -> None:
    """Enqueue one job."""
    await oban.enqueue(Noop.new({"number": number}))


async def enqueue_many(numbers: list[int]) -> None:
    """Enqueue jobs in one statement."""
    await oban.enqueue_many([Noop.new({"number": number}) for number in numbers])
