"""The system checks: settings and handlers."""

from __future__ import annotations

import sys
import types
from datetime import timedelta

import pytest
from django.core.checks import run_checks

from django_backwave import conf, registry
from django_backwave.checks import check_handlers, check_settings
from django_backwave.checks.settings import RULES
from django_backwave.jobs import BackWaveTask


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Return a function that makes a module with a job; nothing of it outlives the test."""
    monkeypatch.setattr(registry._registry, "_tasks", {})
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def make(name: str, source: str = "", job_name: str = "") -> types.ModuleType:
        job = f"@django_backwave.job(name={job_name or name!r})\ndef pay(): ...\n"
        path = tmp_path.joinpath(*name.split("."))
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".py").write_text(f"import django_backwave\n{source}\n{job}")
        return path

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_defaults_pass():
    assert check_settings() == []


def test_the_defaults_obey_the_rules():
    """Every setting has a rule."""
    assert RULES.keys() == conf.DEFAULTS.keys()
    assert all(holds(conf.DEFAULTS[key]) for key, (holds, _) in RULES.items())


def test_the_checks_are_registered():
    ids = {message.id for message in run_checks()}

    assert "django_backwave.E001" not in ids


def test_unknown_keys_are_reported(settings):
    settings.BACKWAVE = {"MAX_PAYLOADS": 5}

    [error] = [message for message in run_checks() if message.id == "django_backwave.E001"]

    assert error.msg == "BACKWAVE has the unknown key 'MAX_PAYLOADS'."
    assert error.hint.startswith("The keys are: ALLOW_SEPARATE_TRANSACTION, AROUND, ")


@pytest.mark.parametrize("value", [None, [], "MODULES"])
def test_the_setting_must_be_a_dict(settings, value):
    settings.BACKWAVE = value

    [error] = check_settings()

    assert (error.id, error.msg) == (
        "django_backwave.E002",
        f"BACKWAVE must be a dict of settings, got {type(value).__name__}.",
    )
    assert check_handlers() == []


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("DATABASE", "nowhere", "an alias of DATABASES, or None"),
        ("DATABASE", ["default"], "an alias of DATABASES, or None"),
        ("MODULES", "shop.receipts", "a list of module names"),
        ("MODULES", [""], "a list of module names"),
        ("ALLOW_SEPARATE_TRANSACTION", 1, "True or False"),
        ("MAX_PAYLOAD", 0, "a positive number of bytes"),
        ("MAX_OUTPUT", True, "a positive number of bytes"),
        ("LEASE", 0.5, "at least one second, or a timedelta"),
        ("LEASE", timedelta(milliseconds=5), "at least one second, or a timedelta"),
        ("POLL", 0, "a positive number of seconds or a timedelta"),
        ("POLL", "1", "a positive number of seconds or a timedelta"),
        ("UNROUTABLE_GRACE", float("nan"), "a positive number of seconds or a timedelta"),
        ("UNROUTABLE_GRACE", None, "a positive number of seconds or a timedelta"),
        ("KEEP_DONE", timedelta(0), "a positive number of seconds, a timedelta, or None"),
        ("KEEP_DEAD", float("inf"), "a positive number of seconds, a timedelta, or None"),
    ],
)
def test_values_that_cannot_be_used_are_reported(settings, key, value, rule):
    settings.BACKWAVE = {key: value}

    [error] = check_settings()

    assert error.id == "django_backwave.E002"
    assert error.msg == f"BACKWAVE[{key!r}] must be {rule}, got {value!r}."
    assert error.hint == f"The default is {conf.DEFAULTS[key]!r}."


@pytest.mark.parametrize(
    "given",
    [
        {"DATABASE": "other", "MODULES": ("shop.receipts",)},
        {"LEASE": timedelta(minutes=1), "POLL": 0.1, "KEEP_DONE": None},
    ],
)
def test_values_that_can_be_used_pass(settings, given):
    settings.BACKWAVE = given

    assert check_settings() == []


def test_duplicate_names_are_reported(settings, module):
    settings.BACKWAVE = {"MODULES": ["one_x", "two_x"]}
    module("one_x", job_name="pay")
    module("two_x", job_name="pay")

    [error] = check_handlers()

    assert error.id == "django_backwave.E003"
    assert error.msg.startswith("Job name 'pay' is claimed by one_x.pay and by two_x.pay. Give one")


def test_a_module_that_fails_is_reported(settings, module):
    settings.BACKWAVE = {"MODULES": ["one_x"]}
    module("one_x", "1 / 0")

    [error] = check_handlers()

    assert error.id == "django_backwave.E004"
    assert error.msg == (
        "The module 'one_x', which may define jobs, failed while it was imported: "
        "ZeroDivisionError: division by zero"
    )


def test_a_function_that_discovery_does_not_reach_is_reported(settings, module):
    """The hint is the very line to add."""
    module("views_x")
    __import__("views_x")

    [warning] = check_handlers()

    assert warning.id == "django_backwave.W001"
    assert warning.msg == (
        "No worker finds the job 'views_x': discovery does not import the module 'views_x'."
    )
    assert warning.hint == ("Move it to a jobs module, or set BACKWAVE = {\"MODULES\": ['views_x']}.")
    settings.BACKWAVE = {"MODULES": ["views_x"]}
    assert check_handlers() == []


IMPORTS = [
    "import shop_x.receipts",
    "from shop_x.receipts import pay as other",
    "from . import receipts",
    "from .receipts import *",
]
BY_NAME = "from importlib import import_module; import_module('shop_x.receipts')"


@pytest.mark.parametrize(
    ("line", "early"),
    [*((line, early) for line in IMPORTS for early in (True, False)), (BY_NAME, False)],
)
def test_what_a_module_of_jobs_imports_is_reached(settings, module, line, early):
    """Whoever imported it first, for checks run in no fixed order."""
    settings.BACKWAVE = {"MODULES": ["shop_x.jobs"]}
    module("shop_x.receipts")
    module("shop_x.jobs", line)
    if early:
        __import__("shop_x.receipts")

    assert check_handlers() == []


def test_a_module_beside_is_not_reached(settings, module):
    """An empty `__init__` of a package of jobs imports nothing."""
    settings.BACKWAVE = {"MODULES": ["shop_x"]}
    module("shop_x.mail")
    __import__("shop_x.mail")

    assert [message.id for message in check_handlers()] == ["django_backwave.W001"]


def test_jobs_in_views_are_seen_though_nothing_has_imported_them(settings, module):
    settings.ROOT_URLCONF = "urls_x"
    module("urls_x", "urlpatterns = []")

    assert [message.id for message in check_handlers()] == ["django_backwave.W001"]


def test_a_broken_url_configuration_is_left_to_django(settings, module):
    settings.ROOT_URLCONF = "urls_x"
    module("urls_x", "1 / 0")

    assert check_handlers() == []


def test_a_module_without_source_is_no_obstacle(settings, module):
    """Somebody may define a job in the shell."""
    exec(  # noqa: S102
        "def pay(): ...", namespace := {"__name__": "shell_x"}
    )
    registry.register(BackWaveTask.unchecked(func=namespace["pay"], job_name="shell"))

    assert [message.id for message in check_handlers()] == ["django_backwave.W001"]
