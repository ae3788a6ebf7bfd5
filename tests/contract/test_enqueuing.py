"""Defining and enqueuing, as Django's documentation of tasks has it; for Django's backends and for ours."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync

from django_backwave.compat import (
    InvalidTask,
    Task,
    TaskResult,
    TaskResultStatus,
    task,
    task_backends,
    tasks_logger,
)
from tests.contract import handlers

LATER = datetime(2030, 1, 1, tzinfo=UTC)


def test_the_alias_leads_to_one_backend(backend):
    assert task_backends["default"] is backend
    assert backend.alias == "default"
    assert list(backend.check()) == []


def test_a_task_is_a_task_of_django(backend, define):
    add = define("add")

    assert isinstance(add, Task)
    assert isinstance(add, backend.task_class)
    assert (add.name, add.module_path) == ("add", "tests.contract.handlers.add")
    assert (add.priority, add.queue_name, add.backend) == (0, "default", "default")
    assert (add.run_after, add.takes_context) == (None, False)
    assert add.get_backend() is backend


def test_a_task_can_still_be_called(backend, define):
    assert define("add").call(1, b=2) == 3
    assert define("later").call(1) == 2
    assert async_to_sync(define("add").acall)(1) == 1
    assert async_to_sync(define("later").acall)(1) == 2


def test_using_returns_a_changed_copy(backend, define):
    add = define("add")

    changed = add.using(priority=5, queue_name="mail")

    assert (changed.priority, changed.queue_name, changed.func) == (5, "mail", add.func)
    assert (add.priority, add.queue_name) == (0, "default")
    assert add.using() == add
    assert type(changed) is type(add)


def test_a_task_is_frozen_and_can_be_compared_and_hashed(backend, define):
    add = define("add")

    with pytest.raises(AttributeError):
        add.priority = 3
    assert replace(add, priority=3) == add.using(priority=3) != add
    assert len({add, add.using(), add.using(priority=3)}) == 2


@pytest.mark.parametrize(
    ("flag", "name", "options"),
    [
        ("supports_priority", "add", {"priority": 1}),
        ("supports_async_task", "later", {}),
    ],
)
def test_a_flag_says_what_a_task_may_be(backend, define, flag, name, options):
    if getattr(backend, flag):
        assert define(name, **options).get_backend() is backend
    else:
        with pytest.raises(InvalidTask):
            define(name, **options)


def test_a_flag_says_whether_a_task_may_wait(backend, define):
    add = define("add")

    if backend.supports_defer:
        assert add.using(run_after=LATER).enqueue(1).status is TaskResultStatus.READY
    else:
        with pytest.raises(InvalidTask, match="does not support run_after"):
            add.using(run_after=LATER)


@pytest.mark.parametrize("priority", [-101, 101, 1.5])
def test_a_priority_is_a_whole_number_within_bounds(backend, define, priority):
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        define("add", priority=priority)


def test_a_naive_run_after_is_refused(backend, define):
    with pytest.raises(InvalidTask):
        define("add").using(run_after=datetime(2030, 1, 1))


def test_run_after_is_no_option_of_the_decorator(backend):
    with pytest.raises((TypeError, InvalidTask)):
        task(run_after=LATER)(handlers.add)


def test_a_function_inside_of_a_function_is_no_task(backend):
    def inner() -> None: ...

    with pytest.raises(InvalidTask, match="must be defined at a module level"):
        task(inner)
    with pytest.raises(InvalidTask, match="must be defined at a module level"):
        task(lambda: None)


def test_a_task_that_takes_the_context_says_so_first(backend, define):
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        define("without_context", takes_context=True)


def test_a_queue_that_the_alias_does_not_have_is_refused(settings, backend, define):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["default", "mail"]}}
    add = define("add", queue_name="mail")

    assert add.enqueue(1).task.queue_name == "mail"
    with pytest.raises(InvalidTask, match="Queue 'other' is not valid for backend"):
        add.using(queue_name="other")


def test_without_queues_there_is_the_default_one(settings, backend, define):
    settings.TASKS = {"default": {"BACKEND": settings.TASKS["default"]["BACKEND"]}}

    with pytest.raises(InvalidTask, match="Queue 'other' is not valid for backend"):
        define("add", queue_name="other")


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_enqueue_returns_a_result(backend, define, twin):
    give = define("give")
    enqueue = give.enqueue if twin == "sync" else async_to_sync(give.aenqueue)

    result = enqueue(1, (2, b"3"), a={"b": [None, 1.5, True]})

    assert isinstance(result, TaskResult)
    assert (result.task, result.backend) == (give, "default")
    assert isinstance(result.id, str)
    assert 0 < len(result.id) <= 64
    assert result.args == [1, [2, "3"]]
    assert result.kwargs == {"a": {"b": [None, 1.5, True]}}
    assert result.enqueued_at.tzinfo is not None
    assert result.errors == []


def test_the_backend_itself_enqueues(backend, define):
    """As Django's own `aenqueue` calls it, by keyword."""
    add = define("add")

    assert backend.enqueue(task=add, args=(1,), kwargs={"b": 2}).args == [1]
    assert async_to_sync(backend.aenqueue)(task=add, args=(1,), kwargs={"b": 2}).kwargs == {"b": 2}


def test_each_enqueue_has_an_id_of_its_own(backend, define):
    add = define("add")

    assert len({add.enqueue(1).id for _ in range(5)}) == 5


def test_what_is_not_json_is_refused(backend, define):
    with pytest.raises((TypeError, ValueError)):
        define("give").enqueue({1, 2})


def test_later_changes_of_an_argument_change_no_result(backend, define):
    given = {"list": [1]}

    result = define("give").enqueue(given)
    given["list"].append(2)

    assert result.args == [{"list": [1]}]


def test_the_enqueued_signal_has_the_backends_class_as_its_sender(backend, define, heard):
    define("add").enqueue(1)
    async_to_sync(define("add").aenqueue)(1)

    first = [(sender, status, workers) for name, sender, status, workers in heard if name == "enqueued"]
    assert first == [(type(backend), TaskResultStatus.READY, [])] * 2


def test_djangos_log_line_names_the_task_and_its_alias(backend, define, caplog):
    with caplog.at_level(logging.DEBUG, tasks_logger.name):
        result = define("add").enqueue(1)

    line = f"Task id={result.id} path=tests.contract.handlers.add enqueued backend=default"
    assert line in caplog.messages
