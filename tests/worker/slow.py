"""Handlers of the time-out tests. The folders that they wait and write in are arguments."""

from __future__ import annotations

import threading
from pathlib import Path

from django_backwave import JobContext, Retry, job
from tests.app.models import Entry
from tests.processes import append


@job(takes_context=True)
def ignore_the_first(context: JobContext, folder: str) -> str:
    """Hear nobody in the first attempt until the file `go` is there; then say what became of the lease."""
    append(f"{folder}/journal", f"started {context.attempt}")
    while context.attempt == 1 and not Path(f"{folder}/go").exists():
        threading.Event().wait(0.01)
    append(f"{folder}/journal", f"ended {context.attempt} lease lost {context.lease_lost}")
    return f"attempt {context.attempt}"


@job(takes_context=True, atomic=True)
def write_and_wait(context: JobContext, folder: str) -> None:
    """Write an entry, and stop when told to, or when the file `go` is there."""
    append(f"{folder}/journal", f"started {context.attempt}")
    Entry.objects.create(key=folder, value=str(context.attempt))
    while not Path(f"{folder}/go").exists():
        context.raise_if_stopped()
        threading.Event().wait(0.01)


@job(takes_context=True, atomic=True)
def write_and_ignore(context: JobContext, folder: str) -> str:
    """Write an entry, and hear nobody in the first attempt until the file `go` is there."""
    append(f"{folder}/journal", f"started {context.attempt}")
    Entry.objects.create(key=f"{folder} {context.attempt}", value="")
    while context.attempt == 1 and not Path(f"{folder}/go").exists():
        threading.Event().wait(0.01)
    return f"attempt {context.attempt}"


@job(takes_context=True)
def complete_and_wait(context: JobContext, folder: str) -> None:
    """Complete the job, and go on until the file `go` is there."""
    with context.atomic() as done:
        done.output = "completed"
    append(f"{folder}/journal", "started 1")
    while not Path(f"{folder}/go").exists():
        context.raise_if_stopped()
        threading.Event().wait(0.01)


@job(retry_on=(OSError,))
def retry(after: float, reason: str = "") -> None:
    """Ask for another try."""
    raise Retry(after=after, reason=reason)
