"""``ON_ENQUEUE``: headers that the enqueuing process sends along."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import translation

from django_backwave import enqueue_many, hooks
from django_backwave.checks import check_settings
from django_backwave.exceptions import InvalidJob
from django_backwave.models import Job
from tests.api import hooks as ours
from tests.api.handlers import echo, send_receipt

HOOKS = "tests.api.hooks"


@pytest.fixture
def on_enqueue(settings):
    def use(*names):
        settings.BACKWAVE = {"ON_ENQUEUE": [f"{HOOKS}.{name}" for name in names]}

    return use


def headers_of(result):
    return Job.objects.get(pk=result.id).headers


@pytest.mark.django_db
def test_hooks_give_headers_by_the_task_and_their_surroundings(on_enqueue):
    on_enqueue("tenant", "language", "nothing")
    token = ours.TENANT.set("acme")
    try:
        with translation.override("de"):
            result = send_receipt.enqueue(7)
    finally:
        ours.TENANT.reset(token)

    assert headers_of(result) == {"tenant": "acme", "language": "de", "job": "send-receipt"}


@pytest.mark.django_db
def test_of_two_hooks_with_one_name_the_later_wins(on_enqueue):
    on_enqueue("tenant", "again")
    assert headers_of(echo.enqueue()) == {"tenant": "again"}


@pytest.mark.django_db
def test_many_jobs_get_the_same_headers_and_each_hook_is_asked_once(on_enqueue, monkeypatch):
    on_enqueue("language")
    asked = []
    hooks._resolved.cache_clear()
    monkeypatch.setattr(ours, "language", lambda task: asked.append(task) or {"n": len(asked)})

    results = enqueue_many(echo, [((n,), {}) for n in range(3)])

    hooks._resolved.cache_clear()
    assert [headers_of(result) for result in results] == [{"n": 1}] * 3
    assert asked == [echo]


@pytest.mark.django_db
def test_without_hooks_there_are_no_headers(on_enqueue):
    assert headers_of(echo.enqueue()) is None
    on_enqueue("nothing")
    assert headers_of(echo.enqueue()) is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "failed for tests.api.handlers.echo: LookupError: no tenant here. Nothing was enqueued."),
        ("no_dict", "must return a dict of headers or None, got ['tenant']"),
        ("no_json", "must return JSON, but gave: Unsupported type object"),
        ("long", "The headers of tests.api.handlers.echo are 5,0"),
    ],
)
def test_a_hook_that_fails_refuses_the_enqueue_by_name(on_enqueue, name, message):
    on_enqueue(name)

    for enqueue in (echo.enqueue, lambda: enqueue_many(echo, [((), {})])):
        with pytest.raises(InvalidJob) as caught:
            enqueue()
        assert f"{HOOKS}.{name}" in str(caught.value)
        assert message in str(caught.value)
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["ON_ENQUEUE", "AROUND"])
@pytest.mark.parametrize(
    "value",
    [
        f"{HOOKS}.tenant",
        [f"{HOOKS}.gone"],
        ["nowhere.at.all"],
        [f"{HOOKS}.NOT_CALLABLE"],
        [ours.tenant],
        {},
        [""],
    ],
)
def test_wrong_paths_are_found_by_the_check(settings, key, value):
    settings.BACKWAVE = {key: value}

    [error] = check_settings()
    assert error.id == "django_backwave.E002"
    assert error.msg.startswith(f"BACKWAVE[{key!r}] must be a list of dotted paths of callables")


@pytest.mark.django_db
@pytest.mark.parametrize("path", [f"{HOOKS}.gone", f"{HOOKS}.NOT_CALLABLE"])
def test_wrong_paths_are_told_where_they_are_used(settings, path):
    settings.BACKWAVE = {"ON_ENQUEUE": [path], "AROUND": [path]}

    with pytest.raises(ImproperlyConfigured, match=path):
        echo.enqueue()
    with pytest.raises(ImproperlyConfigured, match=path):
        hooks.around()


def test_hooks_are_imported_once_and_follow_the_settings(settings):
    settings.BACKWAVE = {"AROUND": [f"{HOOKS}.outer"]}
    first = hooks.around()
    assert hooks.around() is first
    settings.BACKWAVE = {"AROUND": []}
    assert hooks.around() == ()
    settings.BACKWAVE = {"AROUND": [f"{HOOKS}.inner", f"{HOOKS}.outer"]}
    assert [hook.path for hook in hooks.around()] == [f"{HOOKS}.inner", f"{HOOKS}.outer"]
