"""Where the backend may stand: aliases, databases, routers, requests, time zones, names; before the apps."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path

from django_backwave import enqueue_many
from django_backwave.compat import InvalidTask, task, task_backends
from django_backwave.exceptions import ForeignTransaction, InvalidJob
from django_backwave.models import Job
from tests.contract import handlers
from tests.contract.conftest import FUNCTIONS, OURS, PATHS, run_due

LONG_QUEUE = "q" * 100


def test_it_is_constructed_before_the_apps_are_ready():
    """In the module of an app's config, say, which defines or imports a task."""
    code = """if True:
        import django
        from django.conf import settings
        settings.configure(TASKS={"default": {"BACKEND": "django_backwave.BackWaveBackend",
                                              "OPTIONS": {"max_attempts": 3}}})
        from django_backwave.compat import task, task_backends
        from django_backwave import Backoff, job
        backend = task_backends["default"]
        assert all((backend.supports_defer, backend.supports_async_task, backend.supports_priority,
                    backend.supports_get_result))
        def plain(): ...
        assert task(plain).max_attempts == 3
        from django.apps import apps
        assert not apps.ready
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_the_backport_an_old_django_is_told_what_is_missing():
    code = """if True:
        import sys
        import django
        django.VERSION, sys.modules["django_tasks"] = (5, 2, 0, "final", 0), None
        import django_backwave
        django_backwave.job
    """
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    last = failed.stderr.splitlines()[-1]
    assert last.startswith(
        "django.core.exceptions.ImproperlyConfigured: Django 5.2 has no tasks of its own, and"
    )
    assert "Install it: pip install 'django-backwave[django52]'." in last


def test_every_flag_is_true(ours):
    assert ours.supports_defer
    assert ours.supports_async_task
    assert ours.supports_get_result
    assert ours.supports_priority


def test_several_aliases_have_queues_of_their_own_and_share_the_tables(settings, db):
    settings.TASKS = {
        "default": {"BACKEND": OURS},
        "mail": {"BACKEND": OURS, "QUEUES": ["mail"]},
        "theirs": {"BACKEND": PATHS["immediate"]},
    }
    add = task(FUNCTIONS["add"])

    result = add.using(backend="mail", queue_name="mail").enqueue(1)

    assert (result.backend, result.task.backend) == ("mail", "mail")
    assert task_backends["default"].get_result(result.id).id == result.id
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid"):
        add.using(queue_name="mail")
    with pytest.raises(InvalidTask, match="Queue 'default' is not valid"):
        add.using(backend="mail")
    assert add.using(backend="theirs").enqueue(1, b=2).return_value == 3


def test_a_worker_names_the_alias_that_has_the_queue(settings, db, heard, monkeypatch):
    """Monitors keep a task under alias and id. The row does not say through which alias it came."""
    settings.TASKS = {"default": {"BACKEND": OURS}, "mail": {"BACKEND": OURS, "QUEUES": ["mail"]}}
    add = task(FUNCTIONS["add"])
    told = []
    from django_backwave.compat import task_enqueued, task_finished, task_started

    def receive(task_result, **_):
        told.append((task_result.backend, task_result.task.backend))

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(receive)
    try:
        add.using(backend="mail", queue_name="mail").enqueue(1)
        run_due("mail")
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(receive)

    assert told == [("mail", "mail")] * 3


class ReadsElsewhere:
    """A router with a replica: it may be behind, and the test may not even connect to it."""

    def db_for_read(self, model, **hints):
        return "other"

    def db_for_write(self, model, **hints):
        return "default"


def test_reads_go_where_writes_go(ours, define, settings):
    settings.DATABASE_ROUTERS = [ReadsElsewhere()]
    add = define("add")

    result = add.enqueue(1)

    assert add.get_result(result.id).id == result.id
    result.refresh()
    result.cancel()
    assert add.get_result(result.id).is_finished


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_database_of_its_own(settings, define):
    settings.TASKS = {"default": {"BACKEND": OURS}}
    settings.BACKWAVE = {"DATABASE": "other"}
    add = define("add")

    with transaction.atomic("other"), transaction.atomic("default"):
        result = add.enqueue(1)
    with transaction.atomic("default"), pytest.raises(ForeignTransaction, match="but jobs"):
        add.enqueue(1)

    assert Job.objects.using("other").count() == 1
    assert add.get_result(result.id).id == result.id


def enqueue_and(request, what):
    handlers.add.enqueue(1)
    if what == "fail":
        raise ZeroDivisionError
    return HttpResponse(what)


urlpatterns = [path("<str:what>/", enqueue_and)]


@pytest.mark.django_db(transaction=True)
def test_atomic_requests_take_their_jobs_along(settings, define, monkeypatch):
    # By the fixture: what a decorator overrides around it comes back when the fixture undoes its own.
    settings.ROOT_URLCONF = __name__
    settings.TASKS = {"default": {"BACKEND": OURS}}
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    define("add")
    client = Client(raise_request_exception=False)

    assert [client.get(f"/{what}/").status_code for what in ("fail", "succeed")] == [500, 200]
    assert Job.objects.count() == 1


def test_without_time_zones(settings, ours, define):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Karachi"
    add = define("add")

    result = add.enqueue(1)
    later = add.using(run_after=datetime(2100, 1, 1)).enqueue(1)
    run_due()

    result.refresh()
    assert result.finished_at.tzinfo is None
    assert timedelta(0) <= result.finished_at - result.enqueued_at < timedelta(minutes=1)
    assert add.get_result(later.id).task.run_after == datetime(2100, 1, 1)
    assert add.get_result(later.id).status == "READY"
    with pytest.raises(InvalidJob, match="must be a naive datetime"):
        add.using(run_after=datetime(2100, 1, 1, tzinfo=UTC))


def test_names_of_any_length_are_stored_whole(ours, define):
    assert len(handlers.LONG) > 190
    send = define(handlers.LONG, queue_name=LONG_QUEUE)

    result = send.enqueue()
    run_due(LONG_QUEUE)

    row = Job.objects.get()
    assert (row.name, row.queue) == (f"tests.contract.handlers.{handlers.LONG}", LONG_QUEUE)
    assert send.get_result(result.id).return_value == "sent"


def test_a_name_that_no_column_holds_is_refused_when_the_task_is_defined(ours, monkeypatch):
    monkeypatch.setattr(FUNCTIONS["add"], "__module__", "m" * 253)

    with pytest.raises(InvalidJob, match=r"must have 1 to 255 characters, got 257.*@job\(name="):
        task(FUNCTIONS["add"])


REFUSED = {
    "not JSON": lambda tasks: tasks["give"].enqueue({1}),
    "NaN": lambda tasks: tasks["give"].enqueue(float("nan")),
    "NUL": lambda tasks: tasks["give"].enqueue("a\0"),
    "surrogate": lambda tasks: tasks["give"].enqueue("\ud800"),
    "too long": lambda tasks: tasks["give"].enqueue("x" * 300_000),
    "too many": lambda tasks: tasks["add"].enqueue(1, 2, 3),
    "missing": lambda tasks: tasks["add"].enqueue(),
    "unknown": lambda tasks: tasks["add"].enqueue(1, c=2),
    "by a coroutine": lambda tasks: async_to_sync(tasks["add"].aenqueue)(1, 2, 3),
    "one of many": lambda tasks: enqueue_many(tasks["add"], [((1,), {}), ((), {})]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_values_are_refused_before_any_sql(ours, define, what):
    """PostgreSQL breaks off a transaction in which a statement has failed; ours is never sent."""
    tasks = {name: define(name) for name in ("add", "give")}

    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        with pytest.raises(InvalidJob):
            REFUSED[what](tasks)
        assert len(queries) == 0
        tasks["add"].enqueue(1)

    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_signal_of_an_enqueue_comes_before_the_commit(ours, define, heard):
    """The row is written; the transaction may still roll back."""
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        define("add").enqueue(1)
        assert [name for name, *_ in heard] == ["enqueued"]
        raise ZeroDivisionError

    assert Job.objects.count() == 0
