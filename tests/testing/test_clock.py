"""The virtual clock: it stands still, is moved forward, and everything about jobs goes by it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import TestCase, override_settings
from django.utils import timezone

from django_backwave import JobState, operations
from django_backwave.jobs import enqueue_many
from django_backwave.models import Attempt, Job
from django_backwave.store import clock as store_clock
from django_backwave.testing import Clock, RunError, run_jobs, virtual_clock
from tests.app.models import Entry
from tests.testing import handlers
from tests.testing.handlers import note, seen

pytestmark = pytest.mark.django_db

START = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_clock(START) as clock:
        yield clock


def only(**options: Any) -> Any:
    [run] = run_jobs(**{"raise_errors": False} | options)
    return run


class TestTheClock:
    def test_it_begins_at_the_databases_time_and_stands_still(self) -> None:
        before = store_clock.read("default")
        with virtual_clock() as clock:
            first = clock.now
            assert store_clock.read("default") == first
            assert clock.now == first
        assert before <= first <= store_clock.read("default")

    def test_it_can_be_moved_before_anybody_has_asked(self) -> None:
        with virtual_clock() as clock:
            clock.advance(days=1)
            assert clock.now > store_clock._local() + timedelta(hours=23)

    def test_every_way_to_enqueue_goes_by_it(self, clock: Clock) -> None:
        result = note.enqueue(1)
        enqueue_many(note, [((2,), {}), ((3,), {})])
        note.using(expires=60).enqueue(4)
        note.using(tags=["vip"]).enqueue(5)

        assert result.enqueued_at == START
        assert set(Job.objects.values_list("enqueued_at", "due_at")) == {(START, START)}
        assert Job.objects.get(expires_at__isnull=False).expires_at == START + timedelta(minutes=1)

    def test_operations_go_by_it(self, clock: Clock) -> None:
        job = note.using(run_after=START + timedelta(days=1)).enqueue(1)
        operations.run_now([job.id])

        assert Job.objects.get().due_at == START

    def test_moving_it(self, clock: Clock) -> None:
        clock.advance(timedelta(seconds=1), days=1, hours=1, minutes=1)
        assert clock.now == START + timedelta(days=1, hours=1, minutes=1, seconds=1)

        clock.move_to(START + timedelta(days=2))
        assert clock.now == START + timedelta(days=2)

    def test_one_within_another(self, clock: Clock) -> None:
        with virtual_clock(START + timedelta(days=9)) as inner:
            note.enqueue(1)
            assert Job.objects.get().due_at == inner.now
        assert run_jobs() == []
        note.enqueue(2)
        assert only().result.args == [2]

    def test_without_one_time_is_real_again(self) -> None:
        with pytest.raises(ValueError, match="inside"), virtual_clock(START):
            raise ValueError("inside")
        assert store_clock.read("default") < START

    @pytest.mark.parametrize("step", [{}, {"hours": -1}])
    def test_never_back(self, clock: Clock, step: dict[str, int]) -> None:
        with pytest.raises(ValueError, match=r"A clock only moves forward, got .*\. Write clock\.advance"):
            clock.advance(**step)
        back = "it is 2031-05-01 12:00:00+00:00, got 2031-05-01 11:00:00+00:00."
        with pytest.raises(ValueError, match=re.escape(f"A clock only moves forward: {back}")):
            clock.move_to(START - timedelta(hours=1))

    def test_what_is_no_instant(self, clock: Clock) -> None:
        with pytest.raises(TypeError, match=r"the instant must be a datetime, got 5\."):
            clock.move_to(5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="start must be an aware datetime, because USE_TZ is True"):
            Clock(datetime(2031, 5, 1))

    @override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo")
    def test_without_time_zones(self) -> None:
        local = datetime(2031, 5, 1, 21, 0)
        with virtual_clock(local) as clock:
            assert clock.now == local
            result = note.using(run_after=local + timedelta(hours=1)).enqueue(1)
            assert result.enqueued_at == local
            assert run_jobs() == []
            assert len(run_jobs(until=local + timedelta(hours=1))) == 1


class TestRunJobs:
    def test_what_is_due_later_waits_for_the_clock(self, clock: Clock) -> None:
        note.using(run_after=START + timedelta(hours=1)).enqueue(1)

        assert run_jobs() == []
        clock.advance(minutes=59, seconds=59)
        assert run_jobs() == []
        clock.advance(seconds=1)
        assert only().outcome == "succeeded"

    def test_retries_back_off_by_all_that_chance_allows(self, clock: Clock) -> None:
        handlers.fail.enqueue()

        assert only().result.state is JobState.READY
        assert Job.objects.get().due_at == START + timedelta(seconds=10)
        clock.advance(seconds=10)
        assert only().result.state is JobState.READY
        assert Job.objects.get().due_at == START + timedelta(seconds=30)
        clock.advance(seconds=20)
        assert only().result.state is JobState.DEAD_LETTERED

    def test_until_runs_from_due_time_to_due_time(self, clock: Clock) -> None:
        handlers.fail.enqueue()
        note.using(run_after=START + timedelta(seconds=15)).enqueue(1)

        runs = run_jobs(until=timedelta(hours=1), raise_errors=False)

        assert [(run.name.rpartition(".")[2], run.result.last_attempted_at - START) for run in runs] == [
            ("fail", timedelta()),
            ("fail", timedelta(seconds=10)),
            ("note", timedelta(seconds=15)),
            ("fail", timedelta(seconds=30)),
        ]
        assert clock.now == START + timedelta(hours=1)

    def test_until_an_instant(self, clock: Clock) -> None:
        handlers.snooze.enqueue()

        runs = run_jobs(until=START + timedelta(seconds=119))

        assert [run.outcome for run in runs] == ["snoozed", "snoozed"]
        assert clock.now == START + timedelta(seconds=119)
        assert [run.outcome for run in run_jobs(until=timedelta(seconds=1))] == ["succeeded"]

    def test_until_stops_at_a_limit(self, clock: Clock) -> None:
        handlers.snooze.enqueue()

        assert len(run_jobs(until=timedelta(days=1), limit=2)) == 2
        assert clock.now == START + timedelta(minutes=1)

    def test_without_a_clock_until_moves_one_of_its_own(self) -> None:
        handlers.snooze.enqueue()

        runs = run_jobs(until=timedelta(hours=1))

        assert [run.outcome for run in runs] == ["snoozed", "snoozed", "succeeded"]
        assert not store_clock.is_virtual()

    def test_until_a_past_instant(self, clock: Clock) -> None:
        with pytest.raises(ValueError, match="until must not be past: it is 2031-05-01"):
            run_jobs(until=START - timedelta(seconds=1))
        with pytest.raises(ValueError, match=r"2031-05-01 12:00:00\+00:00, got 2031-05-01 11:59:00\+00:00\."):
            run_jobs(until=timedelta(minutes=-1))

    def test_what_is_no_until(self, clock: Clock) -> None:
        wanted = (
            "until must be a datetime, or a timedelta from now on, got 5. For example: "
            "until=timedelta(hours=1)."
        )
        with pytest.raises(TypeError, match=re.escape(wanted)):
            run_jobs(until=5)  # type: ignore[arg-type]

    def test_a_retry_at_its_own_time(self, clock: Clock) -> None:
        handlers.retry_later.enqueue()
        run_jobs()

        assert Job.objects.get().due_at == START + timedelta(seconds=90)

    def test_nobody_sleeps(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "sleep", pytest.fail)
        handlers.fail.enqueue()

        assert len(run_jobs(until=timedelta(days=1), raise_errors=False)) == 3

    def test_records_are_in_virtual_time(self, clock: Clock) -> None:
        handlers.tell.enqueue(1)

        result = only().result

        assert {result.enqueued_at, result.started_at, result.finished_at, result.progress.at} == {START}
        attempt = Attempt.objects.get()
        assert attempt.started_at == attempt.finished_at == START


class TestSlowHandlers:
    def test_a_lease_is_renewed_meanwhile(self, clock: Clock) -> None:
        handlers.slow.using(timeout=3600).enqueue(600)

        assert only().outcome == "succeeded"

    def test_a_time_out_is_told(self, clock: Clock) -> None:
        handlers.slow.enqueue(31, "look")

        run = only()

        assert run.outcome == "timed_out"
        assert run.result.cause == "TimedOut: it ran for longer than its time-out of 30 s"

    def test_a_time_out_is_raised(self, clock: Clock) -> None:
        job = handlers.slow.enqueue(31, "look")

        with pytest.raises(RunError) as caught:
            run_jobs()

        assert str(caught.value) == (
            f"tests.testing.handlers.slow (job {job.id}, attempt 1) was timed out: it ran for longer than "
            "its time-out of 30 s."
        )

    def test_who_ends_soon_after_the_time_out_counts(self, clock: Clock) -> None:
        handlers.slow.enqueue(34)

        assert only().outcome == "succeeded"

    @pytest.mark.parametrize("then", ["return", "fail"])
    def test_who_does_not_stop_counts_as_timed_out(self, clock: Clock, then: str) -> None:
        handlers.slow.enqueue(36, then)

        run = only()

        assert run.outcome == "timed_out"
        assert "its code still runs" in run.result.cause

    @pytest.mark.parametrize(("fails", "outcome"), [(False, "succeeded"), (True, "failed")])
    def test_an_atomic_one(self, clock: Clock, fails: bool, outcome: str) -> None:
        handlers.slow_and_atomic.enqueue(fails)

        assert only().outcome == outcome
        assert Entry.objects.count() == (0 if fails else 1)

    def test_a_cancel_is_learnt_of(self, clock: Clock) -> None:
        handlers.cancelled_meanwhile.enqueue()

        run = only()

        assert (run.outcome, run.result.state) == ("cancelled", JobState.CANCELLED)

    def test_a_coroutine_is_cancelled(self, clock: Clock) -> None:
        handlers.cancelled_in_a_coroutine.enqueue()

        run = only()

        assert (run.outcome, run.result.state) == ("cancelled", JobState.CANCELLED)
        assert seen == []


class ATestCase(TestCase):
    def setUp(self) -> None:
        self.clock = self.enterContext(virtual_clock())

    def test_it_is_entered_like_any_context(self) -> None:
        note.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1)
        self.clock.advance(days=2)

        assert len(run_jobs()) == 1

    async def test_in_a_coroutine(self) -> None:
        await note.aenqueue(1)
        self.clock.advance(days=1)
        assert self.clock.now > timezone.now() + timedelta(hours=23)
