"""``AROUND``: the project's context managers around each handler, in its own thread or task."""

from __future__ import annotations

import asyncio
import threading

import pytest

from django_backwave import Stopped, registry
from django_backwave.context import StopSwitch
from django_backwave.core.outcome import Cancelled, Failed, Succeeded
from django_backwave.core.protocol import StopReason
from django_backwave.hooks import around
from django_backwave.jobs import BackWaveTask
from django_backwave.worker.execution import Execution
from tests.api import hooks
from tests.core.bench import claimed

NAME = "shop.send_receipt"
HOOKS = "tests.api.hooks"


@pytest.fixture
def attempt(monkeypatch, settings):
    """Return a function that runs a handler within hooks, and returns its outcome and what the hooks say."""

    def run(handler, *names, told=None, headers='{"tenant":"acme"}', **options):
        settings.BACKWAVE = {"AROUND": [f"{HOOKS}.{name}" for name in names]}
        task = BackWaveTask.unchecked(func=handler, job_name=NAME, **options)
        monkeypatch.setattr(registry, "resolve", {NAME: task}.get)
        switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
        job = claimed(name=NAME, headers=headers)
        execution = Execution(
            job, "host:1:a", switch, claimed_at=0.0, using="default", completed=bool, around=around()
        )
        hooks.LOG.clear()
        if told:
            switch.tell(told)
        is_async = asyncio.iscoroutinefunction(handler)
        report = asyncio.run(execution.arun()) if is_async else execution.run()
        assert execution.report is report
        return report.outcome, list(hooks.LOG)

    return run


def note_tenant():
    hooks.LOG.append(("handler", hooks.TENANT.get(), threading.get_ident()))
    return "done"


async def note_tenant_async():
    return note_tenant()


@pytest.mark.parametrize("handler", [note_tenant, note_tenant_async])
def test_they_are_entered_in_order_around_the_handler(attempt, handler):
    """In its own thread, and in its context: what a hook sets the handler sees."""
    outcome, log = attempt(handler, "outer", "inner")

    assert outcome == Succeeded('"done"')
    assert log == [
        ("outer in", 1),
        ("inner in", "acme"),
        ("handler", "acme", threading.get_ident()),
        ("inner out", "acme"),
        ("outer out", 1),
    ]
    assert hooks.TENANT.get() == "nobody"


def test_a_handler_that_takes_the_context_gets_the_same_one(attempt):
    def handler(context):
        return context.headers

    assert attempt(handler, "outer", takes_context=True)[0] == Succeeded('{"tenant":"acme"}')


def test_async_handlers_take_both_kinds(attempt):
    outcome, log = attempt(note_tenant_async, "asynchronous", "inner", "Both")

    assert outcome == Succeeded('"done"')
    assert [entry if isinstance(entry, str) else entry[0] for entry in log] == [
        "async in",
        "inner in",
        "async",
        "handler",
        "inner out",
        "async out",
    ]
    assert attempt(note_tenant, "Both")[1][0] == "sync"


def test_an_asynchronous_one_around_a_plain_function_is_a_failure_that_says_so(attempt):
    outcome, log = attempt(note_tenant, "asynchronous")

    assert isinstance(outcome, Failed)
    assert "'tests.api.hooks.asynchronous'" in outcome.error.message
    assert "cannot surround a plain function" in outcome.error.message
    assert log == []


def failing():
    raise ValueError("no stock")


async def failing_async():
    raise ValueError("no stock")


@pytest.mark.parametrize("handler", [failing, failing_async])
def test_they_see_the_handlers_exception(attempt, handler):
    outcome, log = attempt(handler, "outer")

    assert outcome.error.class_path == "builtins.ValueError"
    assert log == [("outer in", 1), ("outer saw", "ValueError"), ("outer out", 1)]


@pytest.mark.parametrize("handler", [note_tenant, note_tenant_async])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails_to_make", "no tenant here"),
        ("fails_to_enter", "no tenant here"),
        ("fails_to_leave", "no tenant any more"),
        ("no_manager", "'tests.api.hooks.no_manager'"),
    ],
)
def test_one_that_fails_is_the_attempts_failure(attempt, handler, name, message):
    """And not the worker's: nothing is raised; and those before it are left in order."""
    outcome, log = attempt(handler, "outer", name)

    assert isinstance(outcome, Failed)
    assert message in outcome.error.message
    assert f"{HOOKS}.{name}" in outcome.error.message + outcome.error.traceback or name == "fails_to_leave"
    assert log[-1] == ("outer out", 1)
    ran = any(entry[0] == "handler" for entry in log)
    assert ran is (name == "fails_to_leave")


@pytest.mark.parametrize("handler", [failing, failing_async])
def test_none_turns_a_failure_into_a_success(attempt, handler):
    outcome, log = attempt(handler, "outer", "swallows")

    assert outcome.error.message == "no stock"
    assert "swallowed ValueError" in log


def test_none_swallows_a_stop(attempt):
    """G8."""

    def handler(context):
        context._switch.tell(StopReason.CANCEL)
        raise Stopped(StopReason.CANCEL)

    outcome, log = attempt(handler, "swallows", takes_context=True)
    assert (outcome, log) == (Cancelled(), ["swallowed Stopped"])


def test_they_are_not_entered_for_an_attempt_that_never_starts(attempt):
    assert attempt(note_tenant, "outer", told=StopReason.CANCEL) == (Cancelled(), [])
