"""All or nothing: whatever happens between two writes of one transaction, neither or both are there."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from django.apps import apps
from django.db import connection

from django_backwave.store import failpoint
from tests.databases import child_environment
from tests.processes import wait_until
from tests.report import only_on_reason
from tests.store.crashes import packed, transactions

pytestmark = pytest.mark.django_db(transaction=True)

#: On PostgreSQL these are one statement each.
PORTABLE = ("claim:", "settle:")


class Crash(Exception):
    pass


def everything():
    """Return every byte of our tables and of the business."""
    models = [*apps.get_app_config("django_backwave").get_models(), *apps.get_app_config("app").get_models()]
    return {model.__name__: list(model._base_manager.order_by("pk").values()) for model in models}


def prepared(point):
    if connection.vendor == "postgresql" and point.startswith(PORTABLE):
        pytest.skip(only_on_reason(("sqlite", "mysql")))
    transaction = transactions()[point]
    return transaction, transaction.prepare()


def test_each_point_has_its_transaction():
    assert sorted(transactions()) == sorted(failpoint.POINTS)


def test_a_point_that_does_not_exist_cannot_be_armed():
    with pytest.raises(ValueError, match="no failpoint"):
        failpoint.arm("nowhere", bool)


@pytest.mark.parametrize("point", failpoint.POINTS)
def test_an_exception_between_two_writes_takes_all_back(point):
    """G5."""
    transaction, given = prepared(point)
    before = everything()

    def crash():
        raise Crash

    failpoint.arm(point, crash)
    try:
        with pytest.raises(Crash):
            transaction.run(given)
    finally:
        failpoint.disarm()
    assert everything() == before

    transaction.run(given)
    assert everything() != before


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("point", failpoint.POINTS)
def test_a_death_between_two_writes_takes_all_back(point):
    """G2, G5: as the kernel's memory killer brings it; the database is left to clean up by itself."""
    transaction, given = prepared(point)
    before = everything()

    child = subprocess.run(
        [sys.executable, "-m", "tests.store.crashes", point, packed(given)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert child.returncode == -signal.SIGKILL, child.stderr
    assert everything() == before

    def changes():
        transaction.run(given)  # which passes over what is locked until the server has cleaned up
        return everything() != before

    wait_until(changes)
