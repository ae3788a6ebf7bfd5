"""Async handlers of the worker tests. The files that they wait for and write to are arguments."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_backwave import JobContext, job
from tests.app.models import Entry
from tests.processes import append, wait_until


@job
async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@job(takes_context=True)
async def hold(context: JobContext, folder: str) -> str:
    """Wait for the file `go`; say in the journal if the wait is cancelled."""
    append(f"{folder}/journal", f"started {context.attempt}")
    try:
        while not Path(f"{folder}/go").exists():
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        append(f"{folder}/journal", "cancelled")
        raise
    return f"{folder} is done"


@job(takes_context=True)
async def hold_in_thread(context: JobContext, folder: str) -> None:
    """Wait for the file `go` in the slot's own thread, which no cancellation reaches."""
    append(f"{folder}/journal", f"started {context.attempt}")
    try:
        await sync_to_async(wait_until)(Path(f"{folder}/go").exists)
    except asyncio.CancelledError:
        append(f"{folder}/journal", "cancelled")
        raise


@job
async def leave_children(folder: str) -> None:
    """Leave a task behind that ends only when it is cancelled."""
    began = asyncio.Event()

    async def child() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            append(f"{folder}/journal", "child ended")

    left = asyncio.create_task(child())
    await began.wait()
    append(f"{folder}/journal", f"child left {not left.done()}")


@job
async def end_in_a_child() -> str:
    """Let a task of one's own raise SystemExit."""

    async def child() -> None:
        raise SystemExit(3)

    task = asyncio.create_task(child())
    await asyncio.sleep(0.05)
    with contextlib.suppress(BaseException):
        await task
    return "alive"


@job
async def write_in_transaction(folder: str, key: str) -> None:
    """Write an entry in a transaction that stays open until the file `go` is there, then roll it back."""

    def work() -> None:
        with transaction.atomic():
            Entry.objects.create(key=key, value="")
            append(f"{folder}/journal", "started 1")
            wait_until(Path(f"{folder}/go").exists)
            transaction.set_rollback(True)

    await sync_to_async(work)()


@job
async def write(folder: str, key: str) -> None:
    """Write an entry by itself."""
    await Entry.objects.acreate(key=key, value="")
    append(f"{folder}/journal", f"wrote {key}")


@job(max_attempts=1)
async def leave_transaction_open(key: str) -> None:
    """Begin what one does not end."""

    def work() -> None:
        connection.set_autocommit(False)
        Entry.objects.create(key=key, value="")

    await sync_to_async(work)()


@job(max_attempts=1)
async def fail() -> None:
    raise ValueError("it cannot be done")


@job(takes_context=True)
async def break_the_slot(context: JobContext, folder: str) -> None:
    """Wait for the file `go`, then break what the worker does after a handler."""
    from django_backwave.worker.connections import Hygiene

    append(f"{folder}/journal", f"started {context.attempt}")
    await sync_to_async(wait_until)(Path(f"{folder}/go").exists)
    Hygiene.after = None  # type: ignore[method-assign, assignment]


@job(takes_context=True)
async def charge_in_thread(context: JobContext, folder: str) -> None:
    """Wait for the file `go` in a thread of the loop's own, and charge."""
    append(f"{folder}/journal", f"started {context.attempt}")

    def charge() -> None:
        wait_until(Path(f"{folder}/go").exists)
        append(f"{folder}/journal", f"charged {context.attempt}")

    await asyncio.to_thread(charge)


@job
async def clean_up_slowly(folder: str) -> None:
    """Wait to be cancelled, and then take a while to leave."""
    append(f"{folder}/journal", "started 1")
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(15):  # longer than two heartbeats
            await asyncio.sleep(0.2)
        append(f"{folder}/journal", "cleaned up")


@job(max_attempts=1)
async def cancel_everybody() -> str:
    """Cancel every other task of the loop."""
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    await asyncio.sleep(0.05)
    return "alive"


class CardRefusedError(Exception):
    """An exception that takes no attributes, as a frozen dataclass does."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@job(max_attempts=1)
async def refuse_the_card() -> None:
    raise CardRefusedError("no money")
