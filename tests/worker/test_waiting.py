"""Waits for jobs that real workers run: told on PostgreSQL, found by looking everywhere else."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections

from django_backwave import JobHandle, JobState
from django_backwave.core import patience
from django_backwave.exceptions import JobCancelled, JobFailed, WaitTimeout
from django_backwave.models import Job
from django_backwave.store import awaited
from django_backwave.store.notify import ENDED
from django_backwave.store.operate import cancel, requeue
from tests.factories import second_connection
from tests.processes import PATIENCE, wait_until
from tests.worker.support import Held, enqueue, started, worker

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

on_postgres = pytest.mark.only_on("postgres")

EARS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s"


def handle(job: Job) -> JobHandle:
    return JobHandle(id=str(job.pk), queue=job.queue, name=job.name)


def ear_pids() -> set[int]:
    """Return the server's processes that serve somebody who listens for ends."""
    with connection.cursor() as cursor:
        cursor.execute(EARS, [f"LISTEN {ENDED}%"])
        return {pid for (pid,) in cursor.fetchall()}


def ears() -> int:
    """Return how many connections listen for ends."""
    return len(ear_pids())


def cut_ears() -> set[int]:
    """Break the connections that listen for ends, and return the server's processes that served them."""
    pids = ear_pids()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [list(pids)])
    return pids


def listens(job: Job) -> bool:
    """Whether somebody waits for a job, and is told."""
    return ears() > 0 and Job.objects.get(pk=job.pk).awaited is True


@contextmanager
def waiters(job: Job, count: int = 1):
    """Wait for a job in so many threads, and give what will be their answers."""

    def wait():
        try:
            return handle(job).wait(PATIENCE * 2)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(wait) for _ in range(count)]


@pytest.fixture(autouse=True)
def _nobody_is_left():
    """Whatever happened, no connection and no thread stays behind."""
    before = set(threading.enumerate())
    yield
    if connection.vendor == "postgresql":
        wait_until(lambda: ears() == 0, what="connections that listen are left")
    assert awaited._free_ears._value == awaited.MOST_EARS
    left = {thread for thread in set(threading.enumerate()) - before if thread.is_alive()}
    assert {thread.name for thread in left if not thread.name.startswith("asyncio")} == set()


class TestOnEveryDatabase:
    def test_ends_and_what_ends_it_not(self, tmp_path):
        with worker():
            assert handle(enqueue("write", tmp_path / "journal", "done")).wait(PATIENCE) == "done"

            with pytest.raises(JobFailed, match="ValueError: no stock") as caught:
                handle(enqueue("fail", "no stock", max_attempts=1)).wait(PATIENCE)
            assert caught.value.result.state is JobState.DEAD_LETTERED

            held = started(tmp_path / "held")
            with pytest.raises(WaitTimeout):
                handle(held.job).wait(0.2)
            with waiters(held.job, 2) as answers:
                held.go()
                assert [answer.result(PATIENCE) for answer in answers] == [1, 1]

    def test_a_requeued_job_is_the_same_generation(self, tmp_path):
        """Its id is the same, and so the handle answers with what it returns in the end."""
        with worker():
            job = enqueue("hold_then_fail", tmp_path, max_attempts=1)
            (tmp_path / "go").touch()
            with pytest.raises(JobFailed):
                handle(job).wait(PATIENCE)
            Job.objects.filter(pk=job.pk).update(name=job.name.replace("hold_then_fail", "hold"))
            requeue([job.pk], using="default")
            assert handle(job).wait(PATIENCE) == 2

    def test_the_coroutine(self, tmp_path):
        async def both(*jobs: Job) -> list[object]:
            return await asyncio.gather(*(handle(job).await_(PATIENCE) for job in jobs))

        with worker():
            jobs = [enqueue("write", tmp_path / "journal", word) for word in ("one", "two")]
            assert async_to_sync(both)(*jobs) == ["one", "two"]


@on_postgres
class TestNotification:
    @pytest.fixture(autouse=True)
    def _seldom(self, monkeypatch):
        """Whoever listens looks twice a minute, so that what comes sooner was told."""
        monkeypatch.setattr(patience, "LISTENING", 60.0)

    def test_the_end_is_told_at_once(self, tmp_path):
        """With a look it would take half a minute."""
        took = []
        with worker():
            for number in range(5):
                held = started(tmp_path / str(number))
                with waiters(held.job) as [answer]:
                    wait_until(lambda job=held.job: listens(job))
                    began = time.monotonic()
                    held.go()
                    assert answer.result(PATIENCE) == 1
                    took.append(time.monotonic() - began)
        assert statistics.median(took) < 10  # a busy machine; otherwise some hundredths

    def test_two_waiters_on_one_job(self, tmp_path):
        with worker():
            held = started(tmp_path / "held")
            with waiters(held.job, 2) as answers:
                wait_until(lambda: ears() == 2 and listens(held.job))
                held.go()
                assert [answer.result(PATIENCE) for answer in answers] == [1, 1]

    def test_a_cancel_is_told(self, tmp_path):
        job = enqueue("write", tmp_path / "journal", "never")
        with waiters(job) as [answer]:
            wait_until(lambda: listens(job))
            cancel([job.pk], using="default")
            with pytest.raises(JobCancelled):
                answer.result(PATIENCE)

    def test_coroutines_are_told_too(self, tmp_path):
        async def wait(held: Held) -> object:
            tasks = [asyncio.create_task(handle(held.job).await_(PATIENCE * 2)) for _ in range(3)]
            while await sync_to_async(lambda: ears() < 3 or not listens(held.job))():
                await asyncio.sleep(0.01)
            held.go()
            return await asyncio.gather(*tasks)

        with worker():
            held = started(tmp_path / "held")
            assert async_to_sync(wait)(held) == [1, 1, 1]

    def test_a_cancelled_coroutine_leaves_nothing_behind(self, tmp_path):
        """Neither a connection nor a reader in the loop, at whatever point it is cancelled."""

        async def cancel_after(job: Job, seconds: float) -> None:
            task = asyncio.create_task(handle(job).await_())
            await asyncio.sleep(seconds)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            loop = asyncio.get_running_loop()
            readers = {key.fd for key in loop._selector.get_map().values()}
            assert readers == {loop._ssock.fileno()}

        async def cancel_in_turn(job: Job) -> None:
            for hundredths in range(0, 30, 2):
                await cancel_after(job, hundredths / 100)

        job = enqueue("write", tmp_path / "journal", "never")
        async_to_sync(cancel_in_turn)(job)
        assert Job.objects.get().job_state is JobState.READY

    def test_a_cancelled_coroutine_leaves_nothing_behind_while_it_listens(self, tmp_path):
        async def cancel_it(job: Job) -> None:
            task = asyncio.create_task(handle(job).await_())
            while await sync_to_async(lambda: not listens(job))():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async_to_sync(cancel_it)(enqueue("write", tmp_path / "journal", "never"))


@on_postgres
class TestWithoutNotification:
    def test_a_lost_notification_costs_time_and_no_more(self, tmp_path, monkeypatch):
        monkeypatch.setattr(patience, "LISTENING", 0.2)
        with worker():
            held = started(tmp_path / "held")
            with waiters(held.job) as [answer]:
                wait_until(lambda: listens(held.job))
                Job.objects.update(awaited=None)  # so that nobody tells
                held.go()
                assert answer.result(PATIENCE) == 1

    @pytest.mark.parametrize("way", ["thread", "coroutine"])
    def test_a_lost_connection_is_replaced(self, tmp_path, monkeypatch, way):
        """The wait goes on by looking, and listens again soon."""
        monkeypatch.setattr(patience, "LISTENING", 60.0)
        monkeypatch.setattr(patience, "RETRY_FIRST", 0.1)

        def lose_and_go(held: Held) -> None:
            wait_until(lambda: listens(held.job))
            cut = cut_ears()
            wait_until(lambda: not cut & ear_pids())
            wait_until(lambda: listens(held.job))
            held.go()

        with worker():
            held = started(tmp_path / "held")
            with (
                second_connection() as alias,
                waiters(held.job) if way == "thread" else waiting(held.job) as [answer],
            ):
                assert alias
                lose_and_go(held)
                assert answer.result(PATIENCE) == 1

    def test_switched_off_nobody_listens_and_nothing_is_marked(self, tmp_path, settings):
        settings.BACKWAVE = {"NOTIFY": False}
        with worker():
            held = started(tmp_path / "held")
            with waiters(held.job) as [answer]:
                with pytest.raises(TimeoutError):
                    answer.result(0.5)
                assert ears() == 0
                held.go()
                assert answer.result(PATIENCE) == 1
        assert Job.objects.get().awaited is None

    def test_who_finds_no_room_to_listen_looks(self, tmp_path, monkeypatch):
        monkeypatch.setattr(awaited.Ear, "lent", lambda _: None)
        with worker():
            held = started(tmp_path / "held")
            with waiters(held.job) as [answer]:
                with pytest.raises(TimeoutError):
                    answer.result(0.3)
                held.go()
                assert answer.result(PATIENCE) == 1

    def test_who_cannot_connect_looks(self, tmp_path, settings):
        """NOTIFY names an alias that leads nowhere."""
        with second_connection("direct") as alias:
            connections[alias].settings_dict["PORT"] = "1"
            settings.BACKWAVE = {"NOTIFY": "direct"}
            job = enqueue("write", tmp_path / "journal", "done", due_in=0.5)
            with worker():
                assert handle(job).wait(PATIENCE) == "done"

    def test_another_alias_to_listen_over(self, tmp_path, settings):
        with second_connection("direct"), worker():
            settings.BACKWAVE = {"NOTIFY": "direct"}
            assert handle(enqueue("write", tmp_path / "journal", "done")).wait(PATIENCE) == "done"


@contextmanager
def waiting(job: Job):
    """Wait for a job in a coroutine, in an event loop of another thread."""

    def wait():
        try:
            return async_to_sync(handle(job).await_)(PATIENCE * 2)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        yield [pool.submit(wait)]
