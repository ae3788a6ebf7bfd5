"""The client's side of a run, a process: `python -m benchmarks.client APP ACTION …` prints JSON.

prepare                 create the tables
fill N                  enqueue N jobs, the fastest way there is
each N                  enqueue N jobs one by one; prints the seconds
timed N                 the same, after a few that are not timed
bulk N                  enqueue N jobs in bulk; prints the seconds
spaced N FIRST MIN MAX  enqueue the jobs from FIRST on, with random pauses of MIN to MAX seconds between them;
                        prints, for each, the instants before and after the call
clean                   remove what a broker keeps
sleepers N SECONDS      enqueue N jobs that sleep
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

#: Jobs of one call of `enqueue_many`.
BULK = 10_000
#: Jobs that `timed` enqueues before the clock starts: the first ones prepare statements and import modules.
WARM_UP = 50


class Client:
    """Drives one app. The actions are coroutines that never really wait if the app is synchronous."""

    def __init__(self, app: ModuleType) -> None:
        self._app = app
        self.is_async = inspect.iscoroutinefunction(app.enqueue)

    async def run(self, action: str, arguments: Sequence[str]) -> Any:
        """Do one action between the app's `connect` and `disconnect`."""
        await self._call("connect")
        try:
            return await getattr(self, action)(*map(float, arguments))
        finally:
            await self._call("disconnect")

    async def prepare(self) -> None:
        """Create the tables."""
        await self._call("prepare")

    async def clean(self) -> None:
        """Remove what a broker keeps."""
        await self._call("clean")

    async def fill(self, count: float) -> None:
        """Enqueue jobs, the fastest way there is."""
        if hasattr(self._app, "enqueue_many"):
            await self.bulk(count)
        elif hasattr(self._app, "together"):
            with self._app.together():
                await self.each(count)
        else:
            await self.each(count)

    async def each(self, count: float) -> float:
        """Enqueue jobs one by one, each with a commit of its own."""
        enqueue = self._app.enqueue
        begin = time.perf_counter()
        if self.is_async:
            for number in range(int(count)):
                await enqueue(number)
        else:
            for number in range(int(count)):
                enqueue(number)
        return time.perf_counter() - begin

    async def timed(self, count: float) -> float:
        """Enqueue jobs one by one, after a few that are not timed."""
        await self.each(WARM_UP)
        return await self.each(count)

    async def sleepers(self, count: float, seconds: float) -> None:
        """Enqueue jobs that sleep."""
        await self._call("sleepers", int(count), seconds)

    async def bulk(self, count: float) -> float | None:
        """Enqueue jobs in bulk; None if the contestant cannot."""
        if not hasattr(self._app, "enqueue_many"):
            return None
        begin = time.perf_counter()
        for first in range(0, int(count), BULK):
            await self._call("enqueue_many", list(range(first, min(first + BULK, int(count)))))
        return time.perf_counter() - begin

    async def spaced(self, count: float, first: float, least: float, most: float) -> list[tuple[int, int]]:
        """Enqueue jobs with pauses between them."""
        instants = []
        for number in range(int(first), int(first + count)):
            pause = random.uniform(least, most)
            await asyncio.sleep(pause) if self.is_async else time.sleep(pause)
            before = time.monotonic_ns()
            await self._call("enqueue", number)
            instants.append((before, time.monotonic_ns()))
        return instants

    async def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., Awaitable[None] | None] | None = getattr(self._app, name, None)
        result = function(*arguments) if function else None
        if inspect.isawaitable(result):
            await result


def finish(coroutine: Coroutine[Any, Any, Any], *, is_async: bool) -> Any:
    """Run a coroutine; one that never waits gets no event loop, in which Django's ORM refuses to work."""
    if is_async:
        return asyncio.run(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("A synchronous app must not wait.")


def main(name: str, action: str, *arguments: str) -> None:
    """Do what the command line says."""
    client = Client(import_module(f"benchmarks.apps.{name}"))
    print(json.dumps(finish(client.run(action, arguments), is_async=client.is_async)))


if __name__ == "__main__":
    main(*sys.argv[1:])
