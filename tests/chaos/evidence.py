"""What a run left behind: the clients' journals, the handlers' journal, and the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import UUID

from tests.chaos import journals


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """A job as a client's journal has it."""

    id: UUID
    kind: str
    expires: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A client's transaction; the outcome is "committed", "rolled back" or "unknown"."""

    client: str
    number: int
    outcome: str
    jobs: tuple[Enqueued, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The beginning of a handler, by the machine's clock."""

    job: UUID
    attempt: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """What is compared of a job's row; the state by its label."""

    id: UUID
    kind: str
    state: str
    attempt: int
    failures: int
    max_attempts: int
    cause: str = ""
    worker: str = ""
    leased: bool = False
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """What is compared of an attempt's row."""

    job: UUID
    number: int
    worker: str
    outcome: str
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What an operator did to a job, and what came of it."""

    job: UUID
    verb: str
    result: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that the checker compares.

    ``ends``: what each worker did at the last stop, in words if that was not an end with 0. ``peaks``: the
    most megabytes that each process of a worker has used.
    """

    transactions: list[Transaction] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    jobs: list[JobRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    actions: list[ActionRow] = field(default_factory=list)
    ledger: list[tuple[UUID, int]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    peaks: dict[int, float] = field(default_factory=dict)


def collect(folder: Path) -> Evidence:
    """Read the journals in a folder, and the tables; `ends` and `peaks` are for others to fill in."""
    return Evidence(
        transactions=[each for path in sorted(folder.glob("client-*.jsonl")) for each in transactions(path)],
        effects=effects(folder / journals.EFFECTS),
        jobs=_jobs(),
        attempts=_attempts(),
        actions=_actions(),
        ledger=_ledger(),
    )


def transactions(path: Path) -> list[Transaction]:
    """Return what a client's journal tells of its transactions.

    Those without an outcome are of a client that was killed: COMMIT may or may not have been sent, unless it
    meant to roll back.
    """
    begun: dict[int, Transaction] = {}
    for entry in journals.read(path):
        if "begin" in entry:
            jobs = [Enqueued(id=UUID(job.pop("id")), **job) for job in entry["jobs"]]
            begun[entry["begin"]] = Transaction(
                client=path.stem,
                number=entry["begin"],
                outcome="unknown" if entry["commit"] else "rolled back",
                jobs=tuple(jobs),
            )
        elif entry["end"] in begun:
            before = begun[entry["end"]]
            begun[entry["end"]] = Transaction(
                client=before.client, number=before.number, outcome=entry["outcome"], jobs=before.jobs
            )
    return list(begun.values())


def effects(path: Path) -> list[Effect]:
    """Return what the handlers' journal tells."""
    return [
        Effect(job=UUID(entry["job"]), attempt=entry["attempt"], pid=entry["pid"], at=entry["at"])
        for entry in journals.read(path)
    ]


def by_job[T: (Effect, AttemptRow, ActionRow)](rows: Iterable[T]) -> dict[UUID, list[T]]:
    """Return rows by their job."""
    found: defaultdict[UUID, list[T]] = defaultdict(list)
    for row in rows:
        found[row.job].append(row)
    return found


def _jobs() -> list[JobRow]:
    from django_backwave.models import Job

    return [
        JobRow(
            id=job.pk,
            kind=job.name,
            state=job.job_state.label,
            attempt=job.attempt,
            failures=job.failures,
            max_attempts=job.max_attempts,
            cause=job.cause,
            worker=job.worker,
            leased=job.lease_expires_at is not None,
            cancel_requested=job.cancel_requested_at is not None,
        )
        for job in Job.objects.defer("payload", "output").iterator()
    ]


def _attempts() -> list[AttemptRow]:
    from django_backwave.models import Attempt

    columns = ("job_id", "number", "worker", "outcome", "started_at")
    rows = Attempt.objects.values_list(*columns).iterator()
    return [
        AttemptRow(job=job, number=number, worker=worker, outcome=outcome, started_at=started_at)
        for job, number, worker, outcome, started_at in rows
    ]


def _actions() -> list[ActionRow]:
    from django_backwave.models import Action

    rows = Action.objects.order_by("at", "pk").values_list("job_id", "verb", "result", "at")
    return [ActionRow(job=job, verb=verb, result=result, at=at) for job, verb, result, at in rows]


def _ledger() -> list[tuple[UUID, int]]:
    from tests.chaos.models import Line

    return list(Line.objects.values_list("job_id", "attempt"))
