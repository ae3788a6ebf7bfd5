"""A driver on a bench: events go in by hand, on a clock that stands still unless it is moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django_backwave.core.driver import Driver, Options
from django_backwave.core.outcome import Outcome, Succeeded
from django_backwave.core.protocol import (
    Claim,
    ClaimAnswered,
    Claimed,
    Command,
    CommandFailed,
    Event,
    Finished,
    Paused,
    Place,
    Prune,
    ReleaseUnknown,
    Renewal,
    Renewed,
    Report,
    Scan,
    Scanned,
    Settle,
    Settled,
    Start,
    StopRequested,
    StoreCommand,
    Sweep,
    Swept,
    Tick,
    Verdict,
    Woken,
)

EPOCH = datetime(2026, 3, 1, tzinfo=UTC)
START = 1000.0  # of the monotonic clock, whose zero means nothing

STORE_COMMANDS = (Scan, Claim, Settle, Sweep, Prune, ReleaseUnknown)


def claimed(number: int = 1, **changes: Any) -> Claimed:
    """Return the job with this number as a claim hands it out."""
    values: dict[str, Any] = {
        "job_id": UUID(int=number),
        "name": "shop.send_receipt",
        "queue": "mail",
        "priority": 0,
        "payload": '{"args":[],"kwargs":{}}',
        "attempt": 1,
        "failures": 0,
        "max_attempts": 10,
        "backoff_base": 2.0,
        "backoff_cap": 300.0,
        "backoff_jitter": 0.2,
        "lease_seconds": None,
        "timeout_seconds": None,
        "headers": None,
        "schema": None,
        "logical_key": None,
        "generation": None,
        "due_at": EPOCH,
        "enqueued_at": EPOCH,
        "claimed_at": EPOCH,
        "unroutable_for": None,
    }
    return Claimed(**values | changes)


def report(job: Claimed, outcome: Outcome | None = None) -> Report:
    """Return the report of a handler that started at once."""
    return Report(job=job, outcome=outcome or Succeeded("null"), jitter=0.5, started_after=0.0)


class Bench:
    """One driver, the time, and the store's commands that wait for an answer, oldest first.

    Each method gives the driver one event and returns its commands.
    """

    def __init__(self, *, random: float = 0.5, **options: Any) -> None:
        self.options = Options(**options)
        self.now = START
        self.open: list[StoreCommand] = []
        self._numbers = 0
        self.driver = Driver(self.options, now=START, random=lambda: random)
        self.paused()

    def feed(self, event: Event) -> list[Command]:
        """Give the driver any event."""
        commands = self.driver.step(event)
        self.open += [command for command in commands if isinstance(command, STORE_COMMANDS)]
        return commands

    def tick(self, seconds: float = 0.0) -> list[Command]:
        """Let time pass in one step."""
        self.now += seconds
        return self.feed(Tick(self.now))

    def scanned(self, **due: float) -> list[Command]:
        """Answer the scan under way: queues, and seconds until they are due."""
        self._close(Scan)
        return self.feed(Scanned(self.now, due))

    def claimed(self, jobs: int | Sequence[Claimed], past: Sequence[Place] = ()) -> list[Command]:
        """Answer the claim under way with so many new jobs, or with these."""
        if isinstance(jobs, int):
            jobs = self.new_jobs(jobs)
        command = self._close(Claim)
        return self.feed(ClaimAnswered(self.now, command, jobs, self.now, past=tuple(past)))

    def finished(self, *jobs: Claimed, outcome: Outcome | None = None) -> list[Command]:
        """Let the handlers of some jobs end."""
        return self.feed(Finished(self.now, [report(job, outcome) for job in jobs]))

    def settled(self, **verdicts: Verdict) -> list[Command]:
        """Answer the settle under way: applied, but for `job_3=Verdict.LOCKED` and the like."""
        command = self._close(Settle)
        answers = {
            each.job.key: verdicts.get(f"job_{each.job.job_id.int}", Verdict.APPLIED)
            for each in command.reports
        }
        return self.feed(Settled(self.now, answers))

    def swept(self, kind: type, *, more: bool = False) -> list[Command]:
        """Answer a sweep, a prune or a release of unknown rows."""
        return self.feed(Swept(self.now, self._close(kind), more))

    def failed(self, kind: type) -> list[Command]:
        """Let the command of this kind that is under way fail."""
        return self.feed(CommandFailed(self.now, self._close(kind)))

    def renewed(self, renewals: Mapping[Claimed, Renewal], *, took: float = 0.0) -> list[Command]:
        """Let a heartbeat come back, sent so many seconds ago."""
        answers = {job.key: renewal for job, renewal in renewals.items()}
        return self.feed(Renewed(self.now, answers, self.now - took))

    def woken(self, queue: str | None = None) -> list[Command]:
        """Let somebody say that a queue has something due."""
        return self.feed(Woken(self.now, queue))

    def paused(self, *queues: str, names: Collection[str] = ()) -> list[Command]:
        """Let a heartbeat read that these queues and job names, and no others, are paused."""
        return self.feed(Paused(self.now, frozenset(queues), frozenset(names)))

    def stop(self) -> list[Command]:
        """Ask the driver to stop."""
        return self.feed(StopRequested(self.now))

    def new_jobs(self, count: int) -> list[Claimed]:
        """Return jobs that were never seen before, numbered from 1."""
        first = self._numbers + 1
        self._numbers += count
        return [claimed(number) for number in range(first, first + count)]

    def running(self, count: int = 1, **changes: Any) -> list[Claimed]:
        """Scan, claim and start so many jobs, and answer the sweep that a worker begins with."""
        if self.kinds() >= {Sweep}:
            self.swept(Sweep)
        if Scan not in self.kinds():
            self.tick(max(0.0, self.driver.wake_at(self.now) - self.now))
        self.scanned(mail=0)
        jobs = [job._replace(**changes) for job in self.new_jobs(count)]
        commands = self.claimed(jobs)
        assert [command.job for command in commands if isinstance(command, Start)] == jobs
        return jobs

    def until(self, kind: type | tuple[type, ...], *, within: float) -> Any:
        """Let time pass as the worker does, from one wake-up to the next, until such a command."""
        end = self.now + within
        rounds = 0
        while (wake := max(self.now, self.driver.wake_at(self.now))) <= end:
            self.now = wake
            rounds += 1
            assert rounds < 1000, "the driver asks for ticks that change nothing"
            for command in self.tick():
                if isinstance(command, kind):
                    return command
        raise AssertionError(f"no {kind} within {within} seconds")

    def kinds(self) -> set[type]:
        """Return the kinds of the store's commands that are under way."""
        return {type(command) for command in self.open}

    def _close(self, kind: type) -> Any:
        command = next(command for command in self.open if isinstance(command, kind))
        self.open.remove(command)
        return command


def only(commands: Sequence[Command], kind: type) -> Any:
    """Return the one command of a kind among some."""
    [command] = of_kind(commands, kind)
    return command


def of_kind(commands: Sequence[Command], kind: type) -> list[Any]:
    """Return the commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]
