"""chancy: an async job in the worker's event loop, with eager polling: else a queue waits after a batch."""

from __future__ import annotations

import asyncio
import logging

from chancy import Chancy, Queue, Worker, job

from benchmarks.apps import concurrency, database_url
from benchmarks.stamps import record

chancy: Chancy | None = None


@job(queue="default")
async def noop(*, number: int) -> None:
    """Run."""
    record(number)


def made() -> Chancy:
    """Return an instance without its log lines for each job."""
    return Chancy(database_url(), log=logging.getLogger("chancy.quiet"))


async def connect() -> None:
    """Connect."""
    global chancy
    chancy = made()
    await chancy.__aenter__()


async def disconnect() -> None:
    """Disconnect."""
    await chancy.__aexit__(None, None, None)


async def prepare() -> None:
    """Create the tables and the queue."""
    await chancy.migrate()
    await chancy.declare(
        Queue(
            "default",
            concurrency=concurrency(),
            executor=Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=True,
        )
    )


async def enqueue(number: int) -> None:
    """Enqueue one job."""
    await chancy.push(noop.job.with_kwargs(number=number))


async def enqueue_many(numbers: list[int]) -> None:
    """Enqueue jobs in batches."""
    async for _ in chancy.push_many([noop.job.with_kwargs(number=number) for number in numbers]):
        pass


async def work() -> None:
    """Run jobs until SIGTERM."""
    async with made() as own, Worker(own) as worker:
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    asyncio.run(work())
