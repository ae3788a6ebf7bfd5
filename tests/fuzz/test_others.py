"""Garbage by hand in every column of the tables beside the jobs: whoever reads them goes on."""

from __future__ import annotations

from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.urls import reverse

from django_backwave.core.states import JobState
from django_backwave.models import Action, Attempt, Job, Mark, Pause, Tag, Worker
from django_backwave.models.fields import InstantField, JSONTextField
from django_backwave.store import mark, monitor
from django_backwave.store.claim import Order, scan, take
from django_backwave.store.expire import expire
from django_backwave.store.pause import pauses
from django_backwave.store.retention import prune, prune_workers
from tests.admin.conftest import staff
from tests.factories import STRANGER, WORKER, claimed, ready, report, send
from tests.fuzz.garbage import write
from tests.fuzz.test_garbage import EARLIER, FLOATS, INSTANTS, NUMBERS, OWN, PAYLOADS, TEXTS

pytestmark = pytest.mark.django_db

QUEUE = "others"

#: What is written, by kind of field; and the vendor's own, by the names that ``OWN`` has for them.
KINDS = {
    InstantField: (INSTANTS, "instants"),
    JSONTextField: ([*PAYLOADS, "'{}'", "'[1]'", "'[[]]'"], "payload"),
    models.FloatField: (FLOATS, "floats"),
    models.IntegerField: (NUMBERS, "numbers"),
    models.Field: (TEXTS, "texts"),
}


def garbage(field):
    values, own = next(each for kind, each in KINDS.items() if isinstance(field, kind))
    return [*values, *OWN[connection.vendor].get(own, ())]


def rows(job):
    """Return what makes one row of each table; each call makes another."""
    numbers = iter(range(1, 10_000))
    at = EARLIER.isoformat()
    return {
        Attempt: lambda: Attempt.objects.create(
            job=job,
            number=100_000 + next(numbers),
            worker=STRANGER,
            started_at=at,
            finished_at=at,
            outcome="failed",
        ),
        Worker: lambda: Worker.objects.create(
            name=f"host:{next(numbers)}:x",
            host="host",
            pid=1,
            started_at=at,
            seen_at="9000-01-01T00:00:00Z",
            names=["shop.send"],
            concurrency=1,
            version="1",
        ),
        Pause: lambda: Pause.objects.create(kind="name", target=f"shop.paused_{next(numbers)}", at=at),
        Tag: lambda: Tag.objects.create(job=job, key="customer", value=str(next(numbers))),
        Action: lambda: Action.objects.create(
            at=at, actor="ann", verb="cancel", result="cancelled", job_id=job.pk, name=job.name
        ),
        Mark: lambda: Mark.objects.create(
            job=job, name=f"mail {next(numbers)}", attempt=1, begun_at=at, done_at=at
        ),
    }


CASES = [
    (model, field.column)
    for model in (Attempt, Worker, Pause, Tag, Action, Mark)
    for field in model._meta.concrete_fields
    if field.column not in ("id", "job_id")
]


@pytest.mark.parametrize(("model", "column"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_whoever_reads_them_goes_on(model, column):
    job = ready(now=None, queue=QUEUE)
    make = rows(job)[model]
    [field] = [field for field in model._meta.concrete_fields if field.column == column]
    written = [write(model, make().pk, column, literal) for literal in garbage(field)]
    assert any(written), "the database keeps all of these out: think of others"

    _look(job)
    claimed(worker=STRANGER, now=EARLIER)
    assert QUEUE in scan(None, using="default")
    [key] = [job.key for job in expire(jitter=lambda: 0.5, using="default")]
    assert pauses(using="default") is not None
    prune_workers(using="default")
    [taken] = take(Order(QUEUE, 10, 10, 60.0), worker=WORKER, using="default").jobs
    for number in range(3):
        assert mark.begin(taken.key, f"mail {number}", worker=WORKER, using="default")
    send(report(taken), now=None)
    assert Job.objects.get(pk=job.pk).job_state is JobState.SUCCEEDED
    _look(job)
    assert prune(keep_done=0.0, keep_dead=0.0, using="default") == 1
    assert key.job_id != job.pk


def _look(job):
    """Let everybody read who reads for people."""
    for command, *options in (["backwave_status"], ["backwave_doctor"], ["backwave_prune", "--dry-run"]):
        with suppress(SystemExit):
            call_command(command, *options, stdout=StringIO(), stderr=StringIO())
    monitor.find(job.pk, using="default")
    client = staff(f"root{Job.objects.count()}{id(job)}{job.state}", superuser=True)
    models_ = ("job", "lease", "worker", "action", "pause")
    pages = [reverse(f"admin:django_backwave_{name}_changelist") for name in models_]
    pages.append(reverse("admin:django_backwave_job_change", args=[job.pk]))
    pages += [
        reverse("admin:django_backwave_worker_change", args=[worker])
        for worker in ("host:1:x", "host:2:x", "host:3:x")
    ]
    assert {page: code for page in pages if (code := client.get(page).status_code) not in (200, 302)} == {}


@pytest.mark.only_on("sqlite")  # the others keep out what is no id
@pytest.mark.parametrize("make", [ready, claimed], ids=["ready", "claimed"])
@pytest.mark.parametrize("literal", ["'none'", "5", "x'ff'", "CAST(x'ff' AS TEXT)"])
def test_a_job_whose_id_is_none_gets_one(literal, make):
    now = None if make is ready else EARLIER
    bad = make(now=now, queue=QUEUE, due_at=EARLIER) if make is ready else make(now=now)
    assert write(Job, bad.pk if make is ready else bad.job_id, "id", literal)
    good = ready(now=None, queue=QUEUE)
    _look(good)

    expire(jitter=lambda: 0.5, using="default")
    jobs = take(Order(QUEUE, 10, 10, 60.0), worker=WORKER, using="default").jobs

    assert [job.job_id for job in jobs] == [good.pk]
    other = Job.objects.exclude(pk=good.pk).get()
    assert other.job_state is JobState.QUARANTINED
    assert other.cause.startswith("Could not be read, and was replaced: id (")
