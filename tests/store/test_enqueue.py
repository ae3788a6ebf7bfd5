"""Enqueue: a job exists if and only if its caller's transaction commits (G1)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Cast
from django.test.utils import CaptureQueriesContext

from django_backwave.core.policy import Backoff
from django_backwave.core.states import JobState
from django_backwave.exceptions import ForeignTransaction
from django_backwave.models import Job, Tag
from django_backwave.models.fields import ExactTextField
from django_backwave.store.claim import claim, scan
from django_backwave.store.enqueue import BATCH, insert_many, insert_one
from django_backwave.store.expire import expire
from tests.factories import NOW, WORKER, attempts, lapsed, new_job, row, second_connection

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)
two_databases = pytest.mark.django_db(transaction=True, databases=["default", "other"])

KARACHI = "Asia/Karachi"  # five hours ahead, all year


@committing
def test_commit_makes_the_job():
    """G1: another connection sees the job once the caller's transaction has committed."""
    with second_connection() as other:
        with transaction.atomic():
            insert_one(job := new_job(), using="default")
            before = Job.objects.using(other).count()

        assert before == 0
        assert row(job, using=other).state == JobState.READY


@committing
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_rollback_leaves_nothing(many):
    """G1: a transaction that rolls back leaves no job."""
    with second_connection() as other:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            if many:
                insert_many([new_job(), new_job()], using="default")
            else:
                insert_one(new_job(), using="default")
            raise ZeroDivisionError

        assert Job.objects.using(other).count() == 0


@committing
def test_insert_many_is_all_or_none():
    """G1: without a transaction of the caller's, many jobs are still written together or not at all."""
    twin = new_job()

    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        insert_many([*(new_job() for _ in range(BATCH)), twin, twin], using="default")

    assert Job.objects.count() == 0


def test_one_job_costs_one_statement(django_assert_num_queries):
    """G12: enqueueing one job is one INSERT, the clock's reading included."""
    statements = 1 if connection.features.can_return_columns_from_insert else 2

    with django_assert_num_queries(statements):
        insert_one(new_job(), using="default")


@pytest.mark.parametrize("now", [NOW, None], ids=["virtual", "real"])
def test_insert_one_returns_when(now):
    """G10: the instant that insert_one returns is the one in the row, in UTC."""
    at = insert_one(job := new_job(), using="default", now=now)

    assert at.tzinfo is UTC
    assert abs(row(job).enqueued_at - at) < timedelta(seconds=1)
    assert row(job).due_at - row(job).enqueued_at < timedelta(seconds=1)
    assert abs(at - (now or datetime.now(UTC))) < timedelta(minutes=1)


def test_insert_many_reads_the_clock_once():
    """G10: jobs enqueued together have one instant, so that none of them comes due before another."""
    jobs = [new_job() for _ in range(BATCH + 1)]

    with CaptureQueriesContext(connection) as queries:
        at = insert_many(jobs, using="default")

    # Before Django 6.0 its SQLite takes 999 values in a statement, and cuts a batch into more of them.
    assert sum("INSERT" in query["sql"] for query in queries) >= 2
    assert set(Job.objects.values_list("due_at", "enqueued_at")) == {(at, at)}


def test_insert_many_keeps_order():
    """Jobs enqueued together are claimed in the order given."""
    jobs = [new_job() for _ in range(20)]
    insert_many(jobs, using="default", now=NOW)

    taken = claim("default", 20, worker=WORKER, lease=60, using="default", now=NOW)

    assert [job.job_id for job in taken] == [job.id for job in jobs]


def test_a_row_is_what_was_given():
    """Every value of the job arrives in its row."""
    job = new_job(priority=-7, lease_seconds=90.5, payload='{"args":[1],"kwargs":{"a":"ü"}}')

    insert_one(job, using="default", now=NOW)

    written = row(job)
    assert (written.name, written.queue, written.priority) == (job.name, job.queue, -7)
    assert written.payload == {"args": [1], "kwargs": {"a": "ü"}}
    assert (written.lease_seconds, written.max_attempts) == (90.5, 3)
    policy = (written.backoff_base, written.backoff_cap, written.backoff_jitter)
    assert policy == (8, 100, 0.5)
    assert (written.attempt, written.failures, written.worker) == (0, 0, "")


HOSTILE = "\\ \" ' {},NULL %s %% \t\r\n \x01 \u2028 é 😀 \\u0041"


def test_many_are_written_as_one_is():
    """Each column of a row is the same, whichever way it took into the table."""
    given = [
        {},
        {
            "queue": HOSTILE[:100],
            "name": HOSTILE,
            "payload": f'{{"args":[{json.dumps(HOSTILE)}],"kwargs":{{}}}}',
        },
        {"payload": '{"args":[1e22,-0.0,1.5,9007199254740993,"ü"],"kwargs":{"a":null}}', "priority": -100},
        {"name": "NULL", "queue": " ", "headers": '{"tenant":"a\\\\\\"b"}', "lease_seconds": 0.1 + 0.2},
        {"run_after": NOW + timedelta(days=1, microseconds=1), "expires": NOW + timedelta(days=2)},
        {"expires": 90.5, "max_attempts": 2**31 - 1, "timeout_seconds": 1e9, "priority": 100},
        {"backoff": Backoff(base=1, cap=1e9, jitter=0.0), "tags": (("", "vip"), ("customer", HOSTILE[:100]))},
    ]
    one_by_one = [new_job(**options) for options in given]
    together = [new_job(**options) for options in given]

    for job in one_by_one:
        insert_one(job, using="default", now=NOW)
    insert_many(together, using="default", now=NOW)

    assert [stored_row(job) for job in together] == [stored_row(job) for job in one_by_one]


@pytest.mark.parametrize("number", [1, 2, BATCH + 1])
def test_many_alike_are_many(number):
    """What all of them have in common, as most have, is in each row; one is a batch, too."""
    jobs = [new_job(expires=90.0, headers='{"a":1}') for _ in range(number)]

    insert_many(jobs, using="default", now=NOW)

    rows = list(Job.objects.values())
    assert {row.pop("id") for row in rows} == {job.id for job in jobs}
    assert len({str(row) for row in rows}) == 1


def stored_row(job):
    """Return everything but the key: the values as they are read, their texts as they lie there, and tags."""
    values = Job.objects.filter(pk=job.id).values().get()
    del values["id"]
    texts = {
        name: Job.objects.filter(pk=job.id).values_list(Cast(name, ExactTextField()), flat=True).get()
        for name in ("payload", "headers")
    }
    tags = Tag.objects.filter(job_id=job.id).order_by("pk").values_list("key", "value")
    return values, texts, list(tags)


def test_ids_rise():
    """Jobs are enqueued with rising ids, also within one millisecond, and sort by them."""
    jobs = [new_job() for _ in range(1000)]
    insert_many(jobs, using="default")

    stored = list(Job.objects.order_by("pk").values_list("pk", flat=True))

    assert stored == [job.id for job in jobs]


@two_databases
@pytest.mark.parametrize(("ours", "theirs"), [("default", "other"), ("other", "default")])
def test_transaction_on_another_database_is_refused(ours, theirs):
    """G1: a transaction that cannot cover the job refuses it, and says what to do."""
    message = (
        f"A transaction is open on '{theirs}', but jobs are stored on '{ours}': the job would be "
        "committed even if your transaction rolls back."
    )

    for insert in (insert_one, lambda job, using: insert_many([job], using=using)):
        with pytest.raises(ForeignTransaction) as caught, transaction.atomic(using=theirs):
            insert(new_job(), using=ours)

        assert str(caught.value).startswith(message)
        assert f"Open transaction.atomic(using='{ours}') as well" in str(caught.value)
        assert 'BACKWAVE["ALLOW_SEPARATE_TRANSACTION"]' in str(caught.value)
    assert Job.objects.using(ours).count() == 0


@two_databases
def test_transaction_on_both_databases_is_fine():
    """G1: what else is open does not matter once the jobs' database is in a transaction."""
    with transaction.atomic(using="other"), transaction.atomic(using="default"):
        insert_one(job := new_job(), using="default")

    assert row(job).state == JobState.READY


@two_databases
def test_separate_transaction_may_be_allowed(settings):
    """G1: whoever gives the guarantee up in the settings gets a job that outlives the rollback."""
    settings.BACKWAVE = {"ALLOW_SEPARATE_TRANSACTION": True}

    with pytest.raises(ZeroDivisionError), transaction.atomic(using="other"):
        insert_one(job := new_job(), using="default")
        raise ZeroDivisionError

    assert row(job).state == JobState.READY


def stored(job, column):
    """Return an instant as it lies in the database, without Django's conversions."""
    at_utc = " AT TIME ZONE 'UTC'" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}{at_utc} FROM {Job._meta.db_table}")  # noqa: S608
        [(value,)] = cursor.fetchall()
    return value


@pytest.mark.parametrize("use_tz", [False, True], ids=["USE_TZ off", "USE_TZ on"])
class TestZoneFiveHoursAway:
    """G10: columns store UTC whatever USE_TZ and TIME_ZONE say, and nothing is off by an offset."""

    @pytest.fixture(autouse=True)
    def _zone(self, settings, use_tz):
        settings.USE_TZ = use_tz
        settings.TIME_ZONE = KARACHI

    def test_columns_store_utc(self):
        run_after = datetime(2026, 3, 1, 17, 0, tzinfo=timezone(timedelta(hours=5)))

        insert_one(new_job(run_after=run_after), using="default", now=NOW)

        assert stored(self, "due_at") == datetime(2026, 3, 1, 12)
        assert stored(self, "enqueued_at") == datetime(2026, 3, 1, 12)

    @pytest.mark.parametrize("now", [NOW, None], ids=["virtual", "real"])
    def test_insert_one_returns_the_true_instant(self, now):
        at = insert_one(new_job(), using="default", now=now)

        assert abs(at - (now or datetime.now(UTC))) < timedelta(minutes=1)
        assert abs(stored(self, "enqueued_at").replace(tzinfo=UTC) - at) < timedelta(seconds=1)

    def test_a_job_is_due_at_its_instant(self):
        run_after = datetime(2026, 3, 1, 17, 0, tzinfo=ZoneInfo(KARACHI))
        insert_one(job := new_job(run_after=run_after), using="default", now=NOW)

        early = claim("default", 1, worker=WORKER, lease=60, using="default", now=before(NOW))
        [taken] = claim("default", 1, worker=WORKER, lease=60, using="default", now=NOW)

        assert early == []
        assert (taken.job_id, taken.due_at, taken.claimed_at) == (job.id, NOW, NOW)
        assert stored(self, "lease_expires_at") == datetime(2026, 3, 1, 12, 1)

    def test_the_real_clock_says_due(self):
        insert_one(job := new_job(), using="default")

        waits = scan(None, using="default")
        [taken] = claim("default", 1, worker=WORKER, lease=60, using="default")

        assert -60 < waits["default"] <= 0
        assert taken.job_id == job.id

    def test_the_sweep_keeps_instants(self, use_tz):
        job = lapsed()
        Job.objects.update(started_at=NOW)

        expire(jitter=float, using="default", now=NOW)

        [attempt] = attempts(job)
        local = NOW if use_tz else datetime(2026, 3, 1, 17)
        assert (attempt.started_at, attempt.finished_at) == (local, local)


def before(instant):
    return instant - timedelta(microseconds=1)


@pytest.mark.parametrize("twin", ["order:A", "order:a "], ids=["case", "trailing space"])
def test_names_compare_byte_for_byte(twin):
    """Names and queues that differ only in case or in a trailing space stay two."""
    insert_one(job := new_job(name="order:a", queue="order:a"), using="default", now=NOW)
    insert_one(other := new_job(name=twin, queue=twin), using="default", now=NOW)

    taken = claim("order:a", 5, worker=WORKER, lease=60, using="default", now=NOW)

    assert [each.job_id for each in taken] == [job.id]
    assert scan(["order:a", twin], using="default", now=NOW) == {twin: 0}
    assert [each.pk for each in Job.objects.filter(name=twin)] == [other.id]


@two_databases
def test_a_transaction_begun_by_hand_elsewhere_counts():
    """G1: `set_autocommit(False)` on another database opens one as well."""
    other = connections["other"]
    other.set_autocommit(False)
    try:
        with pytest.raises(ForeignTransaction):
            insert_one(new_job(), using="default")
    finally:
        other.rollback()
        other.set_autocommit(True)
