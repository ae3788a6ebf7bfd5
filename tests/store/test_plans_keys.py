"""Keys are found, held and forgotten by their indexes, however many there are (G12)."""

from __future__ import annotations

import pytest
from django.db import connection

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job, Key
from django_backwave.store import keys
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.operations import Command, carry_out
from django_backwave.store.retention import prune
from tests.factories import NOW, after
from tests.store.generations import enqueue, keyed, land
from tests.store.test_plans import buffers, nodes, plan, sent_by

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.usefixtures("crowd")]

TABLES = tuple(model._meta.db_table for model in (Job, Key, Attempt))
on_postgres = pytest.mark.only_on("postgres")
on_sqlite = pytest.mark.only_on("sqlite")

# Of each ten jobs nine have a key: one is ready, one runs, the others have succeeded. One has none.
JOBS = """
    INSERT INTO {table} (id, name, queue, priority, payload, enqueued_at, due_at, max_attempts,
        backoff_base, backoff_cap, backoff_jitter, attempt, failures, cause, state, worker, lease_expires_at,
        finished_at, key, generation)
    SELECT gen_random_uuid(), 'shop.send_receipt', 'queue-' || n % 5, 0, '{{}}', now(), now(), 3, 2, 300, 0.2,
           0, 0, '', CASE n % 10 WHEN 0 THEN {ready} WHEN 1 THEN {running} ELSE {succeeded} END,
           CASE n % 10 WHEN 1 THEN 'host:1:a' ELSE '' END, CASE n % 10 WHEN 1 THEN now() END,
           CASE WHEN n % 10 > 1 THEN now() END, CASE WHEN n % 10 < 9 THEN 'k' || n END,
           CASE WHEN n % 10 < 9 THEN 1 END
      FROM generate_series(0, 99999) n
"""
# Of each ten keys nine have those jobs; one has been pruned, for ever or with a window that is not over.
KEYS = """
    INSERT INTO {table} (id, queue, key, name, generation, job_id, enqueued_at, forget_at, used_at,
        settled_as)
    SELECT gen_random_uuid(), 'queue-' || n % 5, 'k' || n, 'shop.send_receipt', 1,
           gen_random_uuid(), now(), CASE WHEN n % 20 = 9 THEN now() + '1 day'::interval END, now(),
           CASE n % 10 WHEN 9 THEN {succeeded} END
      FROM generate_series(0, 99999) n
"""
# Each job that has succeeded has a history: a table that is known to be empty is read whole, and rightly so.
ATTEMPTS = """
    INSERT INTO {table} (job_id, number, worker, finished_at, outcome, error_class, message, traceback)
    SELECT id, 1, 'host:1:a', now(), 'succeeded', '', '', '' FROM {jobs} WHERE state = {succeeded}
"""


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    """Fill the tables with 100,000 jobs and as many keys."""
    if connection.vendor != "postgresql":
        yield
        return
    states = {state.name.lower(): state.value for state in JobState}
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        for sql, table in zip((JOBS, KEYS, ATTEMPTS), TABLES, strict=True):
            cursor.execute(sql.format(table=table, jobs=TABLES[0], **states))
            cursor.execute(f"VACUUM ANALYZE {table}")
        yield
        cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


def statements(call):
    """Return what a call sends to our tables, and undo what it did."""
    return [(sql, params) for sql, params in sent_by(call) if any(table in sql for table in TABLES)]


def assert_quick(call, *indexes, most=60):
    """Assert that no statement of a call reads a whole table, that these indexes serve, and few pages."""
    used = set()
    for sql, params in statements(call):
        root = plan(sql, params)
        scans = [node for node in nodes(root) if node["Node Type"] == "Seq Scan"]
        assert not [node for node in scans if node["Relation Name"] in TABLES], sql
        assert buffers(root) < most, (buffers(root), sql)
        used |= {node["Index Name"] for node in nodes(root) if "Index Name" in node}
    assert set(indexes) <= used, used


KEY = Key._meta.db_table + "_pkey"
JOB = Job._meta.db_table + "_pkey"


@on_postgres
@pytest.mark.usefixtures("planner")
class TestPostgres:
    def test_the_crowd_is_there(self):
        assert Job.objects.count() == Key.objects.count() == 100_000
        assert Attempt.objects.count() == 80_000
        assert Job.objects.filter(key__isnull=False).count() == 90_000

    def test_an_enqueue_finds_the_key_and_its_jobs(self):
        enqueue()
        assert_quick(enqueue, KEY, "backwave_key", JOB)
        assert_quick(lambda: enqueue(on_conflict="replace"), KEY, "backwave_key", JOB)
        assert_quick(lambda: enqueue(key="another"), KEY)

    def test_a_prepared_enqueue_that_was_carried_out_asks_its_key_alone(self):
        command = Command(keyed("prepared"), "the work", after(300), after(600))
        carry_out(command, using="default", now=NOW)
        assert_quick(lambda: carry_out(command, using="default", now=NOW), KEY)

    def test_many_find_theirs(self):
        batch = [keyed(f"n{number}") for number in range(50)]
        enqueue(*batch)
        again = [keyed(f"n{number}") for number in range(50)]
        assert_quick(lambda: enqueue(*again), "backwave_key", most=1500)

    def test_forgetting_walks_its_index(self):
        """Past nothing that is kept."""
        job_id = land(window="unfinished").job_id
        cancel([job_id], using="default", now=NOW)
        prune(keep_done=1.0, keep_dead=1.0, using="default", now=after(9))
        calls = [
            lambda: keys.forget(using="default", now=after(9)),
            lambda: keys.forget(using="default", now=after(9), limit=10),
        ]
        for call in calls:
            assert_quick(call, "backwave_key_forget")

    def test_requeue_looks_for_other_generations(self):
        job_id = land().job_id
        cancel([job_id], using="default", now=NOW)
        assert_quick(lambda: requeue([job_id], using="default", now=NOW), "backwave_key", JOB)

    def test_pruning_notes_how_it_ended(self):
        job_id = land().job_id
        cancel([job_id], using="default", now=NOW)
        assert_quick(lambda: keys.farewell([job_id], using="default"), KEY, JOB)


@on_sqlite
def test_sqlite_plans():
    """There, too, each statement searches by an index."""
    job_id = land().job_id
    for sql, params in [
        *statements(enqueue),
        *statements(lambda: keys.forget(using="default", now=NOW)),
        *statements(lambda: keys.farewell([job_id], using="default")),
    ]:
        if sql.startswith("INSERT"):
            continue
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            steps = [step for *_, step in cursor.fetchall()]
        assert not [step for step in steps if step.startswith("SCAN")], (steps, sql)
