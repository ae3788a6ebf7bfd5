"""A worker's own connection keeps plans, which stay right, and does without where it cannot."""

from __future__ import annotations

import json

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_backwave.core.protocol import Place, Renewal, Verdict
from django_backwave.core.states import JobState
from django_backwave.store import plans
from django_backwave.store.claim import Order, claim, scan, take
from django_backwave.store.heartbeat import renew
from django_backwave.store.settle import settle_and_take
from django_backwave.worker.connections import own_connection
from tests.factories import GRACE, WORKER, ready, report, second_connection
from tests.store.test_plans import TABLE, assert_indexed, buffers

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgres")]

CROWD = f"""
    INSERT INTO {TABLE} (id, name, queue, priority, payload, enqueued_at, due_at, max_attempts, backoff_base,
        backoff_cap, backoff_jitter, attempt, failures, cause, state, worker, lease_expires_at)
    SELECT gen_random_uuid(), 'shop.send_receipt', 'default', n % 3, '{{}}', now(),
           now() - '1 hour'::interval, 3, 2, 300, 0.2, n % 2, 0, '',
           CASE n % 2 WHEN 0 THEN {JobState.READY} ELSE {JobState.RUNNING} END,
           CASE n % 2 WHEN 0 THEN '' ELSE 'host:1:a' END,
           CASE n % 2 WHEN 1 THEN now() + '1 hour'::interval END
      FROM generate_series(1, 20000) n
"""  # noqa: S608


def owned(alias, **options):
    connections[alias].settings_dict["OPTIONS"] = {**connections[alias].settings_dict["OPTIONS"], **options}
    own_connection(alias, lease=60)
    return alias


@pytest.fixture
def own():
    """Give an alias to which this thread has a connection as the pump has one."""
    with second_connection() as alias:
        yield owned(alias)


def kept(using):
    """Return the names that the server keeps for a connection, each with the times that it used its plan."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT name, generic_plans FROM pg_prepared_statements")
        return dict(cursor.fetchall())


def turn(using, *jobs, **options):
    """Settle these jobs, and claim the next."""
    order = Order("default", 10, 10, 60.0, **options)
    reports = [report(job) for job in jobs]
    verdicts, taken = settle_and_take(reports, order, worker=WORKER, unroutable_grace=GRACE, using=using)
    assert list(verdicts.values()) == [Verdict.APPLIED] * len(jobs)
    return taken.jobs


def work(using, times=1):
    """Do all that is done over and over again, with one job each time."""
    for _ in range(times):
        ready(now=None, queue="default")
        assert list(scan(None, using=using)) == list(scan(["default"], using=using)) == ["default"]
        [job] = take(Order("default", 10, 10, 60.0), worker=WORKER, using=using).jobs
        keys = {job.key: None}
        assert renew(keys, worker=WORKER, lease=60, using=using) == {job.key: Renewal.RENEWED}
        assert turn(using, job) == []


def test_a_project_that_sends_parameters_apart_has_its_own_way_only():
    """EXECUTE takes none, so the worker's connections bind them as Django does by default."""
    with second_connection() as alias:
        work(owned(alias, server_side_binding=True), times=2)

        assert len(kept(alias)) == 5


def test_cursors_that_send_parameters_apart_keep_no_plans():
    with second_connection() as alias:
        work(owned(alias, cursor_factory=psycopg.Cursor), times=2)

        # Only that of the scan without a parameter.
        assert {name.rpartition("_")[0] for name in kept(alias)} == {"backwave_scan"}


def test_each_statement_is_planned_once(own):
    work(own, times=3)

    assert sorted(name.rpartition("_")[0] for name in kept(own)) == [
        "backwave_claim",
        "backwave_renew",
        "backwave_scan",
        "backwave_scan",
        "backwave_settle_and_claim",
    ]
    assert set(kept(own).values()) == {3}


def test_a_connection_of_the_project_keeps_none():
    work("default", times=3)

    assert kept("default") == {}


def test_in_a_transaction_none_is_made(own):
    with transaction.atomic(using=own):
        assert scan(None, using=own) == {}
        assert kept(own) == {}


def test_a_new_connection_begins_anew(own):
    work(own)
    before = kept(own)
    connections[own].close()
    assert kept(own) == {}

    work(own)

    assert kept(own) == before


def forget(own):
    with connections[own].cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")


def take_names(own):
    names = list(kept(own))
    connections[own].close()
    with connections[own].cursor() as cursor:
        for name in names:
            cursor.execute(f"PREPARE {name} AS SELECT 1")


def alter(_):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} ALTER COLUMN name TYPE varchar(300)")


@pytest.mark.parametrize("happens", [forget, take_names, alter])
def test_what_it_cannot_rely_on_it_does_without(own, happens, request):
    """A pooler gives transactions other sessions; a migration changes what a statement returns."""
    work(own)
    happens(own)
    if happens is alter:
        request.addfinalizer(restore)
    before = kept(own)

    work(own, times=2)

    assert set(kept(own)) == set(before)
    assert [used for name, used in kept(own).items() if "claim" in name] == [
        used for name, used in before.items() if "claim" in name
    ]


def restore():
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} ALTER COLUMN name TYPE varchar(200)")


def test_an_error_of_a_kept_statement_is_told_as_ever(own):
    plans.fetch("divided", "SELECT 6 / %(by)s::int", {"by": 1}, using=own)

    with pytest.raises(DatabaseError, match="division by zero"):
        plans.fetch("divided", "SELECT 6 / %(by)s::int", {"by": 0}, using=own)

    assert plans.fetch("divided", "SELECT 6 / %(by)s::int", {"by": 2}, using=own) == [(3,)]
    assert len(kept(own)) == 1


def test_parameters_are_numbered_and_percent_signs_stay(own):
    sql = "SELECT %(b)s::int %% 4, %(a)s::text, %(b)s::int"
    for alias in (own, "default"):
        assert plans.fetch("modulo", sql, {"a": "100%s", "b": 7, "c": 1}, using=alias) == [(3, "100%s", 7)]
    assert plans.fetch("nothing", "SELECT 'x%%'", {}, using=own) == [("x%",)]


def test_none_is_kept_where_the_project_refuses_them():
    with second_connection() as alias:
        work(owned(alias, prepare_threshold=None), times=2)

        assert kept(alias) == {}


def test_none_is_kept_where_the_planner_stays_as_it_is():
    """A pooler that is told to ignore start-up parameters swallows them."""
    with second_connection() as alias:
        owned(alias)
        options = connections[alias].settings_dict["OPTIONS"]
        options["options"] = options["options"].replace("enable_seqscan=off", "enable_seqscan=on")
        work(alias, times=2)

        assert kept(alias) == {}


def test_a_number_asks_for_them_as_the_default_does():
    with second_connection() as alias:
        work(owned(alias, prepare_threshold=3))

        assert len(kept(alias)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("way", ["from the head", "behind a place", "of many queues", "ahead"])
@pytest.mark.usefixtures("no_vacuum")
def test_a_plan_that_was_kept_of_an_empty_table_is_right_for_a_full_one(own, way):
    """The very first jobs of a project must not decide how fast those of its first busy day are."""

    def again(*jobs):
        last = jobs[-1]
        more = {
            "behind a place": {"past": (Place(last.priority, last.due_at, last.job_id),)},
            "of many queues": {"also": ("other", "third")},
        }
        return turn(own, *jobs, **more.get(way, {}))

    for _ in range(2):
        ready(now=None, queue="default")
        again(*claim("default", 1, worker=WORKER, lease=60.0, using=own))
    assert set(kept(own).values()) == {2}
    with connection.cursor() as cursor:
        cursor.execute(CROWD)
    jobs = claim("default", 10, worker=WORKER, lease=60.0, using=own)

    root = explained(own, lambda: again(*jobs))

    assert_indexed(root, "django_backwave_job_pkey", "backwave_claim")
    assert buffers(root) < 10 * 150


def explained(own, call):
    """Return the plan of the statement that a call sends, once it has sent it."""
    sent = []

    def explain(execute, sql, params, many, context):
        if sql.startswith("EXECUTE") and not sent:
            sent.append(sql)
            with transaction.atomic(using=own), connections[own].cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
                [[told]] = cursor.fetchall()
                sent.append(told)
                transaction.set_rollback(True, using=own)
        return execute(sql, params, many, context)

    with connections[own].execute_wrapper(explain):
        call()
    [result] = json.loads(sent[1]) if isinstance(sent[1], str) else sent[1]
    return result["Plan"]
