"""Options of jobs: those of Django's decorator, of ours, and the OPTIONS of an alias in TASKS."""

from __future__ import annotations

from datetime import timedelta

import django
import pytest

from django_backwave import Backoff, job
from django_backwave.compat import InvalidTaskBackend, task
from django_backwave.exceptions import InvalidJob
from django_backwave.models import Job
from tests.contract.conftest import FUNCTIONS, OURS, PATHS

#: On Django 6.0 its decorator takes no option of a backend's own.
DECORATORS = [job] if (6, 0) <= django.VERSION < (6, 1) else [job, task]
GIVEN = {
    "name": "add-up",
    "max_attempts": 3,
    "backoff": Backoff(base=5),
    "timeout": timedelta(minutes=2),
    "lease": 30,
    "atomic": True,
}
DEFAULTS = {"max_attempts": 4, "backoff": Backoff(cap=60), "lease": timedelta(minutes=5), "timeout": 90}


def alias(**options):
    return {"BACKEND": OURS, "QUEUES": [], "OPTIONS": options}


@pytest.fixture(params=DECORATORS, ids=lambda decorator: decorator.__name__)
def decorate(request):
    """Return one decorator after the other, applied to a handler with options."""

    def decorate(handler="add", **options):
        return request.param(**options)(FUNCTIONS[handler])

    return decorate


def test_both_decorators_take_our_options(ours, decorate):
    decorate(**GIVEN).enqueue(1)

    row = Job.objects.get()
    assert (row.name, row.max_attempts, row.backoff_base) == ("add-up", 3, 5.0)
    assert (row.timeout_seconds, row.lease_seconds) == (120.0, 30.0)


@pytest.mark.parametrize("option", ["max_atempts", "retries", "keys"])
def test_an_option_that_does_not_exist_is_named_when_it_is_given(ours, decorate, option):
    with pytest.raises(TypeError, match=option):
        decorate(**{option: 3})


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_attempts", 0), ("backoff", 2), ("timeout", "1m"), ("lease", 0), ("atomic", 1), ("name", "")],
)
def test_a_value_that_cannot_be_used_is_told_when_it_is_given(ours, decorate, option, value):
    with pytest.raises(InvalidJob, match="name" if option == "name" else f"^{option} of tests"):
        decorate(**{option: value})


def test_an_alias_has_defaults_for_its_jobs(settings, db, decorate):
    settings.TASKS = {"default": alias(**DEFAULTS)}

    decorate().enqueue(1)
    decorate("give", max_attempts=1, timeout=None).enqueue()

    one, other = Job.objects.order_by("pk")
    assert (one.max_attempts, one.backoff_cap, one.lease_seconds, one.timeout_seconds) == (4, 60, 300, 90)
    assert (other.max_attempts, other.timeout_seconds, other.lease_seconds) == (1, None, 300)


def test_each_alias_has_its_own(settings, db):
    settings.TASKS = {"default": alias(max_attempts=2), "slow": alias(max_attempts=9)}
    add = task(FUNCTIONS["add"])

    assert add.max_attempts == 2
    assert task(backend="slow")(FUNCTIONS["give"]).max_attempts == 9
    # What a job has, it keeps: a copy for one enqueue changes only what it names.
    assert add.using(backend="slow").max_attempts == 2


def test_a_task_of_another_vendor_gets_those_of_the_alias_that_it_is_sent_to(settings, db):
    settings.TASKS = {"default": {"BACKEND": PATHS["dummy"]}, "ours": alias(max_attempts=2)}

    task(FUNCTIONS["add"]).using(backend="ours").enqueue(1)

    assert Job.objects.get().max_attempts == 2


def test_options_of_another_vendor_are_not_read(settings, db):
    settings.TASKS = {"default": {"BACKEND": PATHS["dummy"], "OPTIONS": {"theirs": 1}}, "ours": alias()}

    task(FUNCTIONS["add"]).using(backend="ours").enqueue(1)

    assert Job.objects.get().max_attempts == 10


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"retries": 3},
            r"TASKS\['default'\]\['OPTIONS'\] has the unknown option 'retries'",
        ),
        (
            {"lease": "1m"},
            r"lease of TASKS\['default'\]\['OPTIONS'\] must be from 1 to",
        ),
        ({"backoff": {"base": 2}}, "must be a Backoff, got {'base': 2}. For example: Backoff"),
    ],
)
def test_wrong_options_of_an_alias_stop_the_import_of_its_jobs(settings, db, decorate, options, told):
    settings.TASKS = {"default": alias(**options)}

    with pytest.raises(InvalidTaskBackend, match=told):
        decorate()
