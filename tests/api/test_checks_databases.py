"""The system checks of databases and deployments: each message, and that good settings pass."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_backwave.checks import (
    check_databases,
    check_deployment,
    check_options,
    check_row_locks,
)
from django_backwave.compat import TASKS_PACKAGE

IMMEDIATE = f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend"
OURS = "django_backwave.BackWaveBackend"


def ids(messages: list[Any]) -> list[str]:
    return [message.id.removeprefix("django_backwave.") for message in messages]


@pytest.fixture
def options(monkeypatch):
    """Return a function that changes the OPTIONS of the jobs' database, for the checks only."""
    connection = connections["default"]

    def change(vendor: str, **given: Any) -> None:
        settings_dict = {**connection.settings_dict, "OPTIONS": given}
        monkeypatch.setattr(connection, "settings_dict", settings_dict)
        monkeypatch.setattr(connection, "vendor", vendor, raising=False)

    return change


def test_the_tests_own_databases_pass():
    assert check_databases() == []


def test_each_check_is_registered():
    given = {message.id for message in run_checks(include_deployment_checks=True)}

    assert not any(str(name).startswith("django_backwave.E") for name in given)


@pytest.mark.parametrize("mode", [None, "DEFERRED", "EXCLUSIVE"])
def test_sqlite_without_immediate_transactions_is_warned_of(options, mode):
    options("sqlite", **({"transaction_mode": mode} if mode else {}))

    [message] = check_databases()

    assert ids([message]) == ["W003"]
    assert '"transaction_mode": "IMMEDIATE"' in message.hint


@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate"])
def test_sqlite_with_immediate_transactions_passes(options, mode):
    options("sqlite", transaction_mode=mode)

    assert check_databases() == []


@pytest.mark.parametrize(
    ("vendor", "level", "warned"),
    [
        ("postgresql", None, False),
        ("postgresql", 2, False),  # psycopg's READ COMMITTED
        ("postgresql", 3, True),  # REPEATABLE READ
        ("postgresql", 4, True),  # SERIALIZABLE
        ("mysql", None, False),  # Django's default there is READ COMMITTED
        ("mysql", "READ COMMITTED", False),
        ("mysql", "repeatable read", True),
    ],
)
def test_a_stricter_isolation_level_is_warned_of(options, vendor, level, warned):
    options(vendor, **({"isolation_level": level} if level else {}))

    assert ids(check_databases()) == (["W004"] if warned else [])


@pytest.mark.parametrize(("seconds", "warned"), [(2.9, True), (3, False), (60, False)])
def test_a_short_lease_is_warned_of(settings, seconds, warned):
    settings.BACKWAVE = {"LEASE": seconds}

    messages = check_databases()

    assert ids(messages) == (["W002"] if warned else [])
    if warned:
        assert "BACKWAVE['LEASE'] is 2.9 s" in messages[0].msg


class NoMigrations:
    """A router that keeps our tables out of the database that it sends our writes to."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "django_backwave" else None


def test_a_router_that_allows_no_tables_is_an_error(settings):
    settings.DATABASE_ROUTERS = [NoMigrations()]

    [message] = check_databases()

    assert ids([message]) == ["E006"]
    assert "the routers allow no migration of django_backwave there" in message.msg


def test_a_server_without_skip_locked_is_an_error(monkeypatch):
    features = connections["default"].features
    monkeypatch.setattr(features, "has_select_for_update", True)
    monkeypatch.setattr(features, "has_select_for_update_skip_locked", False)

    assert ids(check_row_locks(databases=["default"])) == ["E007"]
    assert check_row_locks(databases=["other"]) == []
    assert check_row_locks(databases=None) == []


@pytest.mark.django_db
def test_the_servers_of_the_tests_know_skip_locked_or_have_no_row_locks():
    assert check_row_locks(databases=["default"]) == []


def test_wrong_options_of_our_backend_are_errors(settings):
    """Each for itself, so that one run of the check tells them all."""
    settings.TASKS = {
        "default": {"BACKEND": OURS, "OPTIONS": {"retries": 3, "max_attempts": 0, "timeout": 60}},
        "plain": {"BACKEND": OURS},
        "other": {"BACKEND": IMMEDIATE, "OPTIONS": {"theirs": 1}},
    }

    unknown, wrong = check_options()

    assert ids([unknown, wrong]) == ["E005", "E005"]
    assert unknown.msg == (
        "TASKS['default']['OPTIONS'] has the unknown option 'retries'. The options are: max_attempts, "
        "backoff, lease, timeout."
    )
    assert wrong.msg == (
        "max_attempts of TASKS['default']['OPTIONS'] must be a whole number from 1 to 2,147,483,647, got 0."
    )


def test_options_that_are_no_dict_are_an_error(settings):
    settings.TASKS = {"default": {"BACKEND": OURS, "OPTIONS": ["max_attempts"]}}

    [message] = check_options()

    assert message.msg == "TASKS['default']['OPTIONS'] must be a dict, got ['max_attempts']."


def test_a_backend_that_keeps_no_job_is_warned_of_in_deployment(settings):
    settings.TASKS = {"default": {"BACKEND": OURS}, "old": {"BACKEND": IMMEDIATE}}

    [message] = check_deployment()

    assert ids([message]) == ["W005"]
    assert message.msg == f"TASKS['old'] is {IMMEDIATE}, which runs tasks inside the request."


def test_djangos_own_default_is_no_leftover():
    assert check_deployment() == []


def test_debug_is_warned_of_in_deployment(settings):
    settings.DEBUG = True

    assert ids(check_deployment()) == ["W006"]
