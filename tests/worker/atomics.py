"""Atomic jobs, and handlers with marks, for real workers. Load with BACKWAVE_TEST_MODULES."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from django.contrib.auth.models import Permission
from django.db import connection, transaction

from django_backwave import GiveUp, Snooze, job
from tests.app.models import Entry
from tests.processes import append


def _write(context, folder: str) -> None:
    """Write a row that the attempt's number tells apart, and tell it in the journal."""
    Entry.objects.create(key=f"{context.job_id} {context.attempt}", value="written")
    append(Path(folder) / "journal", f"started {context.attempt}")


def _until(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.01)


def _wait(context, folder: str) -> None:
    """Wait for the file `go`; only the first attempt does."""
    if context.attempt == 1:
        _until(Path(folder) / "go")


@job(name="atomic.hold", atomic=True, takes_context=True)
def hold(context, folder: str) -> str:
    """Write, and wait within the transaction."""
    _write(context, folder)
    _wait(context, folder)
    append(Path(folder) / "journal", f"ended {context.attempt}")
    return f"attempt {context.attempt}"


@job(name="atomic.block", takes_context=True)
def block(context, folder: str, then: str = "") -> str:
    """Write in a block, and do something after it."""
    with context.atomic() as done:
        _write(context, folder)
        _wait(context, folder)
        done.output = f"attempt {context.attempt}"
    append(Path(folder) / "journal", f"after the block {context.attempt}")
    if then == "again":
        with context.atomic():
            pass
    if then == "raise":
        raise RuntimeError("after the block")
    if then == "hold":
        _until(Path(folder) / "end")
        append(Path(folder) / "journal", f"lost {context.lease_lost}")
    return "a value that nobody keeps"


def _later() -> None:
    raise RuntimeError("in a callback after the commit")


@job(name="atomic.end", atomic=True, takes_context=True, max_attempts=1)
def end(context, folder: str, how: str) -> object:
    """Write, and end in one of many ways."""
    _write(context, folder)
    if how in ENDS:
        return ENDS[how](context)
    raise RAISED[how]


def _durable() -> None:
    with transaction.atomic(durable=True):
        pass


def _in(block) -> None:
    with block:
        pass


def _refer_to_nothing() -> None:
    Permission.objects.create(codename="x", name="x", content_type_id=987_654)


RAISED = {
    "raise": ValueError("no stock"),
    "snooze": Snooze(3600),
    "give up": GiveUp("no such order"),
    "exit": SystemExit(3),
}
ENDS = {
    "stop": lambda context: context.raise_if_stopped(),
    "not json": lambda _: object(),
    "too large": lambda _: "x" * 70_000,
    "rollback": lambda _: transaction.set_rollback(True),
    "close": lambda _: connection.close(),
    "durable": lambda _: _durable(),
    "deferred": lambda _: _refer_to_nothing(),
    "callback": lambda _: transaction.on_commit(_later),
    "once": lambda context: _in(context.once("charge")),
    "nested": lambda context: _in(context.atomic()),
}


@job(name="once.charge", takes_context=True)
def charge(context, folder: str, dies: str = "") -> object:
    """Charge once, and die somewhere in the first attempt."""
    journal = Path(folder) / "journal"
    with context.once("charge") as once:
        append(journal, f"{context.attempt} first={once.first} done={once.done} result={once.result}")
        if once.first:
            append(journal, "charged")
            once.result = {"receipt": "R-1"}
        if dies == "within" and context.attempt == 1:
            os.kill(os.getpid(), 9)
        if dies == "raise" and context.attempt == 1:
            raise OSError("no answer")
        if dies == "hold" and context.attempt == 1:
            append(journal, "started 1")
            _until(Path(folder) / "go")
    if dies == "after" and context.attempt == 1:
        os.kill(os.getpid(), 9)
    return once.result


@job(name="once.async", takes_context=True)
async def charge_async(context, folder: str) -> object:
    """Charge once in a coroutine; and try what a coroutine may not."""
    from django_backwave import exceptions

    with suppress(exceptions.NotOnce), context.once("blocking"):
        append(Path(folder) / "journal", "a blocking block was let through")
    async with context.once("charge") as once:
        once.result = once.first
    return once.result


@job(name="once.refused", takes_context=True, max_attempts=1)
def refused(context, how: str) -> None:
    """Use a mark where it cannot be kept."""
    if how == "transaction":
        with transaction.atomic(), context.once("charge"):
            pass
    if how == "block":
        with context.atomic(), context.once("charge"):
            pass
    names = {"no name": "", "long name": "x" * 101}
    results = {"result": object(), "large result": "x" * 70_000}
    with context.once(names.get(how, "charge")) as once:
        once.result = results.get(how)
        if how == "late transaction":
            transaction.set_autocommit(False)
