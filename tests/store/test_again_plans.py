"""What people ask of keys goes along the key's index, however many jobs lie beside."""

from __future__ import annotations

import json
import re

import pytest
from django.db import connection

from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import again, generations
from tests.filled import TABLE, filled
from tests.store.test_plans import sent_by

pytestmark = [pytest.mark.django_db, pytest.mark.only_on("postgres", "sqlite")]

# One in three has no key, one in three a key of its own, one in three a key that all of these share.
COLUMNS = """id, name, queue, priority, payload, enqueued_at, due_at, max_attempts, backoff_base, backoff_cap,
    backoff_jitter, attempt, failures, cause, state, worker, finished_at, key, generation"""
VALUES = f"""'shop.job', 'queue-' || (n % 7), 0, '{{{{}}}}', {{at}}, {{at}}, 3, 2, 300, 0.2, 1, 0, '',
    CASE WHEN n % 100 = 1 THEN {JobState.READY} ELSE {JobState.SUCCEEDED} END, '', {{at}},
    CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN 'own:' || n ELSE 'all' END,
    CASE n % 3 WHEN 0 THEN NULL ELSE n END"""
FILL = {
    "postgresql": f"INSERT INTO {TABLE} ({COLUMNS}) SELECT gen_random_uuid(), {VALUES.format(at='now()')} "  # noqa: S608
    "FROM generate_series(0, 59999) n",
    "sqlite": f"WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < 59999) "  # noqa: S608
    f"INSERT INTO {TABLE} ({COLUMNS}) SELECT lower(hex(randomblob(16))), "
    f"{VALUES.format(at="'2026-01-01 00:00:00'")} FROM r",
}

QUESTIONS = {
    "listed": lambda: generations.listed("queue-3", "all", limit=21, using="default"),
    "unfinished": lambda: generations.unfinished("queue-1", "own:1", using="default"),
    "with key": lambda: generations.with_key("all", limit=1000, using="default"),
    "with key and queue": lambda: generations.with_key("all", "queue-3", limit=1000, using="default"),
    "queues of": lambda: generations.queues_of("all", using="default"),
}

#: A step that reads all jobs. PostgreSQL reads the other tables whole, for they are empty here.
READS_ALL = re.compile(rf"'Seq Scan'[^{{}}]*'Relation Name': '{TABLE}'|SCAN django")


@pytest.fixture(scope="module")
def crowd(django_db_setup, django_db_blocker):
    """Fill the table, and leave it empty."""
    with django_db_blocker.unblock(), filled(FILL):
        yield


def plans(call):
    """Return the plan of each statement on jobs."""
    answers = []
    sent = sent_by(lambda: answers.append(call()))
    assert all(answers)
    word = "EXPLAIN (FORMAT JSON)" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        for sql, params in sent:
            if TABLE in sql:
                cursor.execute(f"{word} {sql}", params)
                yield json.dumps([list(map(str, told)) for told in cursor.fetchall()])


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_goes_along_the_keys_index(question):
    told = list(plans(question))

    assert told
    for plan in told:
        assert "backwave_key" in plan, plan
        assert not READS_ALL.search(plan)
        assert "TEMP B-TREE" not in plan


@pytest.mark.usefixtures("crowd")
def test_running_again_reads_no_more_than_its_keys():
    job = Job.objects.get(key="own:4")

    told = list(plans(lambda: again.run_again([job.pk], using="default")))

    assert told
    for plan in told:
        assert not READS_ALL.search(plan), plan
