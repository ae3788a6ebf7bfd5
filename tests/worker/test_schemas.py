"""A worker runs no job whose schema its code does not take: it hands it back, like an unknown name."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from django_backwave import registry
from django_backwave.context import StopSwitch
from django_backwave.core.outcome import Succeeded, Unroutable
from django_backwave.core.states import JobState
from django_backwave.jobs import BackWaveTask
from django_backwave.store.operate import requeue
from django_backwave.worker.execution import Execution
from tests.core.bench import claimed
from tests.factories import ready
from tests.processes import journal
from tests.worker import support
from tests.worker.support import outcomes, read, wait_for_state

NAME = "shop.send_receipt"


def handler():
    return "ran"


async def coroutine():
    return "ran"


def must_not_run():
    raise AssertionError("it has started")


@pytest.fixture
def attempt(monkeypatch):
    """Return a function that runs an attempt at a job with a schema, and returns its report."""

    def run(function, schema, *, of_job, accepts=(), payload='{"args":[],"kwargs":{}}'):
        task = BackWaveTask.unchecked(func=function, job_name=NAME, schema=schema, accepts=accepts)
        monkeypatch.setattr(registry, "resolve", {NAME: task}.get)
        job = claimed(name=NAME, payload=payload, schema=of_job)
        switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
        execution = Execution(job, "host:1:a", switch, claimed_at=0.0, using="default", completed=bool)
        return asyncio.run(execution.arun()) if asyncio.iscoroutinefunction(function) else execution.run()

    return run


@pytest.mark.parametrize("function", [handler, coroutine])
@pytest.mark.parametrize(
    ("schema", "accepts", "of_job"),
    [
        (None, (), None),
        ("a", (), "a"),
        ("a", ("b",), "b"),
        ("a", ("b", None), None),
        (None, ("a",), "a"),
    ],
)
def test_what_the_code_takes_runs(attempt, function, schema, accepts, of_job):
    report = attempt(function, schema, of_job=of_job, accepts=accepts)

    assert report.outcome == Succeeded('"ran"')


@pytest.mark.parametrize(
    ("schema", "accepts", "of_job", "reason"),
    [
        ("a", (), "b", "stored with schema 'b', but {} takes only jobs stored with schema 'a'; "),
        (
            "a",
            ("c",),
            None,
            "without a schema, but {} takes only jobs stored with schema 'a' or with schema 'c'",
        ),
        (None, (), "b", "stored with schema 'b', but {} takes only jobs stored without a schema; "),
        ("a", (), "A", "stored with schema 'A', but {} takes only jobs stored with schema 'a'; "),
    ],
)
def test_anything_else_is_unroutable_and_both_are_named(attempt, schema, accepts, of_job, reason):
    report = attempt(must_not_run, schema, of_job=of_job, accepts=accepts)

    assert isinstance(report.outcome, Unroutable)
    assert reason.format("tests.worker.test_schemas.must_not_run") in report.outcome.reason
    assert report.outcome.reason.endswith(f"use code that takes it, for example with accepts=({of_job!r},)")
    assert report.started_after is None


def test_arguments_of_another_schema_are_not_even_looked_at(attempt):
    report = attempt(must_not_run, "a", of_job="b", payload="{")

    assert isinstance(report.outcome, Unroutable)
    assert "schema 'b'" in report.outcome.reason


# Real workers.


def code(schema, *accepts, **environment):
    """Return what makes a worker one with this version of the code."""
    return {
        "BACKWAVE_TEST_MODULES": "tests.worker.schemas",
        "BACKWAVE_TEST_SCHEMA": schema,
        "BACKWAVE_TEST_ACCEPTS": " ".join(accepts),
        **environment,
    }


def stored(schema, file):
    """Return a job as the code with this schema has enqueued it."""
    return ready(
        now=None, name="receipt", payload=json.dumps({"args": [str(file)], "kwargs": {}}), schema=schema
    )


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_in_a_rolling_deploy_each_job_runs_where_it_is_understood(tmp_path):
    """The old worker meets a new job first, and hands it back until the new worker has come.

    It is frozen then, for both would look when the job is due again, and which comes first is mere luck.
    """
    file = tmp_path / "journal"
    with support.worker("--poll", "0.1", **code("receipt/1")) as old:
        new_job = stored("receipt/2", file)
        old.wait_for(f"job={new_job.pk}", "outcome=unroutable", "next=released")
        old.send(signal.SIGSTOP)
        try:
            with support.worker("--poll", "0.1", **code("receipt/2", "receipt/1")):
                row = wait_for_state(new_job, JobState.SUCCEEDED)
        finally:
            old.send(signal.SIGCONT)
        old_job = stored("receipt/1", file)
        wait_for_state(old_job, JobState.SUCCEEDED)

    assert (row.output, row.failures) == ("read as receipt/2", 0)
    assert outcomes(new_job)[0] == (1, "unroutable")
    assert journal(file) == ["receipt/2 ran receipt/2", "receipt/1 ran receipt/1"]


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_what_no_worker_understands_is_quarantined_and_runs_after_a_fix(tmp_path):
    file = tmp_path / "journal"
    job = stored("receipt/1", file)
    with support.worker("--poll", "0.1", **code("receipt/2", BACKWAVE_TEST_GRACE="0.5")):
        row = wait_for_state(job, JobState.QUARANTINED)

    assert row.cause == (
        "the job was stored with schema 'receipt/1', but tests.worker.schemas.receipt takes only jobs stored "
        "with schema 'receipt/2'; use code that takes it, for example with accepts=('receipt/1',)"
    )
    assert (row.failures, outcomes(job)) == (0, [(1, "unroutable")])
    assert journal(file) == []

    requeue([job.pk], using="default")
    assert support.run_worker("--drain", **code("receipt/2", "receipt/1")).code == 0
    assert (read(job).job_state, read(job).output) == (JobState.SUCCEEDED, "read as receipt/2")
    assert journal(file) == ["receipt/2 ran receipt/1"]
