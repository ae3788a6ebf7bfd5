"""Discovery: handlers come from modules that code and settings name."""

from __future__ import annotations

import sys
import textwrap
import threading

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_backwave import discovery, registry


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Let nothing that a test registers or discovers outlive it."""
    monkeypatch.setattr(discovery, "_done_for", None)
    monkeypatch.setattr(registry._registry, "_tasks", dict(registry._registry._tasks))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def shop(tmp_path, monkeypatch, settings):
    """Return a function that writes a module of the installed app `shop_x`."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_x").mkdir()

    def write(name: str, source: str) -> None:
        (tmp_path / "shop_x" / f"{name}.py").write_text(textwrap.dedent(source))

    write("__init__", "")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "shop_x"]
    return write


JOB = """
from django_backwave import job

@job
def pay(): ...
"""


def test_jobs_and_tasks_of_every_app_are_imported(shop):
    shop("jobs", JOB)
    shop("tasks", JOB.replace("pay", "ship"))

    found = discovery.discover()

    assert found == ["tests.app.jobs", "shop_x.jobs", "shop_x.tasks"]
    assert registry.resolve("tests.app.jobs.add") is not None
    assert registry.resolve("shop_x.jobs.pay") is not None
    assert registry.resolve("shop_x.tasks.ship") is not None


def test_further_modules_come_from_the_settings(shop, settings):
    shop("receipts", JOB)
    settings.BACKWAVE = {"MODULES": ["shop_x.receipts"]}

    discovery.discover()

    assert registry.resolve("shop_x.receipts.pay") is not None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import shop_x.nowhere", "ModuleNotFoundError: No module named 'shop_x.nowhere'"),
        ("raise KeyError('SECRET')", "KeyError: 'SECRET'"),
        ("def", "SyntaxError: invalid syntax (jobs.py, line 1)"),
    ],
)
def test_a_failing_import_is_raised_with_the_modules_name(shop, line, told):
    """A worker that served only half of the handlers would be worse than none."""
    shop("jobs", line)

    with pytest.raises(ImportError) as caught:
        discovery.discover()

    assert str(caught.value) == (
        "The module 'shop_x.jobs', which may define jobs, failed while it was imported: " + told
    )
    assert caught.value.name == "shop_x.jobs"


def test_a_module_named_in_the_settings_must_exist(settings):
    settings.BACKWAVE = {"MODULES": ["nowhere.jobs"]}

    with pytest.raises(ImportError, match=r"The module 'nowhere\.jobs', .*No module named 'nowhere'"):
        discovery.discover()


def test_one_module_is_not_taken_for_a_list_of_letters(settings):
    settings.BACKWAVE = {"MODULES": "shop.receipts"}

    with pytest.raises(ImproperlyConfigured, match=r"must be a list of module names, got 'shop\."):
        discovery.discover()


def test_tasks_of_other_backends_are_taken_up_with_defaults(shop):
    """`using(backend=...)` may send them to ours, and then a worker must know them."""
    shop(
        "tasks",
        """
        from django_backwave.compat import task

        @task(priority=0)
        def pay(): ...
        """,
    )

    discovery.discover()

    task = registry.resolve("shop_x.tasks.pay")
    assert (task.job_name, task.max_attempts) == ("shop_x.tasks.pay", 10)


def test_discover_once_imports_once(shop, monkeypatch):
    """Threads that ask at the same time wait for the one that imports."""
    runs = []
    discover = discovery.discover
    monkeypatch.setattr(discovery, "discover", lambda: runs.append(discover()))

    threads = [threading.Thread(target=discovery.discover_once) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(runs) == 1


def test_discover_once_tries_again_after_a_failure(shop):
    shop("jobs", "1 / 0")
    with pytest.raises(ImportError):
        discovery.discover_once()
    shop("jobs", f"# mended, and longer than before{JOB}")

    discovery.discover_once()

    assert registry.resolve("shop_x.jobs.pay") is not None


def test_a_module_that_discovers_while_it_is_imported_does_not_hang(shop):
    shop("jobs", f"from django_backwave import discovery\ndiscovery.discover_once(){JOB}")

    discovery.discover_once()

    assert registry.resolve("shop_x.jobs.pay") is not None
