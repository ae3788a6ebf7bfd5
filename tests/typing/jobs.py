"""Uses of a job, right and wrong. A checker must object to exactly the lines that end in `# wrong`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, assert_type

from django_backwave import Backoff, JobContext, JobHandle, JobResult, job

if TYPE_CHECKING:
    from django_backwave.jobs import BackWaveTask


@job
def add(a: int, b: int = 0) -> int:
    return a + b


@job(queue_name="mail", max_attempts=5, backoff=Backoff(base=1), timeout=timedelta(minutes=1))
def greet(name: str, *, loud: bool = False) -> str:
    return name.upper() if loud else name


@job(takes_context=True, atomic=True)
def book(context: JobContext, order_id: int, *, copy: bool = False) -> None:
    context.raise_if_stopped()


@job
async def fetch(url: str) -> str:
    return url


@job(max_atempts=3)  # wrong
def misspelt() -> None: ...


@job(max_attempts="3")  # wrong
def of_another_type() -> None: ...


@job(takes_context=True)  # wrong
def without_context(order_id: int) -> None: ...


def right() -> None:
    assert_type(add.enqueue(1), JobResult)
    add.enqueue(1, 2)
    add.enqueue(a=1, b=2)
    add.using(priority=5, run_after=None, max_attempts=2).enqueue(1)
    greet.enqueue("Ada", loud=True)
    book.enqueue(7, copy=True)
    fetch.enqueue("https://example.org")
    assert_type(add.get_result("id"), JobResult)
    assert_type(add.enqueue(1).handle, JobHandle)
    assert_type(JobHandle.loads(add.enqueue(1).dumps()).get_result(), JobResult)
    add.enqueue(1).wait(timeout=timedelta(seconds=5))
    anything: list[BackWaveTask] = [add, greet, book, fetch]
    for one in anything:
        one.enqueue("whatever", it=1)


async def right_in_a_coroutine() -> None:
    assert_type(await add.aenqueue(1), JobResult)
    await add.using(priority=1).aenqueue(1, b=2)
    await (await add.aenqueue(1)).await_(timeout=5)


def wrong() -> None:
    add.enqueue()  # wrong
    add.enqueue("1")  # wrong
    add.enqueue(1, 2, 3)  # wrong
    add.enqueue(1, c=3)  # wrong
    greet.enqueue("Ada", True)  # wrong
    greet.using(queue_name="x").enqueue(1)  # wrong
    book.enqueue("7")  # wrong
    book.enqueue(None, 7)  # wrong
    fetch.enqueue(7)  # wrong
    add.using(max_atempts=3)  # wrong


async def wrong_in_a_coroutine() -> None:
    await add.aenqueue("1")  # wrong
