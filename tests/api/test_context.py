"""The context of a running handler, and the switch by which its worker reaches it."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from django_backwave import JobState, Stopped
from django_backwave.compat import TaskResultStatus
from django_backwave.context import JobContext, StopSwitch
from django_backwave.core.protocol import Claimed, StopReason
from django_backwave.notes import Notes
from tests.api import handlers

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """A monotonic clock that stands still until it is told otherwise."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def switch(clock: Clock, lease: float = 60.0) -> StopSwitch:
    return StopSwitch(lease_ends=clock.now + lease, clock=clock)


def claimed(**changes) -> Claimed:
    values = {
        "job_id": UUID(int=7),
        "name": "send-receipt",
        "queue": "mail",
        "priority": 3,
        "payload": '{"args":[7],"kwargs":{"copy":true}}',
        "attempt": 4,
        "failures": 2,
        "max_attempts": 5,
        "backoff_base": 1.0,
        "backoff_cap": 9.0,
        "backoff_jitter": 0.2,
        "lease_seconds": None,
        "timeout_seconds": None,
        "headers": None,
        "schema": None,
        "logical_key": None,
        "generation": None,
        "due_at": NOW,
        "enqueued_at": NOW - timedelta(hours=1),
        "claimed_at": NOW,
        "unroutable_for": None,
    }
    return Claimed(**values | changes)


def context(clock: Clock | None = None, notes: Notes | None = None, **changes) -> JobContext:
    return JobContext(
        claimed=claimed(**changes),
        task=handlers.send_receipt,
        worker="host:1:a",
        switch=switch(clock or Clock()),
        atomic=nullcontext,
        once=nullcontext,
        notes=notes,
    )


def test_the_context_knows_its_attempt():
    """`attempt` is the fence's number, which Django's count of workers is not."""
    here = context()

    assert here.job_id == UUID(int=7)
    assert (here.attempt, here.failures) == (4, 2)
    assert repr(here) == f"<JobContext send-receipt {UUID(int=7)} #4>"


def test_the_result_is_built_when_asked_for():
    here = context()
    assert here._result is None

    result = here.task_result

    assert result is here.task_result
    assert (result.id, result.state) == (str(UUID(int=7)), JobState.RUNNING)
    assert result.status is TaskResultStatus.RUNNING
    assert (result.args, result.kwargs) == ([7], {"copy": True})
    assert (result.enqueued_at, result.started_at) == (NOW - timedelta(hours=1), NOW)
    assert result.worker_ids == ["host:1:a"]
    assert (result.task.priority, result.task.func) == (3, handlers.send_receipt.func)


def test_the_idempotency_key_is_the_same_in_every_attempt():
    """An outside effect that is repeated under it happens once."""
    first, later = context(attempt=1), context(attempt=9, failures=0)

    assert first.idempotency_key() == later.idempotency_key() == str(UUID(int=7))
    assert first.idempotency_key("charge") == later.idempotency_key("charge")


@pytest.mark.parametrize("name", ["", "charge", "ü" * 1000, "a\0b", "\ud800", "\n"])
def test_the_idempotency_key_fits_everywhere(name):
    key = context().idempotency_key(name)

    assert 0 < len(key) <= 64
    assert key.isascii()
    assert key.isprintable()


def test_idempotency_keys_differ_by_job_and_by_name():
    keys = {context(job_id=UUID(int=job)).idempotency_key(name) for job in (7, 8) for name in ("", "a", "b")}

    assert len(keys) == 6


def test_a_handler_goes_on_without_a_reason_to_stop():
    here = context()

    here.raise_if_stopped()

    assert (here.lease_lost, here.cancel_requested) == (False, False)


@pytest.mark.parametrize("reason", StopReason)
def test_a_handler_that_must_stop_is_stopped(reason):
    """`except Exception` in the handler does not swallow it."""
    here = context()
    here._switch.tell(reason)

    with pytest.raises(Stopped) as caught:
        here.raise_if_stopped()

    assert caught.value.reason is reason
    assert not isinstance(caught.value, Exception)
    assert here.cancel_requested is (reason is StopReason.CANCEL)
    assert here.lease_lost is (reason is StopReason.LEASE_LOST)


def test_a_lease_is_lost_at_the_instant_it_ends_though_nobody_says_so():
    """G9, G10: the handler of a worker that is cut off learns it from the clock."""
    clock = Clock()
    here = context(clock)

    clock.now = 159.9
    assert here.lease_lost is False
    clock.now = 160.0
    assert here.lease_lost is True
    with pytest.raises(Stopped, match="lease lost"):
        here.raise_if_stopped()


def test_a_renewed_lease_revives_after_a_local_expiry():
    """Only the database decides."""
    clock = Clock()
    stop = switch(clock)
    clock.now = 161.0
    assert stop.lease_lost

    stop.extend(200.0)

    assert not stop.lease_lost
    assert stop.reason is None


def test_a_lease_that_was_told_to_be_lost_stays_lost():
    stop = switch(Clock())
    stop.tell(StopReason.LEASE_LOST)

    stop.extend(10_000.0)

    assert stop.lease_lost
    assert stop.reason is StopReason.LEASE_LOST


def test_the_most_important_reason_is_given():
    """A lost lease before a cancel, a cancel before a shutdown; a cancel is known in any case."""
    stop = switch(Clock())

    stop.tell(StopReason.SHUTDOWN)
    assert stop.reason is StopReason.SHUTDOWN
    stop.tell(StopReason.CANCEL)
    assert stop.reason is StopReason.CANCEL
    stop.tell(StopReason.LEASE_LOST)
    assert stop.reason is StopReason.LEASE_LOST
    assert stop.cancel_requested
