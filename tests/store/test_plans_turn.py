"""A turn of the pump reads the rows that it is about, also when statistics know of no running job (G12).

On a table that was filled and analysed before any worker came, the planner takes the index of leases for all
but empty. A plan that leads over it, or that hashes the whole table, is right once and ten times slower from
then on: the connection keeps it.
"""

from __future__ import annotations

import pytest
from django.db import connection

from django_backwave.core.protocol import Place
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store.claim import Order, claim, take
from django_backwave.store.settle import settle_and_take
from tests.factories import GRACE, WORKER, report, send
from tests.store.test_plans import TABLE, assert_indexed, buffers, nodes, plan, statements

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.only_on("postgres"),
    pytest.mark.slow,
    pytest.mark.usefixtures("planner"),
]

INDEXES = ("django_backwave_job_pkey", "backwave_claim")

FRESH = f"""
    INSERT INTO {TABLE} (id, name, queue, priority, payload, enqueued_at, due_at, max_attempts,
        backoff_base, backoff_cap, backoff_jitter, attempt, failures, cause, state, worker)
    SELECT gen_random_uuid(), 'shop.send_receipt', 'fresh', 0, '{{}}', now(), now() - '1 hour'::interval, 3,
           2, 300, 0.2, 0, 0, '', {JobState.READY}, ''
      FROM generate_series(1, 10000)
"""  # noqa: S608


@pytest.fixture(scope="module")
def fresh(django_db_setup, django_db_blocker):
    """Fill the table with 10,000 jobs of which none has ever run, and leave it empty."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(FRESH)
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
        yield
        cursor.execute(f"TRUNCATE {TABLE}")


@pytest.fixture
def jobs(fresh):
    """Claim fifty jobs."""
    return claim("fresh", 50, worker=WORKER, lease=60, using="default")


def assert_reads_no_more_than_it_must(root, *, bound):
    assert_indexed(root)
    assert {node.get("Index Name") for node in nodes(root)} <= {None, *INDEXES}
    assert buffers(root) < bound


@pytest.mark.parametrize("slots", [50, 10], ids=["for slots", "ahead"])
@pytest.mark.parametrize("behind", [False, True], ids=["from the head", "behind a place"])
def test_settle_and_claim(jobs, slots, behind):
    last = jobs[-1]
    past = (Place(last.priority, last.due_at, last.job_id),) if behind else ()
    order = Order("fresh", 50, slots, 60, past=past)

    def turn(using):
        verdicts, taken = settle_and_take(
            [report(job) for job in jobs], order, worker=WORKER, unroutable_grace=GRACE, using=using
        )
        assert (len(verdicts), len(taken.jobs)) == (50, 50)

    [statement] = statements(turn)
    root = plan(*statement)

    assert_reads_no_more_than_it_must(root, bound=50 * 100)
    assert_indexed(root, *INDEXES)


def test_settle(jobs):
    [statement] = statements(lambda using: send(*map(report, jobs), using=using, now=None))

    assert_reads_no_more_than_it_must(plan(*statement), bound=50 * 60)


@pytest.mark.usefixtures("jobs")
def test_claim():
    [statement] = statements(take, Order("fresh", 50, 10, 60), worker=WORKER)

    assert_reads_no_more_than_it_must(plan(*statement), bound=50 * 60)


@pytest.mark.usefixtures("jobs")
def test_the_statistics_know_of_no_running_job():
    """Or else the tests above test nothing."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT most_common_vals::text FROM pg_stats WHERE tablename = %s AND attname = 'state'", [TABLE]
        )
        assert cursor.fetchall() == [(f"{{{JobState.READY:d}}}",)]
    assert Job.objects.filter(state=JobState.RUNNING).count() == 50


@pytest.mark.usefixtures("fresh")
def test_a_claim_behind_a_place_does_not_even_look_at_what_is_before_it():
    """Nine tenths of the queue stand there; to filter them out would cost what the hint is to spare."""
    last = Job.objects.order_by("due_at", "pk")[9000]
    order = Order("fresh", 50, 50, 60, past=(Place(last.priority, last.due_at, last.pk),))
    [statement] = statements(take, order, worker=WORKER)

    root = plan(*statement)

    assert_reads_no_more_than_it_must(root, bound=50 * 60)
    assert max(node.get("Rows Removed by Filter", 0) for node in nodes(root)) < 50
    assert max(node.get("Rows Removed by Index Recheck", 0) for node in nodes(root)) < 50
