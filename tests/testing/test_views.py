"""Jobs that a view enqueues, in a request of the test client."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from django.test import Client

from django_backwave.compat import task_backends
from django_backwave.testing import assert_enqueued, assert_not_enqueued, run_jobs
from tests.testing import handlers
from tests.testing.handlers import note, seen

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.testing.urls")]


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def test_a_view_enqueues(client: Client) -> None:
    client.get("/order/no")

    run_jobs()

    assert seen == ["from the view"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic_requests", [False, True])
def test_with_atomic_requests(client: Client, monkeypatch: pytest.MonkeyPatch, atomic_requests: bool) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", atomic_requests)
    client.raise_request_exception = False

    client.get("/order/yes")

    (assert_not_enqueued if atomic_requests else assert_enqueued)(note)


def test_with_atomic_requests_in_the_tests_transaction(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    client.raise_request_exception = False
    client.get("/order/yes")
    client.get("/order/no")

    run_jobs()

    assert seen == ["from the view"]


def test_several_aliases(settings: Any) -> None:
    ours = "django_backwave.BackWaveBackend"
    settings.TASKS = {
        "default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        "mail": {"BACKEND": ours, "QUEUES": ["mail"]},
        "feeds": {"BACKEND": ours, "QUEUES": ["feeds"]},
    }
    settings.BACKWAVE = {"MODULES": ["tests.testing.handlers"]}
    note.using(backend="mail", queue_name="mail").enqueue(1)
    handlers.plain.using(backend="feeds", queue_name="feeds").enqueue(2)
    handlers.plain.enqueue(3)
    assert_enqueued(note.using(queue_name="mail"), 1)
    assert_enqueued(handlers.plain, 2)

    runs = run_jobs()

    assert [(run.outcome, run.result.backend) for run in runs] == [
        ("succeeded", "mail"),
        ("succeeded", "feeds"),
    ]
    assert len(task_backends["default"].results) == 1


def test_what_a_handler_sends_to_a_dummy_backend_is_seen(settings: Any) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "django_backwave.BackWaveBackend"},
        "other": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
    }
    to_the_dummy.enqueue()

    run_jobs()

    assert [result.args for result in task_backends["other"].results] == [[7]]


@handlers.job
def to_the_dummy() -> None:
    """Enqueue elsewhere."""
    handlers.plain.using(backend="other").enqueue(7)
