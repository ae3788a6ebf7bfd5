"""Handlers, hooks and receivers of the tests about tags, progress, headers and signals."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from pathlib import Path

from django_backwave import job
from django_backwave.compat import task_finished, task_started
from django_backwave.signals import job_abandoned, job_retrying, job_stale
from tests.processes import append


@job(takes_context=True)
def tell_progress(context, folder: str, total: int) -> int:
    """Tell each step's progress in a tight loop, tag the job, and go on once the file `go` exists."""
    append(Path(folder) / "journal", f"started {context.attempt}")
    for step in range(total + 1):
        context.progress(step, total, f"step {step}")
    context.tag("vip")
    context.tag("attempt", str(context.attempt))
    while not (Path(folder) / "go").exists():
        threading.Event().wait(0.01)
    context.progress(total, total, "all done")
    return context.attempt


@job
def return_too_much() -> str:
    """Return more than an output may have."""
    return "x" * 70_000


@job(takes_context=True)
def return_headers(context) -> dict:
    """Return what the enqueuing process has sent along."""
    return context.headers


@contextmanager
def noting(context):
    """Stand around each handler, and note it, if the test wants that."""
    append(os.environ["BACKWAVE_TEST_NOTES"], f"around {context.job_id} in {threading.current_thread().name}")
    yield


def note_signal(sender, signal, **given):
    """Note each signal, if the test wants that."""
    notes = os.environ.get("BACKWAVE_TEST_NOTES")
    if notes:
        result = given.get("task_result")
        word = result.status if result else given["name"].rpartition(".")[2]
        job_id = result.id if result else given["job_id"]
        append(notes, f"{_SIGNALS[id(signal)]} {job_id} {word} {sender.__name__}")


_SIGNALS = {}
for _name, _signal in (
    ("started", task_started),
    ("finished", task_finished),
    ("retrying", job_retrying),
    ("abandoned", job_abandoned),
    ("stale", job_stale),
):
    _SIGNALS[id(_signal)] = _name
    _signal.connect(note_signal)


@job
def fail(message: str) -> None:
    """Fail."""
    raise ValueError(message)


@job(takes_context=True)
def hold(context, folder: str) -> int:
    """Go on once the file `go` exists, whatever anybody says."""
    append(Path(folder) / "journal", f"started {context.attempt}")
    while not (Path(folder) / "go").exists():
        threading.Event().wait(0.01)
    context.tag("attempt", str(context.attempt))
    context.progress(1, 1)
    return context.attempt
