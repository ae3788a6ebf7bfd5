"""A database that is locked, restarted, cut off or silent under a working worker."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from django.db import connections, transaction

from django_backwave.core.states import JobState
from django_backwave.models import Job
from tests.factories import second_connection
from tests.postgres import PostgresServer
from tests.processes import journal, wait_until
from tests.store.races import locked, somebody_waits
from tests.worker.proxy import Proxy
from tests.worker.servers import alias_on, environment
from tests.worker.support import (
    enqueue,
    enqueue_many,
    outcomes,
    read,
    started,
    wait_for_lapse,
    wait_for_renewal,
    wait_for_state,
    worker,
)

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]

OWN = "own_server"


# Somebody else's locks.


@pytest.mark.only_on("postgres", "mysql")
def test_a_row_that_is_locked_delays_only_itself(tmp_path):
    """§9.1: the others' heartbeats go on, and the others of its batch are written."""
    with worker("--poll", "0.1", "--lease", "30") as process:
        blocked = started(tmp_path / "blocked")
        other = started(tmp_path / "other", lease_seconds=1.0)
        with locked(blocked.job):
            wait_for_renewal(other.job)
            wait_for_renewal(other.job)
            blocked.go()
            other.go()
            wait_for_state(other.job, JobState.SUCCEEDED)
            assert read(blocked.job).job_state is JobState.RUNNING
        row = wait_for_state(blocked.job, JobState.SUCCEEDED)
        process.wait_for(f"job={blocked.job.pk}", "outcome=succeeded")

    assert (row.attempt, outcomes(row)) == (1, [(1, "succeeded")])
    assert not process.said("action=database_trouble")


@pytest.mark.only_on("sqlite")
def test_a_database_that_somebody_locks_for_long_loses_no_result(tmp_path):
    """§9.4: SQLite has one lock for all. Results are kept until it is free."""
    with worker("--poll", "0.1", "--lease", "2") as process:
        held = started(tmp_path / "job", lease_seconds=30.0)
        with second_connection() as other, transaction.atomic(using=other):
            held.go()
            process.wait_for("action=database_trouble", "command=Settle", "database is locked")
        row = wait_for_state(held.job, JobState.SUCCEEDED)

    assert (row.attempt, outcomes(row)) == (1, [(1, "succeeded")])


@pytest.mark.only_on("postgres")
def test_a_stop_reaches_handlers_while_the_database_answers_nobody(tmp_path):
    """G11: the pump waits for an answer, for 30 s at most, and the time to stop in is running."""
    with worker("--poll", "0.1", "--shutdown-timeout", "1") as process:
        held = started(tmp_path / "job", "hold_obediently")
        with second_connection() as other, transaction.atomic(using=other):
            with connections[other].cursor() as cursor:
                cursor.execute(f"LOCK TABLE {Job._meta.db_table}")
            wait_until(somebody_waits)
            process.send(signal.SIGTERM)
            assert process.wait(deadline=25) == 0

    assert process.said("action=worker_stopped", "stuck=0"), str(process)
    assert read(held.job).job_state is JobState.RUNNING  # nobody could write that it was handed back


# A server of these tests' own, that they may stop.


@pytest.fixture(scope="module")
def server():
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own(server):
    """Give the alias of an empty database of ours on that server."""
    with alias_on(server, OWN) as alias:
        yield alias


@pytest.mark.only_on("postgres")
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts_under_a_worker_loses_nothing(tmp_path, server, own, mode):
    """G2: results are kept and written as soon as it is back. "immediate" is a crash."""
    file = tmp_path / "journal"
    with worker("--poll", "0.1", **environment(server)) as process:
        held = started(tmp_path / "job", using=own)
        connections[own].close()
        server.stop(mode)
        held.go()
        process.wait_for("action=database_trouble")
        server.start()

        row = wait_for_state(held.job, JobState.SUCCEEDED)
        assert (row.attempt, outcomes(row)) == (1, [(1, "succeeded")])
        after = enqueue("write", file, "after", using=own)
        wait_for_state(after, JobState.SUCCEEDED)
        process.wait_for("action=database_back")
        process.send(signal.SIGTERM)
        assert process.wait() == 0

    assert journal(file) == ["after"]
    assert not process.said("Traceback")


@pytest.mark.only_on("postgres")
def test_a_worker_that_is_cut_off_for_longer_than_its_lease_goes_on_afterwards(tmp_path, server, own):
    """G2, G4, G9: its handler learns that the lease is lost, its late result is refused, nothing is lost."""
    file = tmp_path / "journal"
    with (
        Proxy(server.port) as proxy,
        worker("--poll", "0.1", "--lease", "4", **environment(server, proxy.port)) as process,
    ):
        held = started(tmp_path / "job", "watch_lease", using=own)
        proxy.cut()
        enqueue_many("write", [(file, str(number)) for number in range(20)], using=own)
        held.wait_for("ended 1")
        process.wait_for("action=database_trouble")
        process.wait_for("action=heartbeat_failed")
        wait_for_lapse(held.job)
        held.go()
        proxy.restore()

        wait_for_state(held.job, JobState.SUCCEEDED)
        process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale")
        wait_until(lambda: len(journal(file)) == 20)

    assert outcomes(held.job) == [(1, "abandoned"), (2, "succeeded")]
    assert Counter(journal(file)) == {str(number): 1 for number in range(20)}


@pytest.mark.only_on("postgres")
def test_a_worker_whose_connections_fall_silent_stops_its_handlers_by_its_own_clock(tmp_path, server, own):
    """G9, G10: nobody answers, and nobody tells; afterwards it goes on by itself."""
    with (
        Proxy(server.port) as proxy,
        worker("--poll", "0.1", "--lease", "1", **environment(server, proxy.port)) as process,
    ):
        held = started(tmp_path / "job", "watch_lease", using=own)
        proxy.hold()
        held.wait_for("ended 1")
        wait_for_lapse(held.job)
        held.go()
        proxy.restore()

        row = wait_for_state(held.job, JobState.SUCCEEDED)
        process.wait_for(f"job={held.job.pk}", "attempt=1", "outcome=stale")

    assert outcomes(row) == [(1, "abandoned"), (2, "succeeded")]
