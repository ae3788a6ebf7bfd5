"""A worker behind a pooler: it does without start-up parameters, whatever the refusal says."""

from __future__ import annotations

import struct

import pytest
from django.db import connections

from django_backwave.core.states import JobState
from django_backwave.worker import connections as module
from tests.postgres import PostgresServer
from tests.worker.proxy import Proxy
from tests.worker.servers import alias_on, environment
from tests.worker.support import enqueue, read, run_worker

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgres")]

REFUSAL = "Feature not supported: this proxy currently does not support command-line options"
FIELDS = f"SFATAL\0VFATAL\0C0A000\0M{REFUSAL}\0\0".encode()


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as server:
        yield server


@pytest.fixture
def pooler(server, monkeypatch):
    """Give a pooler before a server, which has the aliases "direct" and, by the pooler, "pooled"."""
    monkeypatch.setattr(module, "_unbounded", set())
    with Proxy(server.port) as proxy, alias_on(server, "direct"), alias_on(server, "pooled"):
        proxy.refuse(b"\0options\0", answer=b"E" + struct.pack("!I", len(FIELDS) + 4) + FIELDS)
        connections["pooled"].close()
        connections["pooled"].settings_dict["PORT"] = proxy.port
        yield proxy


@pytest.mark.usefixtures("pooler")
def test_its_refusal_is_found_out_by_trial():
    assert module.takes_bounds("direct")
    assert not module.takes_bounds("pooled")


@pytest.mark.usefixtures("pooler")
def test_a_server_that_is_out_of_reach_says_nothing_of_a_pooler():
    connections["pooled"].settings_dict["PORT"] = 1

    assert module.takes_bounds("pooled")


def test_the_worker_works_without(server, pooler):
    job = enqueue("write", "/dev/null", "once", using="direct")

    process = run_worker("--drain", **environment(server, pooler.port))

    assert process.code == 0
    assert process.said("WARNING", "action=pooler_found", "database=default")
    assert not process.said(REFUSAL)
    assert read(job).job_state is JobState.SUCCEEDED
