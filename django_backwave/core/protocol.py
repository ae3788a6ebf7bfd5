"""What passes between the driver, the worker around it and the store: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Self
from uuid import UUID

from django_backwave.core.policy import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_backwave.core.outcome import Outcome


class AttemptKey(tuple[int, int]):
    """An attempt of a job: what the fence compares, together with the worker's name.

    It is kept as two numbers: a job on its way is looked up by it twenty times, and a UUID computes its hash
    anew each time.
    """

    __slots__ = ()

    def __new__(cls, job_id: UUID, attempt: int) -> Self:
        """Take both."""
        return tuple.__new__(cls, (job_id.int, attempt))

    def __getnewargs__(self) -> tuple[UUID, int]:
        """Be copied as it was made."""
        return self.job_id, self.attempt

    def __repr__(self) -> str:
        """Show the job's id as people know it."""
        return f"AttemptKey({self.job_id}, {self.attempt})"

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return UUID(int=self[0])

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return self[1]


class Claimed(NamedTuple):
    """A job as a claim hands it to a worker: its row, with the lease that begins now.

    ``lease_seconds`` is the job's own lease or None for the worker's; ``unroutable_for`` as in
    ``outcome.HasNumbers``; ``headers`` is JSON text; ``claimed_at`` is the database's time of the claim.
    ``logical_key``: the key of which this job is a ``generation``, if it has one.
    ``may_wait``: whether it may be claimed ahead of a free slot. A crash costs what was claimed a failure,
    begun or not: so a job may wait only before any failure, whatever the number of its attempt, if one is not
    its last, and if nothing says by when it must start.
    """

    job_id: UUID
    name: str
    queue: str
    priority: int
    payload: str
    attempt: int
    failures: int
    max_attempts: int
    backoff_base: float
    backoff_cap: float
    backoff_jitter: float
    lease_seconds: float | None
    timeout_seconds: float | None
    headers: str | None
    schema: str | None
    logical_key: str | None
    generation: int | None
    due_at: datetime
    enqueued_at: datetime
    claimed_at: datetime
    unroutable_for: float | None
    may_wait: bool = True

    @property
    def key(self) -> AttemptKey:
        """The attempt that this claim began."""
        return AttemptKey(self.job_id, self.attempt)

    @property
    def backoff(self) -> Backoff:
        """The job's backoff."""
        return Backoff.of_row(self.backoff_base, self.backoff_cap, self.backoff_jitter)


class Report(NamedTuple):
    """The outcome of one attempt, on its way to the store.

    ``jitter``: a random number in [0, 1) for the next delay. ``started_after``: seconds from the
    claim to the handler's start on the worker's monotonic clock, None if it never started.
    ``sent_before``: an earlier write of this report ended without an answer, so it may have been
    applied. ``settled``: the store has it already, written in the handler's own transaction.
    ``tags``: pairs of key and value to write with it. ``progress``: JSON text that no heartbeat has written.
    ``took``: seconds for which the attempt held its slot, None if it had none or nobody has measured it.
    """

    job: Claimed
    outcome: Outcome
    jitter: float
    started_after: float | None
    sent_before: bool = False
    settled: bool = False
    tags: tuple[tuple[str, str], ...] = ()
    progress: str | None = None
    took: float | None = None


class Verdict(Enum):
    """What the fence said to a report."""

    APPLIED = "applied"
    CANCELLED = "cancelled"  # applied, as CANCELLED: somebody had requested that
    LANDED = "landed"  # a commit in doubt: the success had been recorded by it
    STALE = "stale"  # refused for ever: nothing was written anywhere
    LOCKED = "locked"  # somebody else holds the row's lock; the lease is live: try again


class Renewal(Enum):
    """What a heartbeat learnt of one lease."""

    RENEWED = "renewed"
    CANCEL_REQUESTED = "cancel requested"  # renewed, and the handler shall stop
    LOST = "lost"
    UNKNOWN = "unknown"  # the row was locked by somebody else: ask again


class StopReason(Enum):
    """Why a running handler is told to stop."""

    CANCEL = "cancel requested"
    LEASE_LOST = "lease lost"
    TIMEOUT = "time-out"
    SHUTDOWN = "worker is shutting down"


class CancelResult(Enum):
    """What a cancel did to a job."""

    CANCELLED = "cancelled"  # it had not been claimed: it never runs
    ASKED_TO_STOP = "asked to stop"  # it runs; its handler learns of it at the next heartbeat
    ALREADY_FINISHED = "already finished"  # nothing was changed


class RequeueResult(Enum):
    """What a requeue did to a job."""

    REQUEUED = "requeued"
    NOT_REQUEUEABLE = "not requeueable"  # it is not finished, or it succeeded: nothing was changed
    KEY_BUSY = "key busy"  # another generation of its key is unfinished: nothing was changed


class RunAgainResult(Enum):
    """What "run again" did for a job."""

    ENQUEUED = "enqueued"  # the same work is the next generation of its key, due now
    NO_KEY = "no key"  # it has no key, and so there are no generations: nothing was changed
    KEY_BUSY = "key busy"  # a generation of its key is unfinished: nothing was changed
    KEY_TAKEN = "key taken"  # its key belongs to jobs of another name by now: nothing was changed


class RunAgain(NamedTuple):
    """What "run again" did for a job, with the generation that has come of it, or that is in the way."""

    result: RunAgainResult
    job_id: UUID | None = None
    generation: int | None = None


class RescheduleResult(Enum):
    """What a reschedule, or "run now", did to a job."""

    RESCHEDULED = "rescheduled"
    RUNNING = "running"  # it had been claimed: nothing was changed
    ALREADY_FINISHED = "already finished"  # nothing was changed


class ChangeResult(Enum):
    """What a change of priority or queue did to a job."""

    CHANGED = "changed"
    RUNNING = "running"  # it had been claimed: nothing was changed
    ALREADY_FINISHED = "already finished"  # nothing was changed
    KEYED = "keyed"  # it has a key, which names work of its queue: its queue stays, and nothing was changed


class PauseResult(Enum):
    """What a pause did to a queue or a job name."""

    PAUSED = "paused"
    ALREADY_PAUSED = "already paused"  # nothing was changed


class ResumeResult(Enum):
    """What a resume did to a queue or a job name."""

    RESUMED = "resumed"
    NOT_PAUSED = "not paused"  # nothing was changed


class Place(NamedTuple):
    """A place in the order in which the jobs of one queue and priority are claimed."""

    priority: int
    due_at: datetime
    job_id: UUID


# Events: what happened. Each carries ``now``, a monotonic time in seconds.


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now: float


@dataclass(frozen=True, slots=True)
class Scanned:
    """The queues with ready jobs, each with the seconds until its earliest is due (0: due now)."""

    now: float
    due: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClaimAnswered:
    """A claim returned. ``sent_at``: the instant before it was sent, from which its leases count.

    ``past``: the places, one a priority at most, up to which there was nothing but paused names.
    ``late``: so many more rows were taken, but as CANCELLED: their time to start was over. ``passed``: so
    many more were due, and left alone since they may not wait for a slot.
    """

    now: float
    command: Claim
    jobs: Sequence[Claimed]
    sent_at: float
    past: tuple[Place, ...] = ()
    late: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Began:
    """A handler that has a time-out has begun; it may run for so many seconds from now."""

    now: float
    key: AttemptKey
    timeout: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Handlers have ended: their code no longer runs, and these are their reports."""

    now: float
    reports: Sequence[Report]


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The answer to Withdraw: the reports of those attempts that had not started, and now never will."""

    now: float
    reports: Sequence[Report]


@dataclass(frozen=True, slots=True)
class Completed:
    """A handler's atomic block has recorded its success; the handler's code still runs."""

    now: float
    key: AttemptKey


@dataclass(frozen=True, slots=True)
class Settled:
    """The store answered a settle, one verdict for each report."""

    now: float
    verdicts: Mapping[AttemptKey, Verdict]


@dataclass(frozen=True, slots=True)
class Renewed:
    """A heartbeat returned. ``sent_at``: the instant before it was sent."""

    now: float
    renewals: Mapping[AttemptKey, Renewal]
    sent_at: float


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep, a prune or a release of unknown rows is done; ``more``: its bound was reached."""

    now: float
    command: Sweep | Prune | ReleaseUnknown
    more: bool


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The database did not carry out a command, or its answer was lost."""

    now: float
    command: Command


@dataclass(frozen=True, slots=True)
class Woken:
    """A hint that a queue has something due (None: some queue). It only saves time."""

    now: float
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """A heartbeat read what operators have paused: all of it, queues and job names."""

    now: float
    queues: frozenset[str]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The worker shall stop: claim nothing more, wait, hand back.

    ``patient``: wait for however long what it holds may take, as at ``max_jobs``.
    """

    now: float
    patient: bool = False


Event = (
    Tick
    | Scanned
    | ClaimAnswered
    | Began
    | Finished
    | Withdrawn
    | Completed
    | Settled
    | Renewed
    | Swept
    | CommandFailed
    | Woken
    | Paused
    | StopRequested
)


# Commands: what to do. Those for the database are answered by exactly one event each.


@dataclass(frozen=True, slots=True)
class Scan:
    """Ask which of these queues (None: all) have ready jobs, and when they are due."""

    queues: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim up to ``limit`` due jobs of a queue, up to ``slots`` of those that may not wait for a slot.

    ``also``: further queues, from which to take in turn what the first one does not have.
    None of the names ``without``, if there are any; then the claim looks at a bounded number of jobs beyond
    the places ``past``. Otherwise these are a hint that before them nothing is left.
    """

    queue: str
    limit: int
    slots: int
    without: tuple[str, ...] = ()
    past: tuple[Place, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settle:
    """Write these reports in one transaction."""

    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Dispose of lapsed leases, whoever held them."""


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete a slice of jobs that ended long ago."""


@dataclass(frozen=True, slots=True)
class ReleaseUnknown:
    """Hand back every job held under this worker's name but for the ones it knows."""

    known: frozenset[AttemptKey]


class Start(NamedTuple):
    """Run a job's handler. ``lease_ends`` and ``claimed_at`` are on the worker's monotonic clock."""

    job: Claimed
    lease_ends: float
    claimed_at: float


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back those of these attempts whose handlers have not started; Withdrawn is the answer."""

    keys: frozenset[AttemptKey]


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell a running handler why it should stop."""

    key: AttemptKey
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Extend:
    """Tell a running handler that its lease now ends later."""

    key: AttemptKey
    lease_ends: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """Take note that this report was made for a handler that did not stop at its time-out.

    Its code still runs and keeps its slot; whatever it reports itself will be dropped.
    """

    report: Report


@dataclass(frozen=True, slots=True)
class Stuck:
    """Take note that the worker ends, and has failed: too many of its slots are overdue."""

    overdue: int


@dataclass(frozen=True, slots=True)
class Exit:
    """Everything is written that will be: end. ``stuck``: attempts whose code still runs."""

    stuck: tuple[Claimed, ...]


StoreCommand = Scan | Claim | Settle | Sweep | Prune | ReleaseUnknown
Command = StoreCommand | Start | Withdraw | Tell | Extend | Overdue | Stuck | Exit
