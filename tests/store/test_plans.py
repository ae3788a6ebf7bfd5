"""The statements of the hot paths use their indexes, whatever else lies in the table (G12)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import pytest
from django.db import connection, transaction

from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import plans
from django_backwave.store.claim import Order, claim, scan, take
from django_backwave.store.expire import expire, expire_waiting
from django_backwave.store.heartbeat import renew
from django_backwave.store.retention import prune
from tests.factories import NOW, WORKER, after, lapsed, ready, report, send

pytestmark = pytest.mark.django_db

TABLE = Job._meta.db_table
on_postgres = pytest.mark.only_on("postgres")
on_sqlite = pytest.mark.only_on("sqlite")

# Of each ten rows three are due in the future at a higher priority, two are due, four have ended
# and one is running; of those that run one in ten has a lease that lapsed. Of the future ones one in thirty
# has expired, and all that have ended would have.
CROWD = f"""
    INSERT INTO {TABLE} (id, name, queue, priority, payload, enqueued_at, due_at, max_attempts,
        backoff_base, backoff_cap, backoff_jitter, attempt, failures, cause,
        state, worker, lease_expires_at, finished_at, expires_at)
    SELECT gen_random_uuid(), 'shop.send_receipt', 'queue-' || n / 10 % 5, part.priority, '{{}}',
           now() - '9 days'::interval, now() + part.due_in * (n % 1000 + 1), 3, 2, 300, 0.2, 0, 0, '',
           part.state, CASE part.state WHEN {JobState.RUNNING} THEN 'host:1:a' ELSE '' END,
           CASE part.state WHEN {JobState.RUNNING} THEN now() + part.ends END,
           CASE part.state WHEN {JobState.SUCCEEDED} THEN now() - '1 day'::interval * (n % 1000) END,
           CASE WHEN n % 100 = 0 THEN now() - '1 minute'::interval * (n % 1000 + 1)
                WHEN part.state = {JobState.SUCCEEDED} THEN now() - '2 days'::interval END
      FROM generate_series(0, 99999) n
     CROSS JOIN LATERAL (SELECT
           CASE WHEN n % 10 < 3 THEN 50 ELSE n / 10 % 3 END AS priority,
           CASE WHEN n % 10 < 3 THEN '1 minute'::interval ELSE '-1 minute'::interval END AS due_in,
           CASE WHEN n % 10 < 5 THEN {JobState.READY} WHEN n % 10 < 9 THEN {JobState.SUCCEEDED}
                ELSE {JobState.RUNNING} END AS state,
           CASE WHEN n % 100 = 9 THEN '-1 hour'::interval ELSE '1 hour'::interval END AS ends) part
"""  # noqa: S608


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    """Fill the table with 100,000 jobs, 30,000 of them due in the future at a higher priority."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(CROWD)
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
        yield
        cursor.execute(f"TRUNCATE {TABLE}")


def statements(call, *args, **options):
    """Return what a call sends to the jobs' table, as it sends it, and undo what it did."""
    sent = sent_by(lambda: call(*args, using="default", **options))
    return [(sql, params) for sql, params in sent if TABLE in sql]


def sent_by(call):
    """Return what a call sends to the database, as it sends it, and undo what it did."""
    sent = []

    def record(execute, sql, params, many, context):
        sent.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(record):
            call()
        transaction.set_rollback(True)
    return sent


def plan(sql, params):
    """Run a statement, undo it, and return the plan that it ran by."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        if cursor.fetchone() == ("force_generic_plan",) and isinstance(params, dict):  # by plans.fetch
            statement = plans._statement("tried", sql)
            cursor.execute(statement.prepare)
            sql, params = statement.execute, [params[name] for name in statement.parameters]
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        [[told]] = cursor.fetchall()
        cursor.execute("DEALLOCATE ALL")
        transaction.set_rollback(True)
    [result] = json.loads(told) if isinstance(told, str) else told
    return result["Plan"]


def nodes(root) -> Iterator[dict]:
    yield root
    for child in root.get("Plans", ()):
        yield from nodes(child)


def buffers(root):
    return root["Shared Hit Blocks"] + root["Shared Read Blocks"]


def assert_indexed(root, *indexes):
    """Assert that a plan reads jobs by these indexes, and never the whole table."""
    assert not [node for node in nodes(root) if (node["Node Type"], node.get("Relation Name")) == SCANNED]
    used = {node["Index Name"] for node in nodes(root) if "Index Name" in node}
    assert set(indexes) <= used


SCANNED = ("Seq Scan", TABLE)


@on_postgres
@pytest.mark.slow
@pytest.mark.usefixtures("crowd", "planner")
class TestPostgres:
    def test_the_crowd_is_there(self):
        assert Job.objects.count() == 100_000
        assert Job.objects.filter(state=JobState.READY, priority=50).count() == 30_000

    @pytest.mark.parametrize(("limit", "bound"), [(1, 150), (10, 300), (100, 3000)])
    def test_claim(self, limit, bound):
        """A claim walks its index from one priority to the next, past all that is not due yet."""
        [statement] = statements(claim, "queue-1", limit, worker=WORKER, lease=60)

        root = plan(*statement)

        assert root["Plans"]
        assert_indexed(root, "backwave_claim")
        assert buffers(root) < bound
        for node in nodes(root):
            if node["Node Type"].endswith("Sort"):
                assert not [each for each in nodes(node) if each["Node Type"] == "LockRows"]

    def test_a_claim_of_ten_locks_ten(self):
        """A claim locks the rows that it takes, and none of another priority beside them."""
        [statement] = statements(claim, "queue-1", 10, worker=WORKER, lease=60)

        locking = [node for node in nodes(plan(*statement)) if node["Node Type"] == "LockRows"]

        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in locking) == 10

    @pytest.mark.parametrize("queues", [None, ["queue-1", "queue-4", "none"]], ids=["all", "given"])
    def test_scan(self, queues):
        """An idle poll takes a few index steps for each queue and priority."""
        [statement] = statements(scan, queues)

        root = plan(*statement)

        assert_indexed(root, "backwave_claim")
        assert buffers(root) < 300

    def test_sweep(self):
        """The sweep reads lapsed leases only, first come first."""
        select, *_ = statements(expire, jitter=float, limit=10)

        root = plan(*select)

        assert_indexed(root, "backwave_lease")
        assert not [node for node in nodes(root) if node["Node Type"].endswith("Sort")]
        assert buffers(root) < 100

    def test_sweep_of_expired_jobs(self):
        """The sweep reads what has expired and not started, first come first; the history costs nothing."""
        assert Job.objects.filter(state=JobState.READY, expires_at__isnull=False).count() == 1_000
        select, lock, update, *_ = statements(expire_waiting, limit=10)

        root = plan(*select)

        assert_indexed(root, "backwave_expiry")
        assert not [node for node in nodes(root) if node["Node Type"].endswith("Sort")]
        assert buffers(root) < 100
        for statement in (lock, update):
            assert_indexed(plan(*statement), "django_backwave_job_pkey")

    def test_an_idle_sweep_of_expired_jobs(self):
        """Tens of thousands of jobs that expired long after their end are not even looked at."""
        Job.objects.filter(state=JobState.READY, expires_at__isnull=False).update(expires_at=None)

        for statement in statements(expire_waiting):
            root = plan(*statement)

            assert_indexed(root, "backwave_expiry")
            assert buffers(root) < 2_100  # the entries just now updated are still in it

    def test_prune(self):
        """The prune reads the oldest jobs of a state only."""
        select, *_ = statements(prune, keep_done=86400 * 900.0, keep_dead=None, limit=10)

        root = plan(*select)

        assert_indexed(root, "backwave_finished")
        assert not [node for node in nodes(root) if node["Node Type"].endswith("Sort")]
        assert buffers(root) < 100

    def test_settle_and_renew(self):
        """A batch of outcomes or renewals reads the rows it is about, and no others."""
        jobs = claim("queue-1", 100, worker=WORKER, lease=60, using="default")
        reports = [report(job) for job in jobs]
        held = {job.key: None for job in jobs}

        def settle(using):
            send(*reports, using=using, now=None)

        [settling] = statements(settle)
        [renewing] = statements(renew, held, worker=WORKER, lease=60)

        for statement in (renewing, settling):
            root = plan(*statement)
            assert_indexed(root, "django_backwave_job_pkey")
            assert buffers(root) < 100 * 60


def query_plan(sql, params):
    """Return how SQLite means to run a statement, a line for each step."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
        return [row[-1] for row in cursor.fetchall()]


@on_sqlite
class TestSqlite:
    CALLS = {
        "claim": ("backwave_claim", claim, ["default", 5], {"worker": WORKER, "lease": 60}),
        "claim without names": (
            "backwave_claim",
            take,
            [Order("default", 5, 5, 60, ("a",))],
            {"worker": WORKER},
        ),
        "scan": ("backwave_claim", scan, [None], {}),
        "scan of given queues": ("backwave_claim", scan, [["default"]], {}),
        "sweep of expired jobs": ("backwave_expiry", expire_waiting, [], {"limit": 5}),
        "sweep": ("backwave_lease", expire, [], {"jitter": float, "limit": 5}),
        "prune": ("backwave_finished", prune, [], {"keep_done": 9.0, "keep_dead": 9.0}),
    }

    @pytest.mark.parametrize(("index", "call", "args", "options"), CALLS.values(), ids=CALLS)
    def test_plans(self, index, call, args, options):
        """On SQLite each of them searches its index, and sorts nothing."""
        for number in range(3):
            ready(priority=number)
            lapsed()
        ready(state=JobState.SUCCEEDED, finished_at=after(-99))

        sent = statements(call, *args, now=NOW, **options)

        steps = [step for statement in sent for step in query_plan(*statement)]
        assert any(index in step for step in islice(steps, 3))
        for step in steps:
            assert not step.startswith(f"SCAN {TABLE}") or "USING" in step
            assert "TEMP B-TREE" not in step
