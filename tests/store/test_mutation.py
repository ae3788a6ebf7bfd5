"""The fence is complete: without any one of its four conditions these very checks fail (G4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from django_backwave.core.protocol import Claimed, Renewal, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Job, Lease
from django_backwave.models.lease import LeaseManager, LeaseQuerySet
from django_backwave.store import fence, heartbeat, postgres, settle
from django_backwave.store.release import release_unknown
from tests.factories import (
    LEASE,
    NOW,
    STRANGER,
    WORKER,
    claimed,
    contents,
    lapsed,
    report,
    send,
)

pytestmark = pytest.mark.django_db


def settles(job: Claimed, worker: str) -> bool:
    return send(report(job), worker=worker) == [Verdict.APPLIED]


def renews(job: Claimed, worker: str) -> bool:
    renewals = heartbeat.renew({job.key: NOW}, worker=worker, lease=LEASE, using="default", now=NOW)
    return renewals != {job.key: Renewal.LOST}


def may_write(job: Claimed, worker: str) -> bool:
    return fence.held([job.job_id], job.attempt, worker, using="default", now=NOW).exists()


def seems_held(job: Claimed, worker: str) -> bool:
    return job.key in fence.still_held([job.key], worker, using="default", now=NOW)


Write = Callable[[Claimed, str], bool]


def check_worker(write: Write) -> None:
    """Nobody but the worker that holds the lease."""
    assert not write(claimed(), STRANGER)


def check_attempt(write: Write) -> None:
    """No attempt but the one that holds the lease."""
    assert not write(claimed(attempt=5)._replace(attempt=5), WORKER)


def check_expiry(write: Write) -> None:
    """Not from the very instant at which the lease is over."""
    assert not write(lapsed(), WORKER)


def check_state(write: Write) -> None:
    """Not when the job does not run, even if a lease were left standing on its row."""
    with unchecked_rows():
        job = claimed()
        Job.objects.filter(pk=job.job_id).update(state=JobState.DEAD_LETTERED)
        assert not write(job, WORKER)


@contextmanager
def unchecked_rows() -> Iterator[None]:
    """Let rows be written that the table's own check forbids, until the test is rolled back."""
    [rule] = Job._meta.constraints
    off, on = {
        "postgresql": (f"ALTER TABLE {Job._meta.db_table} DROP CONSTRAINT {rule.name}", "SELECT 1"),
        "sqlite": ("PRAGMA ignore_check_constraints = ON", "PRAGMA ignore_check_constraints = OFF"),
        "mysql": ("SET check_constraint_checks = OFF", "SET check_constraint_checks = ON"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(off)
        try:
            yield
        finally:
            cursor.execute(on)


CHECKS = {
    "worker": check_worker,
    "attempt": check_attempt,
    "state": check_state,
    "expiry": check_expiry,
}
LINES = {  # of the guard in SQL: what each condition reads there
    "worker": "AND j.worker = %(worker)s",
    "attempt": "AND j.attempt = v.attempt",
    "state": "AND j.state + 0 = 2",
    "expiry": "AND j.lease_expires_at > {instant}",
}
BATCHES = {"settle": settles, "renew": renews}
every_condition = pytest.mark.parametrize("condition", CHECKS)


@pytest.fixture(params=["whole", "broken"])
def broken(request) -> bool:
    """Whether the test takes a condition away; if not, the check itself has to pass."""
    return request.param == "broken"


def expect(*, failure: bool):
    return pytest.raises(AssertionError) if failure else pytest.raises(Passed)


class Passed(Exception):
    """A check came to its end."""


def run(check: Callable[[Write], None], write: Write) -> None:
    check(write)
    raise Passed


@pytest.fixture
def portable(monkeypatch):
    """Write batches row by row through the ORM, as on databases without statements of their own."""
    for module in (settle, heartbeat):
        monkeypatch.setattr(module, "is_postgres", lambda using: False)


@pytest.mark.only_on("postgres")
@every_condition
@pytest.mark.parametrize("write", BATCHES.values(), ids=BATCHES)
def test_each_condition_of_the_batch_guard_counts(monkeypatch, condition, write, broken):
    """G4: a batch whose guard lacks a condition lets through what that condition is there for."""
    if broken:
        assert fence.GUARD.count(LINES[condition]) == 1
        monkeypatch.setattr(fence, "GUARD", fence.GUARD.replace(LINES[condition], ""))
    with fresh_sql(), expect(failure=broken):
        run(CHECKS[condition], write)


@contextmanager
def fresh_sql() -> Iterator[None]:
    """Build the batches' statements anew, and again afterwards."""
    caches = (postgres._settle_sql, heartbeat._renew_sql)
    for cached in caches:
        cached.cache_clear()
    try:
        yield
    finally:
        for cached in caches:
            cached.cache_clear()


def without(condition, monkeypatch):
    """Take one condition from the predicates that the ORM's guard is made of."""
    held_by, any_state = LeaseQuerySet.held_by, super(LeaseManager, Lease.objects).get_queryset
    target, name, replacement = {
        "worker": (LeaseQuerySet, "held_by", held_by_attempt),
        "attempt": (LeaseQuerySet, "held_by", lambda self, worker, _=None: held_by(self, worker)),
        "state": (LeaseManager, "get_queryset", lambda self: any_state()),
        "expiry": (LeaseQuerySet, "live", lambda self, now: self),
    }[condition]
    monkeypatch.setattr(target, name, replacement)


def held_by_attempt(leases, worker, attempt=None):
    return leases if attempt is None else leases.filter(attempt=attempt)


# What renews looks at the attempt before it asks the fence, to know which start to write.
ROW_WRITES = [
    pytest.param(condition, write, id=f"{name}-{condition}")
    for name, write in {**BATCHES, "held": may_write}.items()
    for condition in CHECKS
    if (name, condition) != ("renew", "attempt")
]


@pytest.mark.parametrize(("condition", "write"), ROW_WRITES)
@pytest.mark.usefixtures("portable")
def test_each_condition_of_the_row_guard_counts(monkeypatch, condition, write, broken):
    """G4: a row's guard that lacks a condition lets through what that condition is there for."""
    if broken:
        without(condition, monkeypatch)
    with expect(failure=broken):
        run(CHECKS[condition], write)


@every_condition
def test_each_condition_tells_stale_from_locked(monkeypatch, condition, broken):
    """G4: what is stale would be taken for locked, and tried for ever, without each condition."""
    if broken and condition != "attempt":  # the attempt is compared outside of the query there
        without(condition, monkeypatch)
    with expect(failure=broken and condition != "attempt"):
        run(CHECKS[condition], seems_held)


@pytest.mark.parametrize("condition", ["worker", "expiry"])
def test_each_condition_counts_in_a_hand_back(monkeypatch, condition, broken):
    """G4: a worker would hand back what is another's, or over, without these conditions."""
    if broken:
        without(condition, monkeypatch)

    def hands_back(job, worker):
        before = contents()
        release_unknown([], worker=worker, using="default", now=NOW)
        return contents() != before

    with expect(failure=broken):
        run(CHECKS[condition], hands_back)
