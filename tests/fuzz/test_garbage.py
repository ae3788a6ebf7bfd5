"""Rows written by hand with garbage in every column: the worker lives, and runs the good jobs beside."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.urls import reverse

from django_backwave.core.states import JobState
from django_backwave.models import Job, Lease
from django_backwave.store.claim import Order, scan, take
from django_backwave.store.doctor import Limits, examine
from django_backwave.store.expire import expire, expire_waiting
from django_backwave.store.overview import overview
from django_backwave.store.retention import prunable
from tests.admin.conftest import staff
from tests.factories import STRANGER, WORKER, claimed, ready, report, send
from tests.fuzz.garbage import write
from tests.processes import journal, wait_until
from tests.worker import support

QUEUE = "garbage"
SUCCEEDED = JobState.SUCCEEDED.value
EARLIER = datetime(2020, 1, 1, tzinfo=UTC)

DEEP = "[" * 100_000

TEXTS = ["''", "' '", "'{'", "'💥'", "'''; DROP TABLE jobs; --'"]
PAYLOADS = [
    *TEXTS,
    "'null'",
    "'[]'",
    "'7'",
    "'NaN'",
    """'{"args":1,"kwargs":{}}'""",
    """'{"args":[],"kwargs":[]}'""",
    """'{"args":[]}'""",
    """'{"args":[1e999],"kwargs":{}}'""",
    r"""'{"args":["\\ud800"],"kwargs":{}}'""".replace("\\\\", "\\"),
    r"""'{"args":["\\u0000"],"kwargs":{}}'""".replace("\\\\", "\\"),
    f"'{DEEP}'",
    f"""'{{"args":[{"9" * 5000}],"kwargs":{{}}}}'""",
]
NUMBERS = ["-1", "0", "2147483647"]
FLOATS = ["-1", "0", "1e-300", "1e300", "-1e300"]
PRIORITIES = ["-32768", "32767"]
INSTANTS = ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"]

COLUMNS = {
    "name": TEXTS,
    "queue": TEXTS,
    "priority": PRIORITIES,
    "payload": PAYLOADS,
    "state": ["-1", "0", "7", "32767"],
    "enqueued_at": INSTANTS,
    "due_at": INSTANTS,
    "expires_at": INSTANTS,
    "max_attempts": NUMBERS,
    "backoff_base": FLOATS,
    "backoff_cap": FLOATS,
    "backoff_jitter": FLOATS,
    "lease_seconds": FLOATS,
    "timeout_seconds": FLOATS,
    "attempt": NUMBERS,
    "failures": NUMBERS,
    "worker": TEXTS,
    "lease_expires_at": INSTANTS,
    "started_at": INSTANTS,
    "cancel_requested_at": INSTANTS,
    "unroutable_since": INSTANTS,
    "finished_at": INSTANTS,
    "cause": TEXTS,
    "output": PAYLOADS,
    "progress": PAYLOADS,
    "headers": PAYLOADS,
}

#: What only one vendor takes, by kind of column. SQLite's columns hold values of any type.
OWN = {
    "postgresql": {
        "instants": [
            "'-infinity'",
            "'infinity'",
            "'4713-01-01 00:00:00 BC'",
            "'0001-01-01 00:00:00 BC'",
            "'10000-01-01'",
            "'294276-12-31'",
        ],
        "floats": ["'NaN'", "'Infinity'", "'-Infinity'"],
    },
    "sqlite": {
        "floats": ["9e999", "-9e999", "'many'", "x'ff'"],
        "numbers": ["9223372036854775807", "'many'", "1.5", "x'35'"],
        "instants": ["5", "1.5", "'never'", "x'ff'", "'2020-02-31 00:00:00'", "'0000-01-01 00:00:00'"],
        "texts": ["x'ff'", "CAST(x'ff' AS TEXT)", "5"],
        "payload": ["x'ff'", "CAST(x'ff' AS TEXT)", "5"],
    },
    "mysql": {
        "instants": ["'1000-01-01 00:00:00'", "'0000-00-00 00:00:00'", "'2020-00-01 00:00:00'"],
        "numbers": ["4294967295"],
    },
}

KINDS = {
    **dict.fromkeys(("name", "queue", "worker", "cause"), "texts"),
    **dict.fromkeys(("payload", "output", "progress", "headers"), "payload"),
    **dict.fromkeys(("max_attempts", "attempt", "failures", "priority", "state"), "numbers"),
    **{column: "floats" for column in COLUMNS if column.startswith("backoff") or column.endswith("_seconds")},
    **{column: "instants" for column in COLUMNS if column.endswith(("_at", "_since"))},
}


def garbage(column):
    """Return literals for a column of the database of this run."""
    return [*COLUMNS[column], *OWN[connection.vendor].get(KINDS.get(column, ""), ())]


def key(job):
    return job.pk if isinstance(job, Job) else job.job_id


def waiting():
    """Return a job that has been due for long."""
    return ready(now=None, queue=QUEUE, due_at=EARLIER)


def swept():
    """Return a job whose lease has lapsed long ago."""
    return claimed(worker=STRANGER, now=EARLIER)


def ended():
    """Return a job that has ended long ago."""
    return ready(state=JobState.SUCCEEDED.value, finished_at=EARLIER)


# Through every door that reads rows, column by column.


@pytest.mark.django_db
@pytest.mark.parametrize("column", COLUMNS)
def test_no_door_is_blocked_by_a_row(column):
    """Claims find the good job behind, and sweeps, reads and pages do not fail of garbage."""
    values = garbage(column)
    bad = [key(make()) for _ in values for make in (waiting, swept, ended)]
    written = [write(Job, job_id, column, values[number // 3]) for number, job_id in enumerate(bad)]
    good = ready(now=None, queue=QUEUE)
    assert any(written), "the database keeps all of these out: think of others"

    assert QUEUE in scan(None, using="default")
    ran = []
    while jobs := take(Order(QUEUE, 10, 10, 60.0), worker=WORKER, using="default").jobs:
        ran += [job.job_id for job in jobs]
        send(*map(report, jobs), now=None)
    assert good.pk in ran
    assert Job.objects.values_list("state", flat=True).get(pk=good.pk) == SUCCEEDED

    assert {each.key.job_id for each in expire(jitter=lambda: 0.5, using="default")} <= set(bad)
    expire_waiting(using="default")
    overview(using="default")
    examine(known=[], limits=Limits(), using="default")
    prunable(keep_done=1.0, keep_dead=1.0, using="default")


@pytest.mark.django_db
@pytest.mark.parametrize("column", COLUMNS)
def test_the_admin_shows_what_it_can(column):
    values = garbage(column)
    bad = [key(make()) for _ in values for make in (waiting, swept, ended)]
    for number, job_id in enumerate(bad):
        write(Job, job_id, column, values[number // 3])
    client = staff("root", superuser=True)

    pages = [
        reverse("admin:django_backwave_job_changelist"),
        reverse("admin:django_backwave_lease_changelist"),
    ]
    pages += [f"{pages[0]}?state={state.label}" for state in JobState]
    pages += [reverse("admin:django_backwave_job_change", args=[job_id]) for job_id in bad]
    answers = {page: client.get(page).status_code for page in pages}
    assert {page: code for page, code in answers.items() if code not in (200, 302)} == {}


# And a real worker, with all of them at once.


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_a_worker_lives_and_runs_the_good_jobs_beside(tmp_path):
    file = tmp_path / "journal"
    for column in COLUMNS:
        for value in garbage(column):
            job = support.enqueue("write", file, f"{column} {value[:20]}", due_at=EARLIER)
            write(Job, job.pk, column, value)
            held = claimed(worker=STRANGER, now=EARLIER, name="tests.worker.handlers.write")
            write(Job, held.job_id, column, value)
    good = support.enqueue_many("write", [(file, f"good {number}") for number in range(20)])

    with support.worker("--poll", "0.1", "--shutdown-timeout", "1") as process:
        done = Job.objects.filter(pk__in=good, state=SUCCEEDED)
        lapsed = Lease.objects.expired(EARLIER + timedelta(days=1))
        wait_until(lambda: len(done.all()) == len(good) and not lapsed.exists(), deadline=60, what=process)
        process.send(signal.SIGTERM)
        assert process.wait(60) == 0, process

    ran = sorted(line for line in journal(file) if line.startswith("good"))
    assert ran == sorted(f"good {number}" for number in range(20))
    assert set(Job.objects.filter(pk__in=good).values_list("state", "failures")) == {(SUCCEEDED, 0)}
    # MariaDB ends deadlocks of its own making; the worker just tries again.
    assert process.said("action=database_trouble") == process.said("action=database_trouble", "Deadlock")
