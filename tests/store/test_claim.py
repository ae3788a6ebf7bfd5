"""Claim: due jobs in queue order, each to one worker, with a new attempt and lease (G3, G6)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from django_backwave.core.outcome import Released
from django_backwave.core.protocol import AttemptKey
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import claim as claiming
from django_backwave.store.claim import scan
from django_backwave.store.enqueue import insert_many
from tests.factories import (
    NOW,
    WORKER,
    after,
    claimed,
    new_job,
    ready,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import locked, needs_row_locks, race

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


def claim(queue="default", limit=100, *, worker=WORKER, lease=60, using="default", now=NOW):
    return claiming.claim(queue, limit, worker=worker, lease=lease, using=using, now=now)


def ids(jobs):
    return [job.job_id for job in jobs]


def test_order_is_priority_then_due_time_then_id():
    """A queue's jobs come by priority, due time and id, whichever was enqueued first."""
    last = ready(priority=-100)
    late = ready(run_after=after(-1))
    early, early_too = ready(run_after=after(-2)), ready(run_after=after(-2))
    first = ready(priority=100)

    taken = claim()

    assert ids(taken) == [first.pk, early.pk, early_too.pk, late.pk, last.pk]


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 7, 8])
def test_limit_takes_the_first_over_all_priorities(limit):
    """A claim takes as many as asked for, from the top, and leaves the others READY."""
    places = [(9, -3), (9, -2), (9, -1), (5, -2), (5, -1), (0, -9), (0, 0)]
    jobs = [ready(priority=priority, run_after=after(due)) for priority, due in reversed(places)]

    taken = claim(limit=limit)

    assert ids(taken) == [job.pk for job in reversed(jobs)][:limit]
    assert Job.objects.filter(state=JobState.READY).count() == max(0, 7 - limit)


def test_only_due_jobs():
    """G10: a job is due at its very instant and not before, whatever its priority."""
    due = ready(run_after=NOW)
    ready(run_after=after(0.000001), priority=100)

    assert ids(claim()) == [due.pk]


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.READY, JobState.RUNNING}))
def test_only_ready_jobs(state):
    """Jobs that wait for others or have ended are never claimed."""
    ready(state=state)

    assert claim() == []
    assert scan(None, using="default", now=NOW) == {}


def test_running_jobs_are_left_alone():
    """G3: a running job is nobody else's, not even when its lease is over, until it is swept."""
    job = claimed()

    assert claim(job.queue, worker="host:2:b", now=after(999)) == []


def test_only_the_queue_asked_for():
    """A claim takes from one queue; others keep their jobs."""
    mail, _ = ready(queue="mail"), ready(queue="video")

    assert ids(claim("mail")) == [mail.pk]
    assert list(scan(None, using="default", now=NOW)) == ["video"]


def test_scan_gives_the_wait_until_each_queue_is_due():
    """The scan tells how long each queue's earliest job is off, over all priorities."""
    ready(queue="now", run_after=after(-5))
    ready(queue="soon", run_after=after(30), priority=-1)
    ready(queue="soon", run_after=after(90), priority=10)
    ready(queue="top", run_after=after(80), priority=0)
    ready(queue="top", run_after=after(40), priority=10)
    ready(queue="ended", state=JobState.SUCCEEDED)

    for queues in (None, ["now", "soon", "top", "ended"]):
        waits = scan(queues, using="default", now=NOW)

        assert waits == pytest.approx({"now": -5, "soon": 30, "top": 40})


def test_scan_of_given_queues():
    """The scan of given queues leaves out the others, and those without a ready job."""
    ready(queue="a"), ready(queue="b", run_after=after(7)), ready(queue="c")

    waits = scan(["b", "a", "nothing"], using="default", now=NOW)

    assert waits == pytest.approx({"a": 0, "b": 7})
    assert scan([], using="default", now=NOW) == {}


def test_a_claim_hands_over_the_row():
    """What a worker gets is what the row says, with the payload as its stored text."""
    payload = '{"args":[1e22,"€"],"kwargs":{"b":1,"a":2}}'
    job = ready(payload=payload, priority=3, lease_seconds=5, failures=1, unroutable_since=after(-9))

    [taken] = claim()

    assert (taken.job_id, taken.name, taken.queue, taken.priority) == (job.pk, job.name, "default", 3)
    assert taken.payload == payload
    assert json.loads(taken.payload)["args"] == [1e22, "€"]
    assert (taken.failures, taken.max_attempts, taken.lease_seconds) == (1, 3, 5)
    assert (taken.backoff.base, taken.backoff.cap) == (8, 100)
    assert (taken.due_at, taken.enqueued_at, taken.claimed_at) == (NOW, NOW, NOW)
    assert taken.unroutable_for == pytest.approx(9)


@pytest.mark.parametrize(("own", "ends"), [(None, 60), (5, 5), (0.5, 0.5)])
def test_a_claim_begins_lease_and_attempt(own, ends):
    """G3, G6: the claim itself writes who holds the job, until when, and the next attempt's number."""
    job = ready(lease_seconds=own, attempt=4, started_at=after(-99))

    [taken] = claim(lease=60)

    held = row(job)
    assert (held.state, held.worker, held.attempt) == (JobState.RUNNING, WORKER, 5)
    assert held.lease_expires_at == after(ends)
    assert held.started_at is None
    assert taken.key == AttemptKey(job.pk, 5)


def test_jobs_of_one_claim_keep_their_own_numbers():
    """G6: jobs that were tried before and jobs with a lease of their own may be claimed together."""
    numbers = [(0, None), (3, None), (0, 5.0), (3, 5.0), (0, None)]
    jobs = [ready(attempt=attempt, lease_seconds=own) for attempt, own in numbers]

    taken = claim()

    assert [job.attempt for job in taken] == [attempt + 1 for attempt, _ in numbers]
    assert [row(job).attempt for job in jobs] == [attempt + 1 for attempt, _ in numbers]
    assert [row(job).lease_expires_at for job in jobs] == [after(own or 60) for _, own in numbers]


def test_a_row_taken_in_between_is_left_out(monkeypatch):
    """G3: where rows cannot be locked, a job that a rival took after it was picked stays the rival's."""
    jobs, rival = [ready() for _ in range(3)], "host:2:b"
    read = claiming._claimed

    def slow_read(values, at):
        Job.objects.filter(pk=jobs[1].pk, state=JobState.READY).update(
            state=JobState.RUNNING, attempt=1, worker=rival, lease_expires_at=after(60)
        )
        return read(values, at)

    monkeypatch.setattr(claiming, "_claimed", slow_read)
    monkeypatch.setattr(claiming, "is_postgres", lambda using: False)

    taken = claim()

    assert ids(taken) == [jobs[0].pk, jobs[2].pk]
    assert [row(job).worker for job in jobs] == [WORKER, rival, WORKER]


def test_a_row_taken_and_handed_back_in_between_is_left_out(monkeypatch):
    """G6: nor is a number given twice to a job that a rival took and handed back meanwhile."""
    job = ready()
    read = claiming._claimed

    def slow_read(values, at):
        Job.objects.filter(pk=job.pk).update(attempt=1)
        return read(values, at)

    monkeypatch.setattr(claiming, "_claimed", slow_read)
    monkeypatch.setattr(claiming, "is_postgres", lambda using: False)

    assert claim() == []

    assert (row(job).job_state, row(job).attempt) == (JobState.READY, 1)


def test_attempt_rises_with_every_claim():
    """G6: the attempt rises with each claim, also when the one before cost no failure."""
    job = claimed()

    for number in (2, 3, 4):
        send(report(job, Released()))
        job = reclaimed(job)
        assert (job.attempt, job.failures) == (number, 0)


@committing
def test_an_open_claim_does_not_hold_up_the_next():
    """G3: while one worker's claim has not committed, a second gets the next ones, without waiting."""
    needs_row_locks()
    jobs = [ready(priority=priority) for priority in (5, 5, 5, 5, 1, 1)]
    with second_connection() as other, transaction.atomic(using=other):
        first = claim(limit=3, using=other, worker="host:2:b")

        second = claim(limit=2)

    assert ids(first) == [job.pk for job in jobs[:3]]
    assert ids(second) == [jobs[3].pk, jobs[4].pk]


@committing
def test_locked_rows_are_passed_over():
    """One row that somebody has locked delays no other."""
    stuck, free = ready(priority=1), ready()

    with locked(stuck):
        taken = claim()

    assert ids(taken) == [free.pk]
    assert ids(claim()) == [stuck.pk]


@committing
def test_a_claim_locks_no_more_than_it_takes():
    """G3: what one worker did not take is there for the next, in each priority."""
    needs_row_locks()
    jobs = [ready(priority=priority) for priority in (3, 3, 2, 2, 1, 1)]
    with second_connection() as other, transaction.atomic(using=other):
        claim(limit=1, using=other)

        assert ids(claim(limit=9)) == [job.pk for job in jobs[1:]]


@committing
def test_a_claim_that_rolls_back_took_nothing():
    """A claim whose transaction ends badly leaves the job READY, with its number unused."""
    job = ready()

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        claim()
        raise ZeroDivisionError

    assert (row(job).state, row(job).attempt) == (JobState.READY, 0)


@committing
@pytest.mark.slow
def test_two_workers_never_get_one_job():
    """G3: thousands of claims by racing workers give each job to exactly one, round after round."""
    count, rounds, workers = 500, 4, 4
    insert_many([new_job(priority=number % 3) for number in range(count)], using="default", now=NOW)

    for number in range(1, rounds + 1):
        taken = drain(workers)

        assert len(taken) == count
        assert set(Counter(job.job_id for job in taken).values()) == {1}
        assert {job.attempt for job in taken} == {number}
        assert Job.objects.filter(state=JobState.RUNNING).count() == count
        give_back(workers)


def drain(workers):
    """Let workers claim at the same time until nothing is left; return all they got."""

    def work(name):
        taken = []
        while got := claim(limit=7, worker=name):
            taken += got
        return taken

    names = [f"worker-{number}" for number in range(workers)]
    shares = race(1, *(lambda _, name=name: work(name) for name in names))
    for name, [share] in zip(names, shares, strict=True):
        assert {job.worker for job in Job.objects.filter(pk__in=ids(share))} <= {name}
    return [job for [share] in shares for job in share]


def give_back(workers):
    Job.objects.filter(state=JobState.RUNNING).update(state=JobState.READY, worker="", lease_expires_at=None)


@committing
@pytest.mark.slow
def test_racing_for_a_single_job():
    """G3: of two workers that ask for the same one job at the same instant, one gets it."""
    jobs = [ready(queue=f"queue-{number}") for number in range(100)]

    def ask(worker):
        return lambda number: claim(jobs[number].queue, 1, worker=worker)

    first, second = race(len(jobs), ask("a"), ask("b"))

    assert [len(one) + len(two) for one, two in zip(first, second, strict=True)] == [1] * 100


@committing
@pytest.mark.slow
def test_an_open_claim_over_many_rows_delays_no_other():
    """G3: with 1,000 ready jobs and 30,000 that come due later at a higher priority, nobody waits for locks.

    A claim that sorted what no index serves would lock every row that it reads on MySQL.
    """
    needs_row_locks()
    insert_many([new_job(priority=5, run_after=after(3600)) for _ in range(30_000)], using="default", now=NOW)
    insert_many([new_job() for _ in range(1000)], using="default", now=NOW)
    with second_connection() as other, transaction.atomic(using=other):
        first = claim(limit=10, worker="host:1:a", using=other)

        with bounded_waits():
            second = claim(limit=10, worker="host:2:b")

    assert (len(first), len(second)) == (10, 10)
    assert ids(first) + ids(second) == sorted(ids(first) + ids(second)), "the next ten, in order"


@contextmanager
def bounded_waits() -> Iterator[None]:
    """Let a wait for a lock fail after a second."""
    begin, end = {
        "postgresql": ("SET lock_timeout = 1000", "SET lock_timeout = DEFAULT"),
        "mysql": ("SET innodb_lock_wait_timeout = 1", "SET innodb_lock_wait_timeout = DEFAULT"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(begin)
        try:
            yield
        finally:
            cursor.execute(end)
