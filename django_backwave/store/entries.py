"""What a settle writes: a report, and what was decided about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django_backwave.core.outcome import Decision, decide
from django_backwave.store import clock

if TYPE_CHECKING:
    from datetime import datetime

    from django_backwave.core.protocol import AttemptKey, Report


class Entry(NamedTuple):
    """An attempt that is settled: its report, and what to write for it as long as no cancel was requested.

    ``silent``: without a row in the history, and without tags and progress.
    """

    key: AttemptKey
    report: Report
    decision: Decision
    silent: bool = False

    @property
    def started_at(self) -> datetime | None:
        """When the handler started, by the database's clock."""
        after = self.report.started_after
        return None if after is None else clock.after(self.report.job.claimed_at, after)

    @property
    def recorded(self) -> bool:
        """Whether the attempt gets a row in the history."""
        return not self.silent and (self.decision.recorded or self.report.started_after is not None)

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        """The tags to write with it."""
        return () if self.silent else self.report.tags

    @property
    def progress(self) -> str | None:
        """The progress to write with it, as JSON text."""
        return None if self.silent else self.report.progress


def entry_of(report: Report, *, unroutable_grace: float) -> Entry:
    """Decide what to write for a report."""
    job = report.job
    decision = decide(report.outcome, job, jitter=report.jitter, unroutable_grace=unroutable_grace)
    return Entry(job.key, report, decision)
