"""``backwave_status``: what it shows, and when it ends with 1."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.heartbeat import announce
from django_backwave.store.overview import overview
from tests.factories import claimed, ready

pytestmark = pytest.mark.django_db


def status(*arguments: str) -> tuple[str, str, int]:
    """Run the command; return what it printed, its complaints, and its exit code."""
    out, err, code = StringIO(), StringIO(), 0
    try:
        call_command("backwave_status", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as end:
        code = int(str(end.code))
    return out.getvalue(), err.getvalue(), code


def live_worker(**changes: Any) -> None:
    values: dict[str, Any] = {
        "name": "host:1:abc",
        "host": "host",
        "pid": 1,
        "started_at": datetime.now(UTC),
        "queues": None,
        "names": ["tests.app.jobs.add"],
        "concurrency": 10,
        "version": "0.1.0",
        "using": "default",
    }
    announce(**{**values, **changes})


def ended(state: JobState, **options: Any) -> Job:
    job = ready(now=None, **options)
    Job.objects.filter(pk=job.pk).update(state=state.value, finished_at=datetime.now(UTC))
    return job


def test_an_empty_database_has_nothing_to_show():
    out, err, code = status()

    assert out == "No jobs.\n\nNo worker is alive.\n"
    assert (err, code) == ("", 0)


def test_each_queue_is_one_line():
    ready(now=None, queue="mail")
    ready(now=None, queue="mail", run_after=datetime.now(UTC) + timedelta(hours=1))
    claimed(now=None, queue="reports")
    ended(JobState.DEAD_LETTERED, queue="mail")
    ended(JobState.SUCCEEDED, queue="mail")

    found = {one.queue: one for one in overview(using="default").queues}

    mail, reports = found["mail"], found["reports"]
    assert (mail.ready, mail.due, mail.running, mail.dead_lettered) == (2, 1, 0, 1)
    assert mail.oldest_due_age is not None
    assert mail.oldest_due_age >= 0
    assert (reports.ready, reports.due, reports.running, reports.oldest_due_age) == (0, 0, 1, None)
    lines = status()[0].splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["queue", "mail", "reports"]


def test_a_queue_whose_name_ends_in_a_space_can_be_told():
    ready(now=None, queue="mail ")

    assert "'mail '" in status()[0]


def test_what_nobody_serves_is_named():
    ready(now=None, queue="mail", name="shop.gone")
    live_worker(queues=["reports"])

    out, _, code = status()

    assert "No live worker serves the queue: mail" in out
    assert "No live worker serves the job name: shop.gone" in out
    assert "host:1:abc  reports" in out
    assert code == 0


def test_a_worker_of_all_queues_serves_each():
    ready(now=None, queue="mail", name="tests.app.jobs.add")
    live_worker()

    out, err, code = status("--require-served")

    assert "No live worker" not in out
    assert (err, code) == ("", 0)


def test_a_silent_worker_serves_nothing():
    ready(now=None, queue="mail", name="tests.app.jobs.add")
    live_worker(now=datetime.now(UTC) - timedelta(minutes=5))

    _, err, code = status("--require-served")

    assert "Queue mail: no live worker serves it." in err
    assert "Job name tests.app.jobs.add: no live worker serves it." in err
    assert code == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-due-age", "3600"], r"Queue mail: a job has been due for 72\d\d s\."),
        (["--max-due", "0"], r"Queue mail: jobs due: 1\."),
        (["--max-dead", "0"], r"Queue mail: jobs dead-lettered or quarantined: 1\."),
    ],
)
def test_an_exceeded_threshold_ends_with_1(arguments, told):
    ready(now=None, queue="mail", run_after=datetime.now(UTC) - timedelta(hours=2))
    ended(JobState.QUARANTINED, queue="mail")

    _, err, code = status(*arguments)

    assert re.search(told, err)
    assert code == 1


def test_thresholds_that_hold_end_with_0():
    ready(now=None, queue="mail")

    assert status("--max-due-age", "60", "--max-due", "1", "--max-dead", "0")[2] == 0


def test_json_has_it_all():
    ready(now=None, queue="mail")
    live_worker()

    out, _, code = status("--json", "--max-due", "0")

    found = json.loads(out)
    assert found["queues"][0]["queue"] == "mail"
    assert found["workers"][0]["names"] == ["tests.app.jobs.add"]
    assert found["problems"] == ["Queue mail: jobs due: 1."]
    assert code == 1


def test_an_unknown_database_is_refused():
    with pytest.raises(
        CommandError, match="There is no database 'nope' in DATABASES; there are: default, other"
    ):
        call_command("backwave_status", database="nope")
