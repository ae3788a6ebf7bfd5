"""A claim past 100,000 jobs of a paused name costs a bounded number of reads (G12)."""

from __future__ import annotations

import pytest
from django.db import connection

from django_backwave.core.states import JobState
from django_backwave.store import aside
from django_backwave.store.claim import Order, take
from tests.factories import WORKER, ready
from tests.store.test_plans import TABLE, assert_indexed, buffers, nodes, plan, statements

pytestmark = [pytest.mark.django_db, pytest.mark.only_on("postgres"), pytest.mark.slow]

# All of one instant, as `enqueue_many` writes them.
PAUSED = f"""
    INSERT INTO {TABLE} (id, name, queue, priority, payload, enqueued_at, due_at, max_attempts,
        backoff_base, backoff_cap, backoff_jitter, attempt, failures, cause, state, worker)
    SELECT gen_random_uuid(), 'paused', 'paused', 0, '{{}}', now(), now() - '1 hour'::interval, 3,
           2, 300, 0.2, 0, 0, '', {JobState.READY}, ''
      FROM generate_series(1, 100000)
"""  # noqa: S608


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    """Fill the table, and leave it empty."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(PAUSED)
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
        yield
        cursor.execute(f"TRUNCATE {TABLE}")


def order(past=()):
    """Return the order that leaves the paused name alone."""
    return Order("paused", 10, 10, 60, ("paused",), past)


@pytest.mark.usefixtures("crowd", "planner")
def test_a_claim_without_paused_names_at_the_head_of_its_queue():
    """100,000 paused jobs stand first: each claim reads one window of them, and goes on behind it."""
    calls = statements(take, order(), worker=WORKER)

    for statement in calls:
        root = plan(*statement)
        assert buffers(root) < 2 * aside.WINDOW + 200
        for node in nodes(root):
            assert node["Actual Rows"] <= aside.WINDOW
            assert node.get("Rows Removed by Filter", 0) <= aside.WINDOW
        assert_indexed(root)
    assert_indexed(plan(*calls[-1]), "backwave_claim")

    ready(queue="paused", name="other", now=None)
    past, looks, taken = (), 0, []
    while not taken:
        before = past
        found = take(order(past), worker=WORKER, using="default")
        looks, taken, past = looks + 1, found.jobs, found.past
        assert taken or past != before
    assert [job.name for job in taken] == ["other"]
    assert looks == 100_000 // aside.WINDOW + 1
    deep = statements(take, order(past), worker=WORKER)
    assert sum(buffers(plan(*statement)) for statement in deep) < 100, "the next look is cheap"
