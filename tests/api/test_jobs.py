"""@job: options, where it leads, copies for one enqueue, pickling."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import django
import pytest

from django_backwave import Backoff, BackWaveBackend, job, registry
from django_backwave.compat import TASKS_PACKAGE, InvalidTask, task, task_backends
from django_backwave.exceptions import InvalidJob
from django_backwave.jobs import OURS, BackWaveTask, JobOptions, adopt
from django_backwave.registry import resolve
from tests.api import handlers

OURS_PATH = "django_backwave.BackWaveBackend"
IMMEDIATE = {"BACKEND": f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend"}
WHERE = "tests.api.handlers.plain"


class OwnBackend(BackWaveBackend):
    """A backend that somebody derived from ours."""


def test_the_options_of_a_job_are_kept():
    task = handlers.send_receipt

    assert isinstance(task, BackWaveTask)
    assert (task.job_name, task.aliases) == ("send-receipt", ("shop.send_receipt",))
    assert (task.queue_name, task.priority, task.takes_context) == ("mail", 7, True)
    assert (task.max_attempts, task.backoff, task.lease) == (5, Backoff(base=1, cap=9), 90.0)


def test_a_job_without_options_has_defaults():
    task = handlers.echo

    assert (task.job_name, task.aliases) == ("tests.api.handlers.echo", ())
    assert (task.queue_name, task.priority, task.takes_context) == ("default", 0, False)
    assert (task.max_attempts, task.backoff, task.lease) == (10, Backoff(), None)


def test_django_still_knows_the_function_by_its_own_name():
    """Django's log lines show the module path, whatever name is stored."""
    assert handlers.send_receipt.name == "send_receipt"
    assert handlers.send_receipt.module_path == "tests.api.handlers.send_receipt"


def test_the_function_can_be_called_as_it_is():
    assert handlers.echo.call(1, a=2) == [(1,), {"a": 2}]


@pytest.mark.parametrize(
    ("error", "final"),
    [(OSError(), False), (ConnectionError(), False), (TimeoutError(), True), (ValueError(), True)],
)
def test_give_up_on_wins_over_retry_on(error, final):
    """TimeoutError is an OSError, and ends the job all the same; what is not named is not retried."""
    assert handlers.send_receipt.is_final(error) is final


@pytest.mark.parametrize("error", [ValueError(), SystemExit()])
def test_every_exception_is_retried_by_default(error):
    assert handlers.echo.is_final(error) is False


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError) as caught:
        job(max_atempts=3)(handlers.plain)

    assert str(caught.value) == (
        f"{WHERE} has the unknown option 'max_atempts'. The options are: priority, queue_name, "
        "backend, name, aliases, max_attempts, backoff, retry_on, give_up_on, lease, timeout, atomic, "
        "key, on_conflict, unique_for, schema, accepts, takes_context."
    )
    assert resolve(WHERE) is None


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("run_after", "using(run_after=...)"),
        ("expires", "using(expires=...)"),
        ("job_name", "name=..."),
    ],
)
def test_what_is_no_option_of_the_decorator_has_its_place_named(option, instead):
    with pytest.raises(TypeError) as caught:
        job(**{option: None})(handlers.plain)

    assert str(caught.value) == f"@job of {WHERE} takes no option {option!r}. Write {instead}."


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "The job name of F must have 1 to 255 characters, got 0: ''."),
        ({"name": "x" * 256}, "The job name of F must have 1 to 255 characters, got 256: 'xxx"),
        ({"name": "a\0b"}, "The job name of F must be plain text, got: NUL character ('a\\x00b')."),
        (
            {"name": "\ud800"},
            "The job name of F must be plain text, got: Lone surrogate ('\\ud800')",
        ),
        ({"name": 7}, "The job name of F must be a string, got 7. Choose one with @job(name=...)."),
        ({"aliases": "old"}, "aliases of F must be a list or tuple of former names, got 'old'."),
        ({"aliases": [""]}, "The job name of aliases of F must have 1 to 255 characters, got 0"),
        ({"queue_name": "q" * 101}, "The queue name of F must have 1 to 100 characters, got 101"),
        ({"queue_name": ""}, "The queue name of F must have 1 to 100 characters, got 0: ''."),
        ({"queue_name": "\0"}, "The queue name of F must be plain text, got: NUL character"),
        ({"queue_name": ["mail"]}, "The queue name of F must be a string, got ['mail']."),
        (
            {"max_attempts": 0},
            "max_attempts of F must be a whole number from 1 to 2,147,483,647, got",
        ),
        ({"max_attempts": 2**31}, "max_attempts of F must be a whole number from 1 to"),
        ({"max_attempts": 3.0}, "max_attempts of F must be a whole number from 1 to"),
        ({"max_attempts": True}, "max_attempts of F must be a whole number from 1 to"),
        ({"backoff": 2}, "backoff of F must be a Backoff, got 2. For example: Backoff(base=2,"),
        ({"retry_on": "OSError"}, "retry_on of F must be exception classes, got 'OSError'. For"),
        (
            {"give_up_on": [OSError()]},
            "give_up_on of F must be exception classes, got [OSError()].",
        ),
        (
            {"lease": 0.5},
            "lease of F must be from 1 to 1,000,000,000 seconds or a timedelta, got 0.5",
        ),
        ({"lease": timedelta(0)}, "lease of F must be from 1 to"),
        ({"lease": float("nan")}, "lease of F must be from 1 to"),
        ({"lease": float("inf")}, "lease of F must be from 1 to"),
        ({"lease": "60"}, "lease of F must be from 1 to"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(options, told):
    """At import, with the function's name; nothing is registered."""
    with pytest.raises(InvalidJob) as caught:
        job(**options)(handlers.plain)

    assert str(caught.value).startswith(told.replace(" F ", f" {WHERE} "))
    assert resolve(WHERE) is None


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (handlers.generator, {}, "is a generator function: a call of it would run nothing."),
        (
            handlers.plain,
            {"priority": 101},
            "priority must be a whole number between -100 and 100.",
        ),
        (handlers.plain, {"takes_context": True}, "Task takes context but does not have a first"),
        (lambda: None, {"name": "x"}, None),
    ],
)
def test_djangos_rules_for_tasks_hold(function, options, told):
    if told is None:

        def function(): ...

        told = "Task function must be defined at a module level."
    with pytest.raises(InvalidTask) as caught:
        job(**options)(function)

    assert told in str(caught.value)


@pytest.mark.parametrize("thing", [handlers.echo, 7])
def test_a_job_is_made_of_a_function(thing):
    with pytest.raises(TypeError, match="A job is made of a function, got "):
        job(thing)


@pytest.mark.parametrize(
    ("tasks", "alias"),
    [
        ({"default": IMMEDIATE}, OURS),
        ({"default": {"BACKEND": OURS_PATH}}, "default"),
        ({"default": IMMEDIATE, "own": {"BACKEND": OURS_PATH}}, "own"),
        ({"default": IMMEDIATE, "own": {"BACKEND": f"{__name__}.OwnBackend"}}, "own"),
        ({"broken": {"BACKEND": "nowhere.Backend"}, "b": {"BACKEND": OURS_PATH}}, "b"),
        ({"b": {"BACKEND": OURS_PATH}, "a": {"BACKEND": OURS_PATH}}, "b"),
    ],
)
def test_a_job_leads_to_the_first_backend_of_ours(settings, tasks, alias):
    """Never to another vendor's; settings may change after the import."""
    settings.TASKS = tasks

    backend = handlers.echo.get_backend()

    assert isinstance(backend, BackWaveBackend)
    assert backend.alias == alias


def test_the_implicit_backend_allows_every_queue():
    handlers.echo.using(queue_name="any")


def test_a_backend_in_the_settings_says_which_queues_there_are(settings):
    settings.TASKS = {"default": {"BACKEND": OURS_PATH, "QUEUES": ["mail"]}}

    with pytest.raises(InvalidTask, match="Queue 'any' is not valid for backend"):
        handlers.echo.using(queue_name="any")


def test_plain_tasks_of_our_backend_are_jobs(settings, monkeypatch):
    """Their name is the module path."""
    monkeypatch.setattr(registry._registry, "_tasks", {})
    settings.TASKS = {"default": {"BACKEND": OURS_PATH}}

    made = task(handlers.plain)

    assert isinstance(made, BackWaveTask)
    assert resolve(WHERE) is made


def test_djangos_decorator_takes_our_options(settings, monkeypatch):
    """Since Django 6.1, and with the backport; the decorator of Django 6.0 itself refuses them."""
    monkeypatch.setattr(registry._registry, "_tasks", {})
    settings.TASKS = {"default": {"BACKEND": OURS_PATH}}
    if (6, 0) <= django.VERSION < (6, 1):
        with pytest.raises(TypeError, match="unexpected keyword argument 'name'"):
            task(name="plain")
        return

    made = task(name="plain", max_attempts=3)(handlers.plain)

    assert (made.job_name, made.max_attempts) == ("plain", 3)
    with pytest.raises(TypeError, match="has the unknown option 'max_atempts'"):
        task(max_atempts=3)(handlers.plain)


def test_using_returns_a_changed_copy():
    at = datetime(2026, 3, 1, tzinfo=UTC)

    copy = handlers.send_receipt.using(
        priority=1,
        queue_name="slow",
        run_after=at,
        max_attempts=2,
        backoff=Backoff(base=3),
        lease=timedelta(minutes=5),
    )

    assert (copy.priority, copy.queue_name, copy.run_after) == (1, "slow", at)
    assert (copy.max_attempts, copy.backoff, copy.lease) == (2, Backoff(base=3), 300.0)
    assert (copy.job_name, copy.aliases) == ("send-receipt", ("shop.send_receipt",))
    assert copy.retry_on == handlers.send_receipt.retry_on
    assert handlers.send_receipt.priority == 7
    assert resolve("send-receipt") is handlers.send_receipt
    assert copy.using(priority=7).queue_name == "slow"


def test_using_with_another_backend_goes_there(settings):
    settings.TASKS = {"default": IMMEDIATE}

    copy = handlers.echo.using(backend="default")

    assert copy.get_backend() is task_backends["default"]


@pytest.mark.parametrize("option", ["name", "aliases", "retry_on", "takes_context", "atomic"])
def test_using_refuses_what_belongs_to_the_definition(option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        handlers.echo.using(**{option: None})


def test_using_checks_its_values():
    with pytest.raises(InvalidJob, match=r"lease of tests\.api\.handlers\.echo must be from 1"):
        handlers.echo.using(lease=0)


def test_a_task_survives_pickling():
    copy = handlers.send_receipt.using(priority=1, backoff=Backoff(base=3))

    for made in (copy, handlers.send_receipt):
        assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own bytes


def test_a_pickled_task_carries_only_what_was_changed():
    """So that it meets the options of the code that loads it, and needs no class that is local."""
    _, (path, changed) = handlers.send_receipt.using(priority=1).__reduce__()

    assert path == "tests.api.handlers.send_receipt"
    assert changed == {"priority": 1}


@pytest.mark.parametrize("path", ["tests.api.handlers.gone", "tests.api.handlers.plain"])
def test_a_pickled_task_whose_function_is_gone_says_so(path):
    gone = BackWaveTask.unchecked(func=handlers.plain, job_name="x")
    rebuild, _ = gone.__reduce__()

    with pytest.raises(ValueError, match=f"Expected '{path}' to point to a Task instance"):
        rebuild(path, {})


def test_tasks_compare_by_value():
    assert handlers.echo.using(priority=3) == replace(handlers.echo, priority=3)
    assert len({handlers.echo, handlers.echo.using(), handlers.echo.using(priority=3)}) == 2


def test_a_task_of_another_class_is_adopted_with_defaults(settings):
    settings.TASKS = {"default": IMMEDIATE, "own": {"BACKEND": OURS_PATH}}
    plain = task(handlers.plain).using(backend="own", run_after=None)

    own = adopt(plain)

    assert (own.job_name, own.max_attempts, own.backend) == (WHERE, 10, "own")
    assert adopt(own) is own


def test_the_listed_options_are_those_that_exist():
    """`JobOptions` is for type checkers and for the message; the class is what counts."""
    fields = set(BackWaveTask.__dataclass_fields__)

    elsewhere = {"func", "job_name", "run_after", "expires", "tags", "deadline"}
    assert set(JobOptions.__annotations__) - {"name"} == fields - elsewhere


def test_jobs_can_be_defined_before_apps_are_ready():
    """A module with jobs may be imported by somebody's models, with INSTALLED_APPS alone."""
    code = (
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django_backwave'], USE_TZ=True)\n"
        "from tests.api.handlers import send_receipt\n"
        "import django_backwave\n"
        "for name in django_backwave.__all__: getattr(django_backwave, name)\n"
        "from django.apps import apps\n"
        "print(send_receipt.job_name, apps.ready)\n"
    )

    shown = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert shown == "send-receipt False\n"


def test_a_coroutine_function_is_a_job_like_any_other():
    """Workers run it on their event loop."""
    task = job(handlers.coroutine)

    assert task.get_backend().supports_async_task
    assert resolve(task.job_name) is task
