"""Looking at what is enqueued, and messages that show what there is instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from django_backwave.testing import (
    assert_enqueued,
    assert_not_enqueued,
    enqueued_jobs,
    run_jobs,
    virtual_clock,
)
from tests.app.jobs import add
from tests.testing import handlers
from tests.testing.handlers import note

pytestmark = pytest.mark.django_db

LATER = datetime(2040, 1, 1, tzinfo=UTC)


def message(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


class TestEnqueuedJobs:
    def test_oldest_first_due_or_not(self) -> None:
        note.using(run_after=LATER).enqueue(1)
        add.using(priority=9).enqueue(2, b=3)

        first, second = enqueued_jobs()

        assert (first.args, first.kwargs, first.task.run_after) == ([1], {}, LATER)
        assert (second.args, second.kwargs, second.task.priority) == ([2], {"b": 3}, 9)

    def test_of_a_task_a_name_or_a_queue(self) -> None:
        note.enqueue(1)
        add.using(queue_name="sums").enqueue(2)

        assert [job.args for job in enqueued_jobs(note)] == [[1]]
        assert [job.args for job in enqueued_jobs("tests.app.jobs.add")] == [[2]]
        assert [job.args for job in enqueued_jobs(queue="sums")] == [[2]]
        assert enqueued_jobs(note, queue="sums") == []
        assert enqueued_jobs("shop.unknown") == []

    def test_retries_are_there_and_ended_jobs_are_not(self) -> None:
        note.enqueue(1)
        handlers.fail.enqueue()
        run_jobs(raise_errors=False)

        assert [job.task.func for job in enqueued_jobs()] == [handlers.fail.func]

    def test_what_is_no_task(self) -> None:
        with pytest.raises(
            TypeError, match=r"Give a task, as @job and @task make them, or a job's name; got"
        ):
            enqueued_jobs(add.func)  # type: ignore[arg-type]


class TestAssertEnqueued:
    def test_it_returns_the_job(self) -> None:
        job = add.enqueue(1, b=2)

        assert assert_enqueued(add, 1, b=2).id == job.id

    def test_by_position_or_by_name(self) -> None:
        add.enqueue(1, 2)

        assert_enqueued(add, 1, b=2)
        assert_enqueued(add, a=1, b=2)
        assert_not_enqueued(add, 1)

    def test_as_json_has_it(self) -> None:
        note.enqueue((1, {"a": (2,)}))

        assert_enqueued(note, (1, {"a": (2,)}))
        assert_enqueued(note, [1, {"a": [2]}])

    def test_any(self) -> None:
        note.enqueue(1, more="x")

        assert_enqueued(note, 1, more=ANY)

    def test_without_arguments_any_do(self) -> None:
        note.enqueue(1)

        assert_enqueued(note)

    def test_with_a_context(self) -> None:
        handlers.tell.enqueue(7)

        assert_enqueued(handlers.tell, 7)

    def test_a_plain_task(self, settings: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": "django_backwave.BackWaveBackend"}}
        handlers.plain.using(backend="default").enqueue(1)

        assert_enqueued(handlers.plain, 1)

    def test_options_of_using_are_compared(self) -> None:
        note.using(priority=10, queue_name="mail", run_after=LATER, tags=["vip"]).enqueue(7)

        assert_enqueued(note.using(priority=10), 7)
        assert_enqueued(note.using(queue_name="mail", run_after=LATER, tags=["vip"]))
        assert_not_enqueued(note.using(tags=["vip", "late"]))
        assert message(assert_enqueued, note.using(priority=11), 7) == (
            "No job tests.testing.handlers.note(7) with priority=11 waits to run. Of this task there are:\n"
            "  tests.testing.handlers.note(7): ready, queue='mail', priority=10, due at "
            "2040-01-01 00:00:00+00:00"
        )

    def test_tags_in_any_order(self) -> None:
        note.using(tags=["vip", ("customer", "7")]).enqueue(7)

        assert_enqueued(note.using(tags=["vip", ("customer", "7")]))
        assert_enqueued(note.using(tags=[("customer", "7")]))

    def test_expires(self) -> None:
        note.using(expires=60).enqueue(1)
        add.using(expires=LATER).enqueue(2)

        assert_enqueued(note.using(expires=60), 1)
        assert_enqueued(add.using(expires=LATER), 2)
        assert_not_enqueued(note.using(expires=70))
        assert_not_enqueued(note.using(expires=LATER))
        assert_not_enqueued(add.using(expires=60))

    def test_options_of_a_plain_task_are_compared(self, settings: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": "django_backwave.BackWaveBackend"}}
        handlers.plain.using(backend="default", priority=3).enqueue(1)

        assert_enqueued(handlers.plain.using(priority=3), 1)
        assert_not_enqueued(handlers.plain.using(priority=4), 1)

    def test_it_shows_those_of_the_same_task_whatever_their_state(self) -> None:
        note.enqueue(7)
        run_jobs()
        note.enqueue(8, more="x")
        add.enqueue(1)

        assert message(assert_enqueued, note, 7) == (
            "No job tests.testing.handlers.note(7) waits to run. Of this task there are:\n"
            "  tests.testing.handlers.note(7): succeeded, queue='default', priority=0\n"
            "  tests.testing.handlers.note(8, more='x'): ready, queue='default', priority=0"
        )

    def test_else_it_shows_the_others(self) -> None:
        add.enqueue(1)

        assert message(assert_enqueued, note) == (
            "No job tests.testing.handlers.note waits to run. There are only:\n"
            "  tests.app.jobs.add(1): ready, queue='default', priority=0"
        )

    def test_or_that_there_is_nothing(self) -> None:
        assert message(assert_enqueued, note, 1) == (
            "No job tests.testing.handlers.note(1) waits to run. No job at all does."
        )

    def test_arguments_that_cannot_be(self) -> None:
        assert message(assert_enqueued, add, 1, c=2) == (
            "The arguments do not fit tests.app.jobs.add, so no job has them: "
            "got an unexpected keyword argument 'c'."
        )

    def test_jobs_of_another_signature_do_not_fit(self) -> None:
        from django_backwave.models import Job

        note.enqueue(1)
        Job.objects.update(payload={"args": [1, 2, 3, 4], "kwargs": {}})

        assert_not_enqueued(note, 1)


class TestAssertNotEnqueued:
    def test_it_shows_what_should_not_be(self) -> None:
        note.enqueue(1)
        note.enqueue(2)

        assert_not_enqueued(note, 3)
        assert_not_enqueued(add)
        assert message(assert_not_enqueued, note, 1) == (
            "A job tests.testing.handlers.note(1) waits to run, and none should:\n"
            "  tests.testing.handlers.note(1): ready, queue='default', priority=0"
        )


def test_by_the_virtual_clock() -> None:
    with virtual_clock() as clock:
        note.using(run_after=clock.now + timedelta(hours=1)).enqueue(1)

        assert_enqueued(note.using(run_after=clock.now + timedelta(hours=1)), 1)
