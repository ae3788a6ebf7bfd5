"""One backend after the other, tasks made for it, and what runs our jobs in the test's own thread."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_backwave import registry
from django_backwave.compat import (
    TASKS_PACKAGE,
    BaseTaskBackend,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_backwave.context import StopSwitch
from django_backwave.store.claim import claim
from django_backwave.store.settle import settle
from django_backwave.worker import clock
from django_backwave.worker.execution import Execution
from django_backwave.worker.notifier import Notifier
from tests.contract import handlers

OURS = "django_backwave.BackWaveBackend"
PATHS = {
    "immediate": f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend",
    "dummy": f"{TASKS_PACKAGE}.backends.dummy.DummyBackend",
    "ours": OURS,
}
FUNCTIONS = {name: value for name, value in vars(handlers).items() if isinstance(value, FunctionType)}
WORKER = "host:1:contract"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no task of a test be known after it."""
    monkeypatch.setattr(registry._registry, "_tasks", {})


@pytest.fixture(params=PATHS)
def backend(request: pytest.FixtureRequest, settings: Any, db: None) -> BaseTaskBackend:
    """Make one backend after the other the default, and return it."""
    settings.TASKS = {"default": {"BACKEND": PATHS[request.param], "QUEUES": []}}
    return task_backends["default"]


@pytest.fixture
def ours(settings: Any, db: None) -> BaseTaskBackend:
    """Make our backend the default, and return it."""
    settings.TASKS = {"default": {"BACKEND": OURS, "QUEUES": []}}
    return task_backends["default"]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes a task of a handler, as Django's decorator in its module would."""

    def define(name: str, **options: Any) -> Any:
        made = task(**options)(FUNCTIONS[name])
        monkeypatch.setattr(handlers, name, made)
        return made

    return define


@pytest.fixture
def heard() -> Iterator[list[tuple[str, type, Any, Any]]]:
    """Collect (signal, sender, status, worker ids) as each was when the signal was sent."""
    heard: list[tuple[str, type, Any, Any]] = []
    receivers = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    for name, signal in signals.items():

        def receive(sender: type, task_result: Any, key: str = name, **_: Any) -> None:
            heard.append((key, sender, task_result.status, list(task_result.worker_ids)))

        receivers.append(receive)
        signal.connect(receive)
    yield heard
    for signal, receiver in zip(signals.values(), receivers, strict=True):
        signal.disconnect(receiver)


def run_due(*queues: str) -> None:
    """Run what is due, once: claimed from the store, settled through the fence, told by the notifier.

    It does what a worker's pump does, in this thread and its transaction. For other backends, which run a
    task when it is enqueued or never, it finds nothing to do.
    """
    notifier = Notifier()
    notifier.start()
    try:
        for queue in queues or ("default",):
            for job in claim(queue, 10, worker=WORKER, lease=60, using="default"):
                at = clock.monotonic()
                switch = StopSwitch(lease_ends=at + 60, clock=clock.monotonic)
                execution = Execution(
                    job, WORKER, switch, claimed_at=at, using="default", completed=bool, began=notifier.began
                )
                _run(execution)
                verdicts = settle([execution.report], worker=WORKER, unroutable_grace=60, using="default")
                notifier.settled([(execution, verdicts[job.key])], grace=60)
    finally:
        notifier.stop(10)
    assert not notifier.thread.is_alive()


def _run(execution: Execution) -> None:
    run = async_to_sync(execution.arun) if execution.is_async else execution.run
    contextvars.copy_context().run(run)
