"""A worker behind a pooler: it does without start-up parameters, whatever the refusal says."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connections

from django_backwave.core.states import JobState
from django_backwave.worker import connections as module
from tests.databases import parse_url
from tests.postgres import PostgresServer
from tests.worker.pooler import REFUSAL, Pooler
from tests.worker.support import enqueue, read, run_worker

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgres")]


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as server:
        yield server


@pytest.fixture
def aliases(server, monkeypatch):
    """Give the aliases "direct", to an empty database of ours on that server, and "pooled", by the pooler."""
    monkeypatch.setattr(module, "_unbounded", set())
    with Pooler(server.port) as pooler:
        for alias, changes in (("direct", {}), ("pooled", {"PORT": pooler.port})):
            connection = connections["default"].copy(alias)
            connection.settings_dict = connection.settings_dict | parse_url(server.url("postgres")) | changes
            connections[alias] = connection
        try:
            call_command("migrate", database="direct", run_syncdb=True, verbosity=0)
            yield pooler
        finally:
            for alias in ("direct", "pooled"):
                connections[alias].close()
                del connections[alias]


@pytest.mark.usefixtures("aliases")
def test_its_refusal_is_found_out_by_trial():
    assert module.takes_bounds("direct")
    assert not module.takes_bounds("pooled")


@pytest.mark.usefixtures("aliases")
def test_a_server_that_is_out_of_reach_says_nothing_of_a_pooler():
    connections["pooled"].settings_dict["PORT"] = 1

    assert module.takes_bounds("pooled")


def test_the_worker_works_without(server, aliases):
    job = enqueue("write", "/dev/null", "once", using="direct")
    url = server.url("postgres").replace(f":{server.port}/", f":{aliases.port}/")

    process = run_worker("--drain", BACKWAVE_TEST_DATABASE_URL=url, BACKWAVE_TEST_DATABASE_NAME="postgres")

    assert process.code == 0
    assert process.said("WARNING", "action=pooler_found", "database=default")
    assert not process.said(REFUSAL)
    assert read(job).job_state is JobState.SUCCEEDED
