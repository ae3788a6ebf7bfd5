"""What packages built on Django's tasks do with tasks and results, each access in code of our own.

`nox -s third_parties` runs such packages themselves: two that schedule, two that monitor, one that works
through large tables, and the debug toolbar.
"""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import wraps

import pytest
from django.db import connections
from django.utils.module_loading import import_string

from django_backwave import job, registry
from django_backwave.checks import check_handlers
from django_backwave.compat import Task, TaskResult, task_backends, task_enqueued
from django_backwave.models import Job
from tests.contract.conftest import FUNCTIONS, run_due


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_enqueues_from_threads_of_its_own(ours, define):
    """It keeps the bound method, and looks at its signature to see whether it can be called."""
    enqueue = define("give").enqueue
    inspect.signature(enqueue).bind()

    def tick(_):
        try:
            return enqueue().id
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        ids = set(pool.map(tick, range(4)))

    assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == ids


def test_an_error_tracker_builds_the_task_again_around_its_function(ours):
    """With the fields that Django's class has: name and options of ours are still those that were given.

    A worker runs the new function under the old name, also for jobs that are stored by then.
    """
    add, calls = job(name="add-up", max_attempts=4, priority=3)(FUNCTIONS["add"]), []
    before = add.enqueue(0)

    @wraps(add.func)
    def watched(*args, **kwargs):
        calls.append(args)
        return add.func(*args, **kwargs)

    given = {field.name: getattr(add, field.name) for field in fields(Task)}
    again = type(add)(**given | {"func": watched})
    result = again.enqueue(1)
    run_due()
    result.refresh()
    before.refresh()

    assert (before.return_value, result.return_value, calls) == (0, 1, [(0,), (1,)])
    assert (again.job_name, again.priority, again.max_attempts) == ("add-up", 3, 4)


def test_a_monitor_writes_down_what_it_hears_and_enqueues_it_again(ours, define):
    records = []

    def record(task_result, **_):
        task = task_result.task
        records.append(
            json.loads(
                json.dumps(
                    {
                        "path": task.module_path,
                        "backend": task_result.backend,
                        "id": task_result.id,
                        "status": task_result.status,
                        "queue_name": task.queue_name,
                        "priority": task.priority,
                        "run_after": task.run_after,
                        "args": task_result.args,
                        "kwargs": task_result.kwargs,
                    }
                )
            )
        )

    task_enqueued.connect(record)
    try:
        define("give").using(priority=2, queue_name="mail").enqueue((1,), a=None)
    finally:
        task_enqueued.disconnect(record)

    [kept] = records
    assert (kept["status"], kept["run_after"]) == ("READY", None)
    task = import_string(kept["path"])
    assert isinstance(task, Task)
    options = {name: kept[name] for name in ("backend", "priority", "queue_name")}
    again = task.using(**options).enqueue(*kept["args"], **kept["kwargs"])
    one, other = (task_backends[kept["backend"]].get_result(each) for each in (kept["id"], again.id))
    assert (one.args, one.kwargs, one.task) == (other.args, other.kwargs, other.task)


def test_a_page_shows_every_field_that_django_has(ours, define):
    result = define("add").enqueue(1)

    read = result.task.get_result(result.id)

    for each in (result, read, copy.copy(read), copy.deepcopy(read), pickle.loads(pickle.dumps(read))):  # noqa: S301
        assert {field.name: getattr(each, field.name) for field in fields(TaskResult)} == {
            field.name: getattr(result, field.name) for field in fields(TaskResult)
        }


def test_a_task_that_only_an_admin_module_leads_to_is_found(settings, monkeypatch, tmp_path):
    """A worker imports admin modules, too, as every process of a project with Django's admin does."""
    monkeypatch.setattr(registry._registry, "_tasks", {})
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "filling_x"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "runner.py").write_text("import django_backwave\n@django_backwave.job\ndef fill(): ...\n")
    (package / "admin.py").write_text("from filling_x.runner import fill\n")
    try:
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "filling_x"]
        assert registry.resolve("filling_x.runner.fill")
        assert check_handlers() == []
    finally:
        for name in [name for name in sys.modules if name.startswith("filling_x")]:
            del sys.modules[name]
