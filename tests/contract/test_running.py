"""What a run makes of a task: for Django's ImmediateBackend, which shows what Django means, and for ours."""

from __future__ import annotations

import logging
import sys

import pytest

from django_backwave.compat import TaskResultStatus, task_finished, tasks_logger
from tests.contract.conftest import run_due

pytestmark = pytest.mark.parametrize("backend", ["immediate", "ours"], indirect=True)


@pytest.fixture
def run(backend):
    """Return a function that enqueues a task, lets it run, and returns its result as it is then."""

    def run(task, *args, **kwargs):
        result = task.enqueue(*args, **kwargs)
        run_due()
        if backend.supports_get_result:
            result.refresh()
        return result

    return run


def test_a_success(run, define):
    result = run(define("add"), 1, b=2)

    assert (result.status, result.is_finished) == (TaskResultStatus.SUCCESSFUL, True)
    assert (result.return_value, result.errors) == (3, [])
    assert (result.attempts, len(result.worker_ids)) == (1, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.started_at == result.last_attempted_at


def test_a_return_value_is_json(run, define):
    assert run(define("give"), (1,), a=b"b").return_value == [[[1]], {"a": "b"}]


def test_a_return_value_that_is_not_json_is_a_failure(run, define):
    [error] = run(define("unserialisable")).errors

    assert issubclass(error.exception_class, TypeError)


def test_a_coroutine_runs(run, define):
    assert run(define("later"), 1).return_value == 2


def test_the_context_has_the_attempt_and_the_result(run, define):
    result = run(define("attempt", takes_context=True), double=True)

    assert result.return_value == [1, result.id, True]


def test_an_error_has_its_class_and_its_traceback(run, define):
    result = run(define("fail"))

    [error] = result.errors
    assert error.exception_class_path == "builtins.ValueError"
    assert error.exception_class is ValueError
    assert "in fail\n" in error.traceback
    assert error.traceback.endswith("ValueError: no stock\n")
    assert (result.attempts, len(result.worker_ids)) == (1, 1)
    with pytest.raises(ValueError, match="Task"):
        result.return_value  # noqa: B018


def test_signals_of_a_success(run, define, heard, backend):
    run(define("add"), 1)

    (_, _, enqueued, nobody), (_, sender, running, workers), (_, sender_too, finished, workers_too) = heard
    assert [name for name, *_ in heard] == ["enqueued", "started", "finished"]
    assert (sender, sender_too) == (type(backend), type(backend))
    assert (enqueued, running, finished) == ("READY", "RUNNING", "SUCCESSFUL")
    assert (len(nobody), len(workers)) == (0, 1)
    assert workers_too == workers


def test_a_failure_is_told_inside_its_exceptions_context(run, define, heard, backend, caplog, monkeypatch):
    """So that Django's own log line, and an error tracker, find the traceback."""
    if backend.supports_get_result:
        monkeypatch.setitem(backend.options, "max_attempts", 1)
    found = []

    def receive(sender, task_result, **_):
        found.append((sys.exc_info()[1], task_result.status, task_result.errors[0].exception_class))

    task_finished.connect(receive)
    try:
        with caplog.at_level(logging.ERROR, tasks_logger.name):
            run(define("fail"))
    finally:
        task_finished.disconnect(receive)

    [(error, status, kind)] = found
    assert (str(error), status, kind) == ("no stock", TaskResultStatus.FAILED, ValueError)
    [record] = [record for record in caplog.records if record.name == tasks_logger.name]
    assert record.exc_info[1] is error
    assert [name for name, *_ in heard] == ["enqueued", "started", "finished"]
