"""Ways to break the system on purpose, one for each oracle: what watches must be seen to bite.

Each is a context in which something is wrong, and the database where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

from django.db.models import Q, QuerySet

from django_backwave.core import driver, outcome
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job, Lease
from django_backwave.models.lease import LeaseQuerySet
from django_backwave.store import (
    atomic,
    claim,
    enqueue,
    entries,
    expire,
    fence,
    heartbeat,
    operate,
    postgres,
    retention,
    settle,
)

type Broken = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Sabotage:
    """What is broken; ``oracles``: those that may notice it first."""

    name: str
    oracles: tuple[str, ...]
    broken: Broken
    databases: tuple[str, ...] = ("sqlite", "postgres")
    first: int = 0  # the seed to begin with, to save time: the first that noticed it when it was written


def _replaced(target: Any, name: str, new: Any) -> Broken:
    return lambda: mock.patch.object(target, name, new)


@contextmanager
def _guard_without(*conditions: str) -> Iterator[None]:
    """Break the guard of PostgreSQL's own statements."""
    caches, guard = (postgres._settle_sql, heartbeat._renew_sql), fence.GUARD
    for condition in conditions:
        assert condition in guard
        guard = guard.replace(condition, "")
    with mock.patch.object(fence, "GUARD", guard):
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


@contextmanager
def _settle_after_the_end() -> Iterator[None]:
    """Let PostgreSQL's settle write for leases that are over, and nothing else."""
    guard = fence.GUARD.replace("AND j.lease_expires_at > {instant}", "")
    postgres._settle_sql.cache_clear()
    with mock.patch.object(postgres, "fence", SimpleNamespace(GUARD=guard)):
        yield
    postgres._settle_sql.cache_clear()


def _updates(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Broken:
    """Let every UPDATE of jobs through the ORM write something else."""
    real = QuerySet.update

    def update(self: QuerySet[Any], **values: Any) -> int:
        return real(self, **(change(values) if issubclass(self.model, Job) else values))

    return _replaced(QuerySet, "update", update)


def _without(*names: str, when: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(values: dict[str, Any]) -> dict[str, Any]:
        if when not in values:
            return values
        return {name: value for name, value in values.items() if name not in names}

    return change


def _held_by_anybody(job_ids: Any, attempt: int, worker: str, *, using: str, now: Any = None) -> Any:
    return Lease.objects.using(using).of(job_ids)


def _decides_free_of_charge(what: Any, numbers: Any, **given: Any) -> Any:
    return outcome.decide(what, numbers, **given)._replace(failures=numbers.failures)


def _forgets(real: Any) -> Any:
    """An enqueue that says it has inserted."""

    def insert(job: Any, **given: Any) -> Any:
        return None if job.id.int % 3 == 0 else real(job, **given)

    return insert


def _notes_what_is_stale(real: Any) -> Any:
    """Write the history of reports that the fence has refused."""

    def unmatched(entries: Any, *, worker: str, using: str, now: Any) -> Any:
        verdicts = real(entries, worker=worker, using=using, now=now)
        rows = [
            Attempt(job_id=key.job_id, number=key.attempt, worker=worker, outcome="failed",
                    finished_at="2026-03-01T12:00:00Z")
            for key, verdict in verdicts.items() if verdict is Verdict.STALE
        ]  # fmt: skip
        Attempt.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        return verdicts

    return unmatched


def _completes_anyway(real: Any) -> Any:
    def complete(*given: Any, **named: Any) -> bool:
        real(*given, **named)
        return True

    return complete


def _rewrites(real: Any) -> Any:
    """A sweep that tidies up the history."""

    def expired(**given: Any) -> Any:
        found = real(**given)
        for each in found:
            past = Attempt.objects.using(given["using"]).filter(job_id=each.key.job_id)
            past.update(message="swept")
        return found

    return expired


def _prunes_everything(_done: Any, _dead: Any, at: Any) -> Any:
    yield Q(state__gt=-1)


@contextmanager
def _commits_anyway() -> Iterator[None]:
    with (
        mock.patch.object(atomic, "_complete", _completes_anyway(atomic._complete)),
        mock.patch.object(atomic, "_may_begin", return_value=True),
    ):
        yield


@contextmanager
def _failures_are_free() -> Iterator[None]:
    with (
        mock.patch.object(entries, "decide", _decides_free_of_charge),
        mock.patch.object(expire, "decide", _decides_free_of_charge),
    ):
        yield


@contextmanager
def _nobody_sweeps() -> Iterator[None]:
    with (
        mock.patch.object(expire, "expire", return_value=[]),
        mock.patch.object(expire, "expire_dead", return_value=[]),
    ):
        yield


def _forgets_cancels(real: Any) -> Any:
    def decide(lease: Any, what: Any, **given: Any) -> Any:
        lease.cancelled = False
        return real(lease, what, **given)

    return decide


def _hears_nothing(self: Any, event: Any) -> list[Any]:
    self._pauses.known = True
    return []


def _raises(*_: Any, **__: Any) -> Any:
    raise ValueError("no such thing")


def _says_applied(unmatched: Any, **_: Any) -> Any:
    return {entry.key: Verdict.APPLIED for entry in unmatched}


SABOTAGES = [
    Sabotage(
        "the sweep takes leases that are live",
        ("one-live-lease",),
        _replaced(LeaseQuerySet, "expired", lambda self, _now: self.all()),
    ),
    Sabotage(
        "the guard does not ask whether the lease is live",
        ("one-live-lease", "provenance"),
        lambda: _guard_without("AND j.lease_expires_at > {instant}"),
        ("postgres",),
        first=7,
    ),
    Sabotage(
        "the guard asks neither for the worker nor for the attempt",
        ("one-live-lease", "provenance", "stale", "verdict"),
        lambda: _guard_without("AND j.worker = %(worker)s", "AND j.attempt = v.attempt"),
        ("postgres",),
        first=8,
    ),
    Sabotage(
        "settle does without the fence",
        ("provenance",),
        _replaced(settle, "fence", SimpleNamespace(held=_held_by_anybody, still_held=fence.still_held)),
        ("sqlite",),
        first=13,
    ),
    Sabotage(
        "settle does not ask whether the lease is live",
        ("provenance",),
        _settle_after_the_end,
        ("postgres",),
        first=13,
    ),
    Sabotage(
        "the fence does not ask whether the lease is live",
        ("one-live-lease", "provenance"),
        _replaced(LeaseQuerySet, "live", lambda self, _now: self.all()),
        ("sqlite",),
        first=5,
    ),
    Sabotage(
        "a stale report leaves a trace",
        ("stale",),
        _replaced(settle, "_unmatched", _notes_what_is_stale(settle._unmatched)),
        first=13,
    ),
    Sabotage(
        "every report is said to be applied", ("verdict",), _replaced(settle, "_unmatched", _says_applied)
    ),
    Sabotage(
        "a claim does not count", ("attempts",), _updates(_without("attempt", when="attempt")), ("sqlite",)
    ),
    Sabotage(
        "a requeue begins to count anew",
        ("attempts",),
        _updates(lambda values: {**values, "attempt": 0} if "expires_at" in values else values),
        first=4,
    ),
    Sabotage(
        "a success can be sent back",
        ("legal-moves",),
        _replaced(operate, "_REQUEUEABLE", (*operate._REQUEUEABLE, JobState.SUCCEEDED.value)),
    ),
    Sabotage(
        "a cancel changes what has ended",
        ("terminal",),
        _replaced(operate, "UNFINISHED", frozenset(JobState)),
        first=16,
    ),
    Sabotage("failures are free", ("failures",), _failures_are_free),
    Sabotage(
        "the sweep forgets that a cancel was requested",
        ("cancel",),
        _replaced(expire, "_decide", _forgets_cancels(expire._decide)),
        first=7,
    ),
    Sabotage(
        "an atomic job commits in spite of the fence",
        ("ledger",),
        _commits_anyway,
        first=14,
    ),
    Sabotage("the pruning takes everything", ("lost",), _replaced(retention, "_old", _prunes_everything)),
    Sabotage(
        "an enqueue is forgotten", ("lost",), _replaced(enqueue, "insert_one", _forgets(enqueue.insert_one))
    ),
    Sabotage(
        "the sweep tidies up the history",
        ("one-outcome",),
        _replaced(expire, "expire", _rewrites(expire.expire)),
    ),
    Sabotage("nobody sweeps", ("liveness",), _nobody_sweeps),
    Sabotage(
        "a worker believes in longer leases",
        ("belief",),
        _replaced(driver.Driver, "_lease", lambda *_: 100.0),
        first=70,
    ),
    Sabotage("a worker hears of no pause", ("pause",), _replaced(driver.Driver, "_paused", _hears_nothing)),
    Sabotage("a worker never ends", ("exit",), _replaced(driver.Driver, "_over", lambda *_, **__: False)),
    Sabotage("a worker never rests", ("runaway",), _replaced(driver.Driver, "wake_at", lambda _, now: now)),
    Sabotage("a scan fails", ("error",), _replaced(claim, "scan", _raises)),
]
