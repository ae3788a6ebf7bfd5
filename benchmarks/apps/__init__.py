"""How each contestant is used. These modules run in the environment of the contestants, never in the harness.

Each has `prepare()`, which creates tables; `enqueue(number)`; maybe `enqueue_many(numbers)`; maybe
`connect()` and `disconnect()` around these; and maybe `work()`, where a contestant brings no command of its
own. Those of a contestant whose interface is asynchronous are coroutine functions, and run in one event
loop.
"""

from __future__ import annotations

import os


def database_url() -> str:
    """Return the URL of the run's database."""
    return os.environ["BENCH_DATABASE_URL"]


def broker_url() -> str:
    """Return the URL of the run's broker."""
    return os.environ["BENCH_BROKER_URL"]


def namespace() -> str:
    """Return a name that nothing else in the broker has."""
    return os.environ["BENCH_NAMESPACE"]


def concurrency() -> int:
    """Return how many jobs a worker process runs at the same time."""
    return int(os.environ.get("BENCH_CONCURRENCY", "10"))
