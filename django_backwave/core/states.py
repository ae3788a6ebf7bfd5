"""The states of a job, the outcomes of an attempt, and the one table of legal moves."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class JobState(IntEnum):
    """Where a job stands. The numbers are stored in rows: they never change."""

    WAITING = 0  # for other jobs to finish
    READY = 1  # to be claimed as soon as it is due
    RUNNING = 2  # claimed: a worker holds its lease
    SUCCEEDED = 3
    CANCELLED = 4
    DEAD_LETTERED = 5  # its failures are used up
    QUARANTINED = 6  # no worker could route it for longer than the grace

    @property
    def label(self) -> str:
        """The state in lower-case words, as logs and the admin show it."""
        return self.name.lower().replace("_", "-")

    @property
    def is_terminal(self) -> bool:
        """Whether only an operator's requeue can move the job again."""
        return self in TERMINAL


TERMINAL = frozenset({JobState.SUCCEEDED, JobState.CANCELLED, JobState.DEAD_LETTERED, JobState.QUARANTINED})

#: Not claimed by anybody, and to run.
PENDING = frozenset({JobState.WAITING, JobState.READY})
UNFINISHED = PENDING | {JobState.RUNNING}

#: Terminal states that a requeue may leave.
REQUEUEABLE = frozenset({JobState.DEAD_LETTERED, JobState.QUARANTINED, JobState.CANCELLED})

#: Every legal move. Claims, outcomes, sweeps and operator actions all stay inside this table.
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.WAITING: frozenset({JobState.READY, JobState.CANCELLED}),
    JobState.READY: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: frozenset({JobState.READY, *TERMINAL}),
    JobState.SUCCEEDED: frozenset(),
    JobState.CANCELLED: frozenset({JobState.READY}),
    JobState.DEAD_LETTERED: frozenset({JobState.READY}),
    JobState.QUARANTINED: frozenset({JobState.READY}),
}


class AttemptOutcome(StrEnum):
    """How an attempt ended, as its row in the history says."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"
    SNOOZED = "snoozed"
    TIMED_OUT = "timed_out"
    UNROUTABLE = "unroutable"
    ABANDONED = "abandoned"  # its lease lapsed; written by the sweep, never by the attempt


#: Outcomes that count against ``max_attempts`` (G6).
FAILURES = frozenset({AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.ABANDONED})
