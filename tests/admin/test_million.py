"""A million jobs: no page counts them, walks them or sorts them, whatever is asked for."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from django.db import connection

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from tests.admin.conftest import url
from tests.conformance.meter import work
from tests.filled import TABLE, filled

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.only_on("postgres", "sqlite")]

ROWS = 1_000_000

#: Tens of steps that SQLite's machine may take for a page: a walk over all rows takes 300,000 at least, and
#: the rare name, which is looked for in a bounded part of them, 215,000.
MOST_WORK = 250_000

# Ids rise with time. Of each thousand rows 50 are ready, one is running, 20 are dead-lettered and
# 29 are cancelled; the others have succeeded. 10,000 rows ended at the very same instant. The oldest rows
# alone have the rare queue and the rare name.
COLUMNS = """id, name, queue, priority, payload, enqueued_at, due_at, max_attempts, backoff_base,
    backoff_cap, backoff_jitter, attempt, failures, cause, state, worker, lease_expires_at, finished_at"""
VALUES = f"""
    {{id}}, CASE WHEN n < 5 THEN 'shop.rare' ELSE 'shop.job_' || (n % 50) END,
    CASE WHEN n < 5 THEN 'rare' ELSE 'queue-' || (n / 1000 % 7) END, n % 3,
    '{{{{"args":[],"kwargs":{{{{}}}}}}}}',
    {{at}}, {{at}}, 3, 2, 300, 0.2, 1, 0, '',
    CASE WHEN n % 1000 < 50 THEN {JobState.READY} WHEN n % 1000 = 50 THEN {JobState.RUNNING}
         WHEN n % 1000 < 71 THEN {JobState.DEAD_LETTERED} WHEN n % 1000 < 100 THEN {JobState.CANCELLED}
         ELSE {JobState.SUCCEEDED} END,
    CASE n % 1000 WHEN 50 THEN 'host:1:a' ELSE '' END, CASE n % 1000 WHEN 50 THEN {{at}} END,
    CASE WHEN n % 1000 <= 50 THEN NULL WHEN n BETWEEN 500000 AND 510000 THEN {{tie}} ELSE {{at}} END
"""
FILL = {
    "postgresql": (
        f"INSERT INTO {TABLE} ({COLUMNS}) SELECT "  # noqa: S608
        + VALUES.format(
            id="(lpad(to_hex(1760000000000 + n), 12, '0') || '7' || lpad(to_hex(n % 4096), 3, '0')"
            " || '8' || lpad(to_hex(n), 15, '0'))::uuid",
            at="(now() - '20 days'::interval + n * '1 second'::interval)",
            tie="(now() - '20 days'::interval + 505000 * '1 second'::interval)",
        )
        + f" FROM generate_series(0, {ROWS - 1}) n"
    ),
    "sqlite": (
        f"WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < {ROWS - 1}) "  # noqa: S608
        f"INSERT INTO {TABLE} ({COLUMNS}) SELECT "
        + VALUES.format(
            id="printf('%012x7%03x8%015x', 1760000000000 + n, n % 4096, n)",
            at="strftime('%Y-%m-%d %H:%M:%f', 1760000000 + n, 'unixepoch')",
            tie="'2025-10-15 00:00:00.000'",
        )
        + " FROM r"
    ),
}


@pytest.fixture(scope="module")
def million(django_db_setup, django_db_blocker):
    """Fill the table, and leave it empty."""
    with django_db_blocker.unblock(), filled(FILL):
        yield


LISTS = {
    "all": "",
    "ready": "?state=ready",
    "ready of a queue": "?state=ready&queue=queue-3",
    "ready of a name": "?state=ready&name=job_7",
    "running": "?state=running",
    "running of a queue": "?state=running&queue=queue-1",
    "succeeded": "?state=succeeded",
    "dead-lettered": "?state=dead-lettered",
    "dead-lettered of a queue": "?state=dead-lettered&queue=queue-3",
    "cancelled": "?state=cancelled",
    "waiting": "?state=waiting",
    "quarantined": "?state=quarantined",
    "queue": "?queue=queue-2",
    "name": "?name=job_3",
    "rare queue": "?queue=rare",
    "rare name": "?name=rare",
    "rare name of a state": "?state=succeeded&name=rare",
    "deep": "?after=~{middle}",
    "deep back": "?before=~{middle}",
    "deep in a queue": "?queue=queue-2&after=~{middle}",
    "deep among ended": "?state=succeeded&after={instant}~{middle}",
    "deep in a tie": "?state=succeeded&after={tie}~{middle}",
    "deep among ready": "?state=ready&after={instant}~{middle}",
    "id": "?q={middle}",
    "nothing": "?q=0190a0a0-0000-7000-8000-000000000000",
}


def address(query):
    rows = Job.objects.filter(state=JobState.SUCCEEDED)
    middle = Job.objects.order_by("pk").filter(name="shop.job_7")[10_000]
    ties = Job.objects.filter(worker="", state=JobState.SUCCEEDED, pk__gt=middle.pk)
    tie = ties.order_by("pk")[1_000].finished_at if "{tie}" in query else middle.due_at
    assert rows.exists()
    iso = [at.isoformat().replace("+00:00", "Z") for at in (middle.due_at, tie)]
    return url("job", "changelist") + query.format(middle=middle.pk, instant=iso[0], tie=iso[1])


def opened(client, page):
    """Return a page, its queries, and how much the database has looked at for it."""
    sent, answers = [], []

    def record(execute, sql, params, many, context):
        sent.append((sql, params))
        return execute(sql, params, many, context)

    def ask():
        with connection.execute_wrapper(record):
            answers.append(client.get(page))

    client.get(page)  # what is looked up once and for all
    looked_at = work(ask)
    [response] = answers
    assert response.status_code == 200
    return response, sent, looked_at


def assert_bounded(sent, looked_at):
    """Assert that nothing counts, and that nothing reads the whole table."""
    if connection.vendor == "sqlite":
        assert looked_at <= MOST_WORK
    for sql, params in sent:
        assert "COUNT(" not in sql
        if connection.vendor == "postgresql" and TABLE in sql:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
                [[told]] = cursor.fetchall()
            [root] = json.loads(told) if isinstance(told, str) else told
            for node in nodes(root["Plan"]):
                assert (node["Node Type"], node.get("Relation Name")) != ("Seq Scan", TABLE), sql
                assert node["Actual Rows"] * node["Actual Loops"] <= 60_000, sql


def nodes(root):
    yield root
    for child in root.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.usefixtures("million")
class TestMillion:
    @pytest.mark.parametrize("query", LISTS.values(), ids=LISTS)
    def test_a_list(self, superuser, query, record_property):
        response, sent, looked_at = opened(superuser, address(query))

        record_property("looked at", looked_at)
        print(f"{connection.vendor} {query or 'all'}: {looked_at} steps, {len(sent)} queries")  # noqa: T201
        assert_bounded(sent, looked_at)
        lanes = 2 * 21 if connection.vendor == "sqlite" and "ready" in query else 0
        assert len(sent) - lanes <= 16
        if "rare" not in query and not re.search("waiting|quarantined|q=0190", query):
            assert response.context["cl"].result_list

    def test_pages_follow_each_other_at_depth(self, superuser):
        """Ten pages on from the middle, each beginning where the one before ended."""
        page, last = address("?after=~{middle}"), None
        for _ in range(10):
            response = superuser.get(page)
            ids = [job.pk for job in response.context["cl"].result_list]
            assert len(ids) == 50
            assert last is None or ids[0] < last
            assert Job.objects.filter(pk__gt=ids[0], pk__lt=last or ids[0]).count() == 0
            last = ids[-1]
            found = re.search(r'rel="next" href="([^"]*)"', response.content.decode())
            page = url("job", "changelist") + unescape(found[1])

    @pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING, JobState.SUCCEEDED])
    def test_a_job_s_page(self, superuser, state):
        job = Job.objects.filter(state=state).order_by("pk")[100]
        Attempt.objects.create(job=job, number=1, worker="w", finished_at=job.due_at, outcome="failed")

        _, sent, looked_at = opened(superuser, url("job", "change", job.pk))

        assert_bounded(sent, looked_at)
        assert len(sent) <= 12

    def test_the_leases(self, superuser):
        _, sent, looked_at = opened(superuser, url("lease", "changelist"))

        assert_bounded(sent, looked_at)
        assert len(sent) <= 10
