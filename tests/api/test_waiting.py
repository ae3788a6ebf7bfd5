"""Waiting for one generation: what ends it, what does not, and when it is refused; on a clock of numbers."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connections, transaction

from django_backwave import JobHandle, JobState, waiting
from django_backwave.core import patience
from django_backwave.core.outcome import Succeeded, Unroutable
from django_backwave.exceptions import (
    BackWaveError,
    CannotWait,
    JobCancelled,
    JobFailed,
    JobPruned,
    SchemaMismatch,
    WaitError,
    WaitTimeout,
)
from django_backwave.ids import new_id
from django_backwave.models import Job, Key
from django_backwave.store import awaited
from django_backwave.store.claim import claim
from django_backwave.store.clock import after, read
from django_backwave.store.expire import expire
from django_backwave.store.retention import prune
from django_backwave.testing import run_jobs
from django_backwave.waiting import Shell
from tests.api import handlers
from tests.app.jobs import add
from tests.factories import FAILED, WORKER, report, second_connection, send

pytestmark = pytest.mark.django_db


class World:
    """The waiting process's own clock, and what happens in the database while it sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.shell = Shell(lambda: self.now, self.sleep, self.asleep, lambda: 0.0)
        self._plans: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        """Let something happen so many seconds after the beginning."""
        self._plans.append((1000.0 + seconds, event))

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        due = [plan for plan in self._plans if plan[0] <= self.now]
        for plan in due:
            self._plans.remove(plan)
            plan[1]()

    async def asleep(self, seconds: float) -> None:
        await sync_to_async(self.sleep)(seconds)


#: Both ways to wait; `wait(handle, timeout, world)` does either.
def in_a_thread(handle: JobHandle, timeout: Any, world: World) -> Any:
    return waiting.wait(handle, timeout, shell=world.shell)


def in_a_coroutine(handle: JobHandle, timeout: Any, world: World) -> Any:
    return async_to_sync(waiting.await_)(handle, timeout, shell=world.shell)


@pytest.fixture(params=[in_a_thread, in_a_coroutine], ids=["wait", "await_"])
def wait(request):
    return request.param


def step(outcome=None, *, later: float = 0.0, queue: str = "mail"):
    """Claim the next job of a queue, and end that attempt, unless it is to go on."""
    now = after(read("default"), later)
    [taken] = claim(queue, 1, worker=WORKER, lease=60.0, using="default", now=now)
    if outcome is not None:
        send(report(taken, outcome), now=now)
    return taken


class TestEnds:
    def test_the_output_of_a_success(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(3, lambda: step(Succeeded('{"sent":7}')))
        assert wait(job.handle, 60, world) == {"sent": 7}
        assert 3 <= world.now - 1000 <= 4

    def test_it_is_there_already(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        step(Succeeded("null"))
        assert wait(job.handle, 0, world) is None
        assert world.slept == []

    def test_a_failure_that_is_tried_again_ends_no_wait(self, wait):
        world, job = World(), handlers.send_receipt.using(max_attempts=3).enqueue(7)
        world.at(1, lambda: step(FAILED))
        world.at(5, lambda: step(Succeeded("42"), later=1000))
        assert wait(job.handle, 60, world) == 42
        assert world.now - 1000 >= 5

    def test_a_lost_lease_ends_no_wait(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(1, step)
        world.at(2, lambda: expire(jitter=lambda: 0.0, using="default", now=after(read("default"), 1000)))
        world.at(5, lambda: step(Succeeded("42"), later=2000))
        assert wait(job.handle, 60, world) == 42

    def test_used_up_failures(self, wait):
        world, job = World(), handlers.send_receipt.using(max_attempts=1).enqueue(7)
        world.at(1, lambda: step(FAILED))
        with pytest.raises(JobFailed, match="is dead-lettered: ValueError: no stock") as caught:
            wait(job.handle, 60, world)
        result = caught.value.result
        assert (result.state, result.cause) == (JobState.DEAD_LETTERED, "ValueError: no stock")
        assert [error.exception_class for error in result.errors] == [ValueError]
        assert caught.value.handle == job.handle

    def test_quarantine(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(1, lambda: step(Unroutable("who is that?")))
        world.at(2, lambda: step(Unroutable("who is that?"), later=10_000))
        with pytest.raises(JobFailed, match=r"is quarantined: .*who is that") as caught:
            wait(job.handle, 60, world)
        assert caught.value.result.state is JobState.QUARANTINED

    def test_a_cancel(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(1, job.cancel)
        with pytest.raises(JobCancelled, match="is cancelled: ") as caught:
            wait(job.handle, 60, world)
        assert caught.value.result.state is JobState.CANCELLED

    def test_a_pruned_job_without_a_key(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(1, Job.objects.all().delete)
        with pytest.raises(JobPruned, match="was pruned, or its enqueue was rolled back") as caught:
            wait(job.handle, 60, world)
        assert (caught.value.latest, caught.value.settled_as) == (None, None)

    def test_a_job_that_goes_between_two_reads(self, wait, monkeypatch):
        """Its state was read, and its row is gone when the rest is to be read."""
        job = handlers.send_receipt.enqueue(7)
        Job.objects.all().delete()
        monkeypatch.setattr(awaited, "stand", lambda *_, **__: JobState.SUCCEEDED)
        with pytest.raises(JobPruned):
            wait(job.handle, 60, World())

    def test_a_job_that_is_sent_back_between_two_reads(self, wait, monkeypatch):
        """A requeue came in between: the wait goes on."""
        world, job = World(), handlers.send_receipt.enqueue(7)
        seen = iter([JobState.CANCELLED])
        real = awaited.stand
        monkeypatch.setattr(awaited, "stand", lambda *a, **k: next(seen, None) or real(*a, **k))
        world.at(1, lambda: step(Succeeded("42")))
        assert wait(job.handle, 60, world) == 42

    def test_an_unknown_id(self, wait):
        with pytest.raises(JobPruned):
            wait(JobHandle(id=str(new_id()), queue="mail", name="shop.send"), 60, World())

    def test_the_time_is_up(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(1, step)
        with pytest.raises(WaitTimeout, match=r"not ended within 2\.5 seconds: it was running") as caught:
            wait(job.handle, timedelta(seconds=2.5), world)
        assert world.now - 1000 == pytest.approx(2.5)
        assert (caught.value.handle, caught.value.state) == (job.handle, JobState.RUNNING)
        assert isinstance(caught.value, TimeoutError)
        assert Job.objects.get().job_state is JobState.RUNNING

    def test_an_end_at_the_last_moment_is_seen(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        world.at(2.0, lambda: step(Succeeded("42")))
        assert wait(job.handle, 2.0, world) == 42


class TestGenerations:
    """A handle never answers with another generation's output."""

    TASK = handlers.send_receipt.using(key="receipt:7", on_conflict="new_generation")

    def two(self) -> tuple[JobHandle, JobHandle]:
        first = self.TASK.enqueue(7)
        step(Succeeded('"the first"'))
        second = self.TASK.enqueue(7)
        step(Succeeded('"the second"'))
        return first.handle, second.handle

    def test_each_handle_has_its_own_output(self, wait):
        first, second = self.two()
        assert wait(first, 60, World()) == "the first"
        assert wait(second, 60, World()) == "the second"

    def test_the_first_waits_while_the_second_is_done(self, wait):
        """Sent back by hand, generation 1 is unfinished again; what 2 returned is not its output."""
        first, _ = self.two()
        Job.objects.filter(generation=1).update(state=JobState.READY.value, finished_at=None)
        with pytest.raises(WaitTimeout, match="generation 1 has not ended"):
            wait(first, 5, World())

    def test_a_pruned_one_names_the_latest(self, wait):
        first, second = self.two()
        Job.objects.filter(generation=1).delete()
        with pytest.raises(JobPruned, match=f"latest generation of its key is 2: job {second.id}") as caught:
            wait(first, 60, World())
        latest = caught.value.latest
        assert latest == second
        assert (latest.generation, latest.key, latest.queue) == (2, "receipt:7", "mail")
        assert caught.value.settled_as is None
        assert wait(latest, 60, World()) == "the second"

    def test_a_pruned_one_that_is_the_latest_says_how_it_ended(self, wait):
        first, second = self.two()
        prune(keep_done=1.0, keep_dead=1.0, using="default", now=after(read("default"), 100))
        with pytest.raises(JobPruned) as caught:
            wait(second, 60, World())
        assert (caught.value.latest, caught.value.settled_as) == (second, JobState.SUCCEEDED)
        with pytest.raises(JobPruned) as caught:
            wait(first, 60, World())
        assert (caught.value.latest, caught.value.settled_as) == (second, None)

    def test_a_key_that_was_forgotten(self, wait):
        first, _ = self.two()
        Job.objects.all().delete()
        Key.objects.all().delete()
        with pytest.raises(JobPruned) as caught:
            wait(first, 60, World())
        assert caught.value.latest is None

    def test_an_enqueue_that_was_rolled_back(self, wait):
        """The handle of a generation that never was says so, and that the key leads to an older one."""
        self.two()
        with transaction.atomic():
            third = self.TASK.enqueue(7)
            transaction.set_rollback(True)
        with pytest.raises(JobPruned, match="its enqueue was rolled back") as caught:
            wait(third.handle, 60, World())
        assert caught.value.latest.generation == 2

    def test_another_schema_is_not_decoded(self, wait):
        first, _ = self.two()
        Job.objects.filter(generation=1).update(schema="receipt/2")
        with pytest.raises(SchemaMismatch):
            wait(first, 60, World())


class TestPace:
    def test_looks_become_seldom_up_to_one_a_second(self, wait):
        world, job = World(), handlers.send_receipt.enqueue(7)
        with pytest.raises(WaitTimeout):
            wait(job.handle, 5, world)
        assert world.slept[:3] == [0.005, 0.01, 0.02]
        assert max(world.slept) == 1.0
        assert len(world.slept) < 15

    def test_a_look_is_one_statement(self, django_assert_max_num_queries):
        world, job = World(), handlers.send_receipt.enqueue(7)
        with django_assert_max_num_queries(15) as queries, pytest.raises(WaitTimeout):
            waiting.wait(job.handle, 5, shell=world.shell)
        assert len(queries) == len(world.slept) + 1

    @pytest.mark.parametrize("timeout", [-1, True, "5", float("nan"), float("inf"), timedelta(-1), [1]])
    def test_what_is_no_timeout_is_refused(self, timeout, wait):
        with pytest.raises(ValueError, match="timeout must be seconds from 0"):
            wait(handlers.send_receipt.enqueue(7).handle, timeout, World())


class TestRefused:
    def test_in_the_transaction_that_enqueued_it(self, wait):
        with transaction.atomic():
            job = handlers.send_receipt.enqueue(7)
            with pytest.raises(CannotWait, match="cannot start before it commits") as caught:
                wait(job.handle, 5, World())
        assert not isinstance(caught.value, WaitError)

    def test_in_any_transaction_even_if_it_is_done(self, wait):
        """So that it does not depend on who is quicker."""
        job = handlers.send_receipt.enqueue(7)
        step(Succeeded("null"))
        with transaction.atomic(), pytest.raises(CannotWait, match="ATOMIC_REQUESTS"):
            wait(job.handle, 5, World())

    @pytest.mark.django_db(databases=["default", "other"])
    def test_a_transaction_on_another_database_is_none_of_ours(self, wait):
        job = handlers.send_receipt.enqueue(7)
        step(Succeeded("42"))
        with transaction.atomic(using="other"):
            assert wait(job.handle, 5, World()) == 42

    def test_for_ever_where_nobody_can_end_it(self, wait):
        """In a TestCase no worker sees the job."""
        job = handlers.send_receipt.enqueue(7)
        with pytest.raises(CannotWait, match=r"ready inside of a test's transaction.* Call run_jobs"):
            wait(job.handle, None, World())

    @pytest.mark.django_db(transaction=True)
    def test_with_autocommit_off(self):
        job = handlers.send_receipt.enqueue(7)
        transaction.set_autocommit(False)
        try:
            with pytest.raises(CannotWait):
                job.wait(5)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)


class TestInTests:
    def test_after_run_jobs_it_returns_at_once(self):
        job = add.enqueue(1, 2)
        run_jobs()
        assert job.wait() == job.wait(0) == job.handle.wait() == 3
        assert JobHandle.loads(job.dumps()).wait() == 3
        assert job.state is JobState.READY  # as it was read

    def test_so_does_the_coroutine(self):
        job = add.enqueue(1, 2)
        run_jobs()
        assert async_to_sync(job.await_)() == async_to_sync(job.handle.await_)(timedelta(seconds=1)) == 3


class TestErrors:
    def errors(self) -> list[WaitError]:
        result = handlers.send_receipt.enqueue(7)
        handle = result.handle
        return [
            JobFailed("failed", handle, result),
            JobCancelled("cancelled", handle, result),
            JobPruned("pruned", handle, handle, JobState.SUCCEEDED),
            WaitTimeout("late", handle, JobState.RUNNING),
        ]

    def test_they_have_one_base(self):
        assert all(
            isinstance(error, WaitError) and isinstance(error, BackWaveError) for error in self.errors()
        )

    def test_they_pickle(self):
        for error in self.errors():
            again = pickle.loads(pickle.dumps(error))  # noqa: S301
            assert (type(again), str(again), again.handle) == (type(error), str(error), error.handle)
            assert vars(again).keys() == vars(error).keys()


class TestALostConnection:
    """The connection that reads was lost while nobody used it: it is replaced, and only once."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def broken(self, monkeypatch):
        """Let reads fail as often as told, as if the server had closed the connection."""
        left = [0]
        real = awaited._stand

        def stand(job_id, using):
            if left[0]:
                left[0] -= 1
                raise OperationalError("server closed the connection unexpectedly")
            return real(job_id, using)

        monkeypatch.setattr(awaited, "_stand", stand)
        monkeypatch.setattr(type(connections["default"]), "is_usable", lambda _: False)
        return left

    def test_it_goes_on(self, broken):
        world, job = World(), handlers.send_receipt.enqueue(7)

        def lose():
            broken[0] = 1

        world.at(0.05, lose)
        world.at(0.06, lambda: step(Succeeded("42")))
        assert waiting.wait(job.handle, 60, shell=world.shell) == 42
        assert broken == [0]

    def test_twice_in_a_row_it_is_told(self, broken):
        job = handlers.send_receipt.enqueue(7)
        broken[0] = 2
        with pytest.raises(OperationalError):
            waiting.wait(job.handle, 60, shell=World().shell)

    def test_an_error_of_a_connection_that_works_is_told(self, broken, monkeypatch):
        monkeypatch.setattr(type(connections["default"]), "is_usable", lambda _: True)
        job = handlers.send_receipt.enqueue(7)
        broken[0] = 1
        with pytest.raises(OperationalError):
            waiting.wait(job.handle, 60, shell=World().shell)


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_coroutine_ends_at_once():
    """Its job goes on."""
    job = handlers.send_receipt.enqueue(7)

    async def give_up() -> None:
        task = asyncio.create_task(job.await_())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async_to_sync(give_up)()
    assert Job.objects.get().job_state is JobState.READY


@pytest.mark.django_db(transaction=True)
def test_asyncio_timeout_is_not_taken_for_ours():
    job = handlers.send_receipt.enqueue(7)

    async def hurry() -> None:
        async with asyncio.timeout(0.05):
            await job.await_(60)

    with pytest.raises(TimeoutError) as caught:
        async_to_sync(hurry)()
    assert not isinstance(caught.value, WaitTimeout)


@pytest.mark.only_on("postgres", "mysql")
@pytest.mark.django_db(transaction=True)
def test_a_wait_sees_what_another_connection_commits():
    """Under REPEATABLE READ too, for each look is a transaction of its own."""
    world, job = World(), handlers.send_receipt.enqueue(7)

    def elsewhere() -> None:
        with second_connection() as alias:
            Job.objects.using(alias).update(state=JobState.SUCCEEDED.value, output=42)

    world.at(0.05, elsewhere)
    assert waiting.wait(job.handle, 60, shell=world.shell) == 42


@pytest.mark.only_on("postgres")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", ["lent", "mark"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_while_it_begins_to_listen_is_not_missed(monkeypatch, place, when):
    """Whether it comes before the connection, the mark, or the next look: nobody waits for the next one."""
    monkeypatch.setattr(patience, "LISTENING", 60.0)
    job = handlers.send_receipt.enqueue(7)
    owner = awaited.Ear if place == "lent" else awaited
    real = getattr(owner, place)

    def cancelling(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            job.cancel()
        found = real(*args, **kwargs)
        if when == "after":
            job.cancel()
        return found

    monkeypatch.setattr(owner, place, cancelling)
    began = time.monotonic()
    with pytest.raises(JobCancelled):
        job.wait(50)
    assert time.monotonic() - began < 10
