"""What ``run_jobs`` returns of each attempt, and what it raises."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_backwave.core.outcome import Failed, TimedOut, Unroutable
from django_backwave.exceptions import GiveUp, Retry, Stopped

if TYPE_CHECKING:
    from django_backwave.core.outcome import Outcome
    from django_backwave.results import JobResult

#: Exceptions that are a handler's own affair, beside every Exception; others are for whoever runs the tests.
_OF_HANDLERS = (Exception, BaseExceptionGroup, CancelledError, GeneratorExit, Stopped, SystemExit)


class RunError(AssertionError):
    """Jobs could not be run to an end: they bring up each other for ever, or nothing can run one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt that ``run_jobs`` has made.

    ``result`` is the job as it stood afterwards. ``outcome`` is what the store has written of the attempt:
    "succeeded", "failed", "snoozed", "cancelled", "released", "timed_out" or "unroutable"; "stale" if the
    fence has refused it. ``attempt`` is its number, ``error`` what the handler raised.
    """

    result: JobResult
    outcome: str
    attempt: int
    error: BaseException | None = None

    @property
    def name(self) -> str:
        """The module path of the handler."""
        return self.result.task.module_path


def raise_if_meant_for_others(run: Run) -> None:
    """Raise KeyboardInterrupt, and what test frameworks end a test with: no handler's failure is meant."""
    if run.error is not None and not isinstance(run.error, _OF_HANDLERS):
        raise run.error


def raise_if_wrong(run: Run, reported: Outcome) -> None:
    """Raise what the handler raised, if it did not mean to; RunError if it could not run, or not in time."""
    who = f"{run.name} (job {run.result.id}, attempt {run.attempt})"
    match reported:
        case Unroutable(reason):
            raise RunError(
                f"No worker could run {who}: {reason}. Workers know what `jobs` and `tasks` of the installed "
                'apps define, and the modules in BACKWAVE["MODULES"].'
            )
        case TimedOut(info):
            raise RunError(f"{who} was timed out: {info.message}.") from run.error
        case Failed(info) if run.error is None:
            raise RunError(f"{who} failed: {info.class_path}: {info.message}")
    if run.error is not None and not isinstance(run.error, GiveUp | Retry):
        raise run.error
