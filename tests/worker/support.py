"""Jobs for real workers: enqueued as committed rows, released by files, and looked at from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from django_backwave.store.enqueue import insert_many
from tests import processes
from tests.factories import new_job, ready
from tests.processes import Process, journal, wait_until

SETTINGS = "tests.worker.settings"
HANDLERS = "tests.worker.handlers"


def worker(*arguments: str, **environment: str) -> AbstractContextManager[Process]:
    """Run a worker with the handlers of `tests/worker/handlers.py`."""
    return processes.worker(*arguments, DJANGO_SETTINGS_MODULE=SETTINGS, **environment)


def run_worker(*arguments: str, deadline: float = processes.LIFE, **environment: str) -> Process:
    """Run such a worker to its end, which `--drain` or `--max-jobs` should bring."""
    environment = {"DJANGO_SETTINGS_MODULE": SETTINGS, **environment}
    return processes.run_command("backwave_worker", *arguments, deadline=deadline, **environment)


def enqueue(handler: str, *args: Any, due_in: float | None = None, **options: Any) -> Job:
    """Enqueue a job by its stored name: this process has none of the handlers."""
    if due_in is not None:
        options["run_after"] = datetime.now(UTC) + timedelta(seconds=due_in)
    return ready(now=None, name=f"{HANDLERS}.{handler}", payload=_payload(args), **options)


def enqueue_many(handler: str, calls: Sequence[Sequence[Any]], using: str = "default") -> list[UUID]:
    """Enqueue many jobs in one transaction, and return their ids."""
    jobs = [new_job(name=f"{HANDLERS}.{handler}", payload=_payload(args)) for args in calls]
    insert_many(jobs, using=using)
    return [job.id for job in jobs]


def _payload(args: Sequence[Any]) -> str:
    plain = [str(value) if isinstance(value, Path) else value for value in args]
    return json.dumps({"args": plain, "kwargs": {}})


class Held:
    """A job that waits for its file `go`, in a folder of its own."""

    def __init__(self, folder: Path, handler: str = "hold", **options: Any) -> None:
        folder.mkdir()
        self.folder = folder
        self.job = enqueue(handler, folder, **options)

    def wait_for(self, line: str) -> None:
        """Wait until the handler has written a line to its journal; its process may have to start yet."""
        wait_until(
            lambda: line in self.journal, deadline=processes.LIFE, what=lambda: f"{line!r} in {self.journal}"
        )

    def go(self) -> None:
        """Let the handler go on."""
        (self.folder / "go").touch()

    @property
    def journal(self) -> list[str]:
        """What the handler has written so far."""
        return journal(self.folder / "journal")


def started(folder: Path, handler: str = "hold", **options: Any) -> Held:
    """Return a held job whose handler runs, in the worker that runs already."""
    held = Held(folder, handler, **options)
    held.wait_for("started 1")
    return held


def read(job: Job) -> Job:
    """Return a job's row as it is now."""
    return Job.objects.using(job._state.db).get(pk=job.pk)


def wait_for_state(job: Job, state: JobState) -> Job:
    """Wait until a job is in a state, and return its row."""
    wait_until(
        lambda: read(job).job_state is state,
        what=lambda: f"{state.label}, but it is {read(job).job_state.label}: {read(job).cause}",
    )
    return read(job)


def outcomes(job: Job) -> list[tuple[int, str]]:
    """Return number and outcome of each attempt in a job's history."""
    attempts = Attempt.objects.using(job._state.db).filter(job_id=job.pk).order_by("number")
    return [(attempt.number, attempt.outcome) for attempt in attempts]


def wait_for_lapse(job: Job) -> None:
    """Wait until a job's lease is over, or swept."""
    wait_until(lambda: (end := read(job).lease_expires_at) is None or end <= datetime.now(UTC))


def wait_for_renewal(job: Job) -> None:
    """Wait until a job's lease has just been extended."""
    before = read(job).lease_expires_at
    wait_until(lambda: read(job).lease_expires_at != before)
