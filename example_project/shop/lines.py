"""How an order and its jobs read on the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django_backwave import JobState
from django_backwave.models import Job
from shop.models import Order

TONES = {
    JobState.SUCCEEDED: "good",
    JobState.RUNNING: "busy",
    JobState.DEAD_LETTERED: "bad",
    JobState.QUARANTINED: "bad",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job in one line. ``job`` is None if it was pruned."""

    id: UUID
    job: Job | None = None
    now: datetime

    @classmethod
    def of(cls, job: UUID | None, jobs: Mapping[Any, Job], now: datetime) -> JobLine | None:
        return None if job is None else cls(id=job, job=jobs.get(job), now=now)

    @property
    def state(self) -> str:
        return self.job.get_state_display() if self.job else "pruned"  # type: ignore[no-any-return]

    @property
    def tone(self) -> str:
        """A class of the style sheet; the state's word says the same without any colour."""
        return TONES.get(self.job.job_state, "calm") if self.job else "calm"

    @property
    def unfinished(self) -> bool:
        return self.job is not None and not self.job.job_state.is_terminal

    @property
    def stopping(self) -> bool:
        """Whether it runs and was asked to stop: its handler learns of it at the next heartbeat."""
        return self.unfinished and self.job is not None and self.job.cancel_requested_at is not None

    @property
    def facts(self) -> list[str]:
        """Say how it came to where it stands."""
        if self.job is None:
            return ["finished long ago"]
        facts = [f"attempt {self.job.attempt}"] if self.job.attempt else []
        if self.job.failures:
            facts.append(f"{self.job.failures} of {self.job.max_attempts} failures")
        return [*facts, *self._time(self.job)]

    def _time(self, job: Job) -> list[str]:
        if job.job_state is JobState.READY:
            wait = (job.due_at - self.now).total_seconds()
            return [f"due in {_duration(wait)}" if wait > 0 else "waits for a worker"]
        if job.started_at is None:
            return ["never started"] if job.job_state.is_terminal else ["starting"]
        ran = ((job.finished_at or self.now) - job.started_at).total_seconds()
        return [f"took {_duration(ran)}" if job.finished_at else f"for {_duration(ran)}"]

    @property
    def output(self) -> str:
        """What the handler returned, as JSON."""
        if self.job is None or self.job.job_state is not JobState.SUCCEEDED:
            return ""
        return json.dumps(self.job.output, ensure_ascii=False)

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the running handler last said of itself."""
        running = self.job is not None and self.job.job_state is JobState.RUNNING
        return self.job.progress if self.job and running else None

    @property
    def cause(self) -> str:
        return self.job.cause if self.job else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCard:
    """An order and its jobs."""

    order: Order
    receipt: JobLine | None
    parcel: JobLine | None

    @property
    def lines(self) -> list[JobLine]:
        return [line for line in (self.receipt, self.parcel) if line]

    @property
    def unfinished(self) -> bool:
        return any(line.unfinished for line in self.lines)

    @property
    def can_be_packed(self) -> bool:
        return self.parcel is None or not self.parcel.unfinished


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 1:
        return "under 1 s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
