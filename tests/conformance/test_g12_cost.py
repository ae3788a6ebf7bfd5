"""G12: one claim statement per queue and batch, one settle transaction per batch, for any history."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from django_backwave.store.claim import claim, scan
from django_backwave.store.expire import expire
from tests.conformance.meter import gather_statistics, work
from tests.factories import FAILED, LEASE, NOW, WORKER, after, claimed, new_job, ready, report, send

pytestmark = [pytest.mark.guarantee("G12"), pytest.mark.django_db(transaction=True)]

HISTORY = 3000


def take(limit=1):
    return claim("default", limit, worker=WORKER, lease=LEASE, using="default", now=NOW)


def crowd():
    """Fill the table with jobs that have ended, one attempt each."""
    jobs = [
        Job(
            id=job.id, name=job.name, queue="default", payload={}, state=JobState.SUCCEEDED.value,
            enqueued_at=after(-9), due_at=after(-9), finished_at=NOW, max_attempts=3, backoff_base=1,
            backoff_cap=1, backoff_jitter=0, attempt=1,
        )
        for job in (new_job() for _ in range(HISTORY))
    ]  # fmt: skip
    Job.objects.bulk_create(jobs, batch_size=500)
    Attempt.objects.bulk_create(
        (
            Attempt(job_id=job.pk, number=1, worker=WORKER, finished_at=NOW, outcome="succeeded")
            for job in jobs
        ),
        batch_size=500,
    )
    gather_statistics()


def sent(call):
    """Return the statements of a call that touch the jobs, and how many transactions it committed."""
    with CaptureQueriesContext(connection) as queries:
        call()
    statements = [query["sql"] for query in queries]
    about = [sql for sql in statements if "django_backwave_job" in sql]
    return about, sum(sql.startswith("COMMIT") for sql in statements)


@pytest.mark.needs("one_statement")
def test_a_claim_is_one_statement():
    for _ in range(50):
        ready()

    assert [len(sent(lambda limit=limit: take(limit))[0]) for limit in (1, 40)] == [1, 1]


def test_a_claim_of_many_takes_no_more_statements_than_a_claim_of_one():
    for _ in range(60):
        ready()
    one, commits = sent(lambda: take(1))
    many, commits_of_many = sent(lambda: take(50))

    assert len(one) == len(many) <= 6
    assert commits == commits_of_many <= 1


@pytest.mark.parametrize("outcome", [None, FAILED], ids=["success", "failure"])
def test_a_settle_of_many_is_one_transaction(outcome):
    jobs = [claimed() for _ in range(51)]
    reports = [report(job, **({"outcome": outcome} if outcome else {})) for job in jobs]

    _, commits = sent(lambda: send(reports[0]))
    statements, commits_of_many = sent(lambda: send(*reports[1:]))

    assert commits == commits_of_many <= 1
    assert Attempt.objects.count() == 51
    if outcome is None:
        assert len(statements) <= 5, "alike outcomes are written together"


CALLS = {
    "an idle poll": lambda: scan(None, using="default", now=NOW),
    "a claim of nothing": lambda: claim("empty", 10, worker=WORKER, lease=LEASE, using="default", now=NOW),
    "a sweep of nothing": lambda: expire(jitter=lambda: 0.0, using="default", now=NOW),
    "a claim of one": take,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_has_ended_costs_nothing(call):
    """The database looks at about as much with thousands of finished jobs as without them."""
    for _ in range(2):
        ready()
    gather_statistics()
    alone = work(call)
    for _ in range(2):
        ready()
    crowd()

    assert work(call) <= 2 * alone + 100


def test_what_has_ended_adds_nothing_to_a_settle():
    first, second = claimed(), claimed()
    gather_statistics()
    alone = work(lambda: send(report(first)))
    crowd()

    assert work(lambda: send(report(second))) <= 2 * alone + 100
