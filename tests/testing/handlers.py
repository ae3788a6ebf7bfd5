"""Handlers that the tests of the test helpers enqueue."""

from __future__ import annotations

import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.core.cache import cache
from django.db import IntegrityError, connection, transaction
from django.tasks import task
from django.utils import translation

from django_backwave import Backoff, GiveUp, JobContext, Retry, Snooze, job
from django_backwave.testing import clock
from tests.app.models import Entry

#: What handlers have seen, in order; each test begins with none.
seen: list[Any] = []


@job
def note(value: Any, more: Any = None) -> Any:
    """Note a value and return it."""
    seen.append(value)
    return value


@job(takes_context=True)
def tell(context: JobContext, value: Any = None) -> None:
    """Note what the context says."""
    seen.append((context.attempt, context.failures, context.headers))
    context.tag("value", str(value))
    context.progress(1, 2, "half")


@task
def plain(value: int) -> int:
    """Be a task of Django's own making."""
    return value + 1


@job(max_attempts=3, backoff=Backoff(base=10, jitter=0.5))
def fail(message: str = "no stock") -> None:
    """Write something, and fail."""
    Entry.objects.create(key=f"written {Entry.objects.count()}", value="")
    raise ValueError(message)


@job
def interrupted() -> None:
    """Be stopped by the one at the keyboard."""
    raise KeyboardInterrupt


@job
def give_up() -> None:
    """Give up."""
    raise GiveUp("out of stock")


@job
def retry_later() -> None:
    """Fail, and know when to come back."""
    raise Retry(90)


@job(takes_context=True)
def snooze(context: JobContext) -> None:
    """Wait twice."""
    if context.attempt < 3:
        raise Snooze(60)


@job
def clash() -> str:
    """Get over an error of the database, outside of any transaction."""
    Entry.objects.create(key="taken", value="")
    try:
        Entry.objects.create(key="taken", value="")
    except IntegrityError:
        Entry.objects.create(key="other", value="")
    with transaction.atomic():
        Entry.objects.create(key="third", value="")
    return "survived"


@job
def clash_unhandled() -> None:
    """Write, then stumble over an error of the database."""
    Entry.objects.create(key="taken", value="")
    Entry.objects.create(key="taken", value="")


@job
def roll_back() -> None:
    """Lose what a transaction had written, and no more."""
    Entry.objects.create(key="before", value="")
    with transaction.atomic():
        Entry.objects.create(key="within", value="")
        raise ValueError("no stock")


@job
def durably() -> list[str]:
    """Use a durable block, and its callbacks."""
    said = []
    transaction.on_commit(lambda: said.append("at once"))
    with transaction.atomic(durable=True):
        transaction.on_commit(lambda: said.append("committed"))
        with transaction.atomic():
            Entry.objects.create(key="durable", value="")
        said.append("within")
    return said


@job
def state_of_the_connection() -> list[bool]:
    """Tell whether the handler is in a transaction."""
    return [connection.in_atomic_block, connection.get_autocommit()]


@job
def careless() -> None:
    """Leave a transaction open, and close the connection."""
    connection.close()
    transaction.set_autocommit(False)
    Entry.objects.create(key="open", value="")


@job
def by_hand() -> None:
    """Use transactions as they were used before atomic()."""
    transaction.set_autocommit(False)
    Entry.objects.create(key="kept", value="")
    transaction.commit()
    Entry.objects.create(key="lost", value="")
    transaction.rollback()
    transaction.set_autocommit(True)


@job(atomic=True)
def atomically(key: str, fails: bool = False) -> str:
    """Write as one with the success."""
    Entry.objects.create(key=key, value="")
    if fails:
        raise ValueError("no stock")
    return key


@job(takes_context=True)
def block(context: JobContext) -> None:
    """Complete within the handler."""
    with context.atomic() as done:
        Entry.objects.create(key="block", value="")
        done.output = 7


@job(takes_context=True, backoff=Backoff(base=10))
def marked(context: JobContext) -> list[Any]:
    """Mark an effect, and fail once after it."""
    with context.once("charge") as once:
        if once.first:
            once.result = "receipt"
    if context.attempt == 1:
        raise ValueError("after the effect")
    return [once.first, once.done, once.result]


@job(takes_context=True)
def marked_in_transaction(context: JobContext) -> None:
    """Misuse a mark."""
    with transaction.atomic(), context.once("charge"):
        pass


@job
async def asynchronous(key: str) -> list[Any]:
    """Write by the ORM's own asynchronous ways."""
    await Entry.objects.acreate(key=key, value="")
    await note.aenqueue(key)
    count = await Entry.objects.acount()
    return [count, await sync_to_async(lambda: connection.alias)()]


@job
async def asynchronous_failure() -> None:
    """Fail."""
    raise ValueError("from a coroutine")


@job(takes_context=True)
async def asynchronously_marked(context: JobContext) -> bool:
    """Mark an effect."""
    async with context.once("charge") as once:
        pass
    return once.first


@job
def chain(left: int) -> None:
    """Enqueue the next one."""
    seen.append(left)
    if left:
        chain.enqueue(left - 1)


@job
def forever() -> None:
    """Enqueue itself."""
    forever.enqueue()


@job
def language_and_cache() -> list[str]:
    """Tell what it finds of the test's."""
    return [translation.get_language(), cache.get("key")]


@job
def thread() -> str:
    """Tell in which thread it runs."""
    return threading.current_thread().name


@job(takes_context=True, timeout=30, lease=5)
def slow(context: JobContext, seconds: float, then: str = "return") -> str:
    """Take long."""
    moving = clock.current()
    assert moving is not None
    moving.advance(seconds=seconds)
    if then == "look":
        context.raise_if_stopped()
    if then == "fail":
        raise ValueError("no stock")
    return then


@job(takes_context=True, atomic=True, lease=5)
def slow_and_atomic(context: JobContext, fails: bool) -> None:
    """Take long within a transaction."""
    moving = clock.current()
    assert moving is not None
    moving.advance(minutes=10)
    Entry.objects.create(key="slow", value="")
    if fails:
        raise ValueError("no stock")


@job(takes_context=True)
def cancelled_meanwhile(context: JobContext) -> None:
    """Be cancelled while it runs, and learn of it."""
    context.task_result.cancel()
    moving = clock.current()
    assert moving is not None
    moving.advance(seconds=1)
    context.raise_if_stopped()


@job(takes_context=True)
async def cancelled_in_a_coroutine(context: JobContext) -> None:
    """Be cancelled while it runs: the task is cancelled at its next await."""
    await context.task_result.acancel()
    moving = clock.current()
    assert moving is not None
    await sync_to_async(moving.advance)(seconds=1)
    for _ in range(3):
        await sync_to_async(Entry.objects.count)()
    seen.append("never")
