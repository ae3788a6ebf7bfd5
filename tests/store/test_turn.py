"""What a worker under load asks for in its turn: outcomes written and jobs claimed, some ahead of a slot."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_backwave.core.outcome import InDoubt, Released, Snoozed, Succeeded
from django_backwave.core.protocol import Place, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from django_backwave.store.claim import Order, Taken, take
from django_backwave.store.settle import settle_and_take
from tests.factories import (
    FAILED,
    GRACE,
    LEASE,
    NOW,
    STRANGER,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    outcomes,
    ready,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import locked, needs_row_locks, race
from tests.store.test_settle import history_away

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

APPLIED, CANCELLED, LOCKED, STALE = Verdict.APPLIED, Verdict.CANCELLED, Verdict.LOCKED, Verdict.STALE
LONE = '"\ud800"'  # half of a character, which no database takes

#: What a job may have that keeps it from waiting for a slot.
HASTY = {
    "a failure": {"failures": 1},
    "its last attempt": {"max_attempts": 1},
    "a time to start": {"expires_at": after(60)},
}
each_kind = pytest.mark.parametrize("columns", HASTY.values(), ids=HASTY)


def order(limit=9, slots=None, *, queue="default", **options):
    return Order(queue, limit, limit if slots is None else slots, LEASE, **options)


def claim(limit=9, slots=None, *, worker=WORKER, using="default", now=NOW, **options):
    return take(order(limit, slots, **options), worker=worker, using=using, now=now)


def turn(reports, order, *, worker=WORKER, using="default", now=NOW):
    """Settle and take; return the verdicts in the reports' order, and what was taken."""
    verdicts, taken = settle_and_take(
        reports, order, worker=worker, unroutable_grace=GRACE, using=using, now=now
    )
    return [verdicts[each.job.key] for each in reports], taken


def ids(jobs):
    return [job.job_id for job in jobs]


# Ahead of the slots.


@each_kind
def test_who_may_not_wait_is_taken_for_a_free_slot_only(columns):
    """A crash costs what was claimed a failure, begun or not: nobody's last one, and none of a poison job."""
    hasty, patient = [ready(**columns) for _ in range(3)], [ready() for _ in range(3)]

    taken = claim(limit=6, slots=2)

    assert ids(taken.jobs) == [job.pk for job in (*hasty[:2], *patient)]
    assert [job.may_wait for job in taken.jobs] == [False] * 2 + [True] * 3
    assert taken.passed == 1
    left = row(hasty[2])
    assert (left.job_state, left.attempt, left.worker, left.lease_expires_at) == (JobState.READY, 0, "", None)


@each_kind
def test_without_a_free_slot_nobody_of_these_is_taken(columns):
    jobs = [ready(**columns) for _ in range(3)]
    before = contents()

    taken = claim(limit=2, slots=0)

    assert taken == Taken([], [], passed=2)
    assert contents() == before, "and nothing of them is written"
    assert ids(claim(limit=3).jobs) == [job.pk for job in jobs]


@each_kind
def test_as_many_slots_as_jobs_and_nobody_is_passed_over(columns):
    ready(**columns), ready(), ready(**columns)

    taken = claim(limit=3)

    assert (len(taken.jobs), taken.passed) == (3, 0)


def test_those_taken_for_slots_are_the_first_in_queue_order():
    """Over all priorities; those passed over count for the limit, so that a claim reads no more than that."""
    last = ready(failures=1, priority=-1)
    second = ready(failures=1, due_at=after(-1))
    patient = ready(due_at=after(-2))
    first = ready(failures=1, priority=5)
    beyond = ready(priority=-1)

    taken = claim(limit=4, slots=2)

    assert ids(taken.jobs) == [first.pk, patient.pk, second.pk]
    assert taken.passed == 1
    assert {row(job).job_state for job in (last, beyond)} == {JobState.READY}


def test_what_is_too_late_takes_no_slot():
    late = ready(expires_at=after(-1))
    job = ready(failures=1)

    taken = claim(limit=5, slots=1)

    assert (ids(taken.jobs), ids(taken.late), taken.passed) == ([job.pk], [late.pk], 0)
    assert row(late).job_state is JobState.CANCELLED


def test_a_retry_may_wait_no_more():
    """Also one whose first attempt cost no failure: only those that never failed may."""
    handed_back, failed = claimed(queue="default"), claimed(queue="default")
    send(report(handed_back, Released()), report(failed, FAILED))

    taken = claim(limit=9, slots=0, now=after(60))

    assert ids(taken.jobs) == [handed_back.job_id]
    assert taken.passed == 1


def test_slots_count_while_names_are_left_alone():
    ready(name="a"), ready(name="a", failures=1)
    patient, hasty = ready(name="b"), [ready(name="b", failures=1) for _ in range(2)]

    taken = claim(limit=9, slots=1, without=("a",))

    assert ids(taken.jobs) == [patient.pk, hasty[0].pk]
    assert taken.passed == 1


@committing
def test_those_passed_over_are_there_for_the_next_worker():
    """Neither locked nor changed, once the claim has answered; and nobody gets what the first has taken."""
    needs_row_locks()
    hasty, patient = [ready(failures=1) for _ in range(2)], [ready() for _ in range(2)]
    first = claim(limit=9, slots=0)
    assert (ids(first.jobs), first.passed) == ([job.pk for job in patient], 2)

    with second_connection() as other:
        second = claim(limit=9, worker=STRANGER, using=other)

    assert ids(second.jobs) == [job.pk for job in hasty]


@committing
def test_two_open_claims_share_the_queue():
    """G3: what one has taken ahead, and holds, the other leaves alone without waiting for it."""
    needs_row_locks()
    jobs = [ready(failures=number % 2) for number in range(8)]
    with second_connection() as other, transaction.atomic(using=other):
        first = claim(limit=4, slots=1, worker=STRANGER, using=other)
        assert (ids(first.jobs), first.passed) == ([jobs[0].pk, jobs[1].pk, jobs[2].pk], 1)

        second = claim(limit=4, slots=4)

    assert set(ids(second.jobs)) <= {job.pk for job in jobs[3:]}
    assert len(second.jobs) == 4


@committing
@pytest.mark.slow
def test_racing_workers_with_few_slots_never_get_the_same_job():
    """G3."""
    jobs = [ready(failures=number % 3 % 2) for number in range(120)]

    def work(worker):
        return lambda number: claim(limit=5, slots=number % 3, worker=worker)

    shares = race(20, work(WORKER), work(STRANGER))

    got = [job.job_id for share in shares for taken in share for job in taken.jobs]
    got += ids(claim(limit=200).jobs)
    assert sorted(got) == sorted(job.pk for job in jobs)


# Behind a watermark: a hint for PostgreSQL. Elsewhere it may be left alone, and never hides a job.

on_postgres = pytest.mark.only_on("postgres")


def place(job):
    return Place(job.priority, job.due_at, job.pk)


@on_postgres
def test_a_claim_looks_behind_the_places_that_earlier_ones_have_come_to():
    before, at, behind = (ready(due_at=after(due)) for due in (-3, -2, -1))

    assert ids(claim(past=(place(at),)).jobs) == [behind.pk]
    assert ids(claim().jobs) == [before.pk, at.pk]


@on_postgres
def test_jobs_of_one_instant_are_told_apart_by_id_there():
    first, second, third = (ready(due_at=after(-1)) for _ in range(3))

    assert ids(claim(past=(place(second),)).jobs) == [third.pk]
    assert {row(job).job_state for job in (first, second)} == {JobState.READY}


def test_further_queues_give_what_the_first_does_not_have():
    one = ready(queue="default")
    mail = [ready(queue="mail", priority=5), ready(queue="mail", priority=1)]
    report = ready(queue="reports", priority=9)
    ready(queue="others", priority=9)
    ready(queue="mail", due_at=after(60), priority=9)

    taken = claim(9, also=("mail", "reports", "nobody"))

    assert ids(taken.jobs) == [one.pk, *(job.pk for job in mail), report.pk]
    assert {job.queue for job in taken.jobs} == {"default", "mail", "reports"}


def test_the_limit_holds_for_all_queues_together():
    first = [ready(queue="default") for _ in range(2)]
    other = [ready(queue="mail", priority=9) for _ in range(3)]

    assert ids(claim(4, also=("mail",)).jobs) == [job.pk for job in [*first, *other[:2]]]
    assert ids(claim(4, also=("mail",)).jobs) == [other[2].pk]


def test_slots_are_for_all_queues_together():
    first, second = ready(queue="default", max_attempts=1), ready(queue="mail", max_attempts=1)
    ahead = ready(queue="mail")

    taken = claim(9, 1, also=("mail",))

    assert (ids(taken.jobs), taken.passed) == ([first.pk, ahead.pk], 1)
    assert row(second).state == JobState.READY


def test_a_place_counts_for_the_first_queue_only():
    jobs = [ready(queue="default") for _ in range(2)]
    other = ready(queue="mail")
    [seen] = claim(1).jobs

    taken = claim(9, past=(place(jobs[1]),), also=("mail",))

    hidden = [] if connection.vendor == "postgresql" else [jobs[1].pk]  # elsewhere a place is no hint
    assert seen.job_id == jobs[0].pk
    assert ids(taken.jobs) == [*hidden, other.pk]


@on_postgres
def test_a_place_counts_for_its_own_priority():
    """A job that comes in with another one is seen by the very next claim."""
    high, low = ready(priority=5, due_at=after(-9)), ready(priority=-5, due_at=after(-9))
    hidden, last = ready(due_at=after(-9)), ready(due_at=after(-1))

    taken = claim(past=(place(hidden),))

    assert ids(taken.jobs) == [high.pk, last.pk, low.pk]
    assert row(hidden).job_state is JobState.READY


@on_postgres
def test_places_of_priorities_that_are_gone_are_no_matter():
    job = ready()

    assert ids(claim(past=(Place(7, NOW, job.pk), Place(-7, NOW, job.pk))).jobs) == [job.pk]


@on_postgres
def test_slots_count_behind_a_place_too():
    hidden = ready(failures=1)
    hasty, patient = [ready(failures=1) for _ in range(2)], ready()

    taken = claim(limit=9, slots=1, past=(place(hidden),))

    assert (ids(taken.jobs), taken.passed) == ([hasty[0].pk, patient.pk], 1)


def test_while_names_are_left_alone_places_say_where_the_windows_begin():
    """They are not those of full claims, but of looks: everything before them was of a paused name."""
    ready(name="a", due_at=after(-3)), ready(name="a", due_at=after(-2))
    first, second = ready(name="b", due_at=after(-2)), ready(name="b", due_at=after(-1))

    taken = claim(past=(place(first),), without=("a",))

    assert ids(taken.jobs) == [second.pk]
    assert ids(claim(without=("a",)).jobs) == [first.pk]


# Both in one.


def mixed(worker=WORKER):
    """Return reports of every kind, and the verdicts that they should get."""
    good, old, other, bare = claimed(), claimed(), claimed(), claimed()
    cancelled, won, snoozed = claimed(), claimed(), claimed()
    Job.objects.filter(pk__in=[cancelled.job_id, won.job_id]).update(cancel_requested_at=NOW)
    send(report(before := claimed()))
    return {
        report(good, Succeeded('{"a":1}'), tags=(("order", "7"),), progress="[1]"): APPLIED,
        report(old._replace(attempt=7)): STALE,
        report(other, FAILED): APPLIED,
        report(bare, Released(), started_after=None): APPLIED,
        report(cancelled, FAILED): CANCELLED,
        report(won): APPLIED,
        report(snoozed, Snoozed(30)): APPLIED,
        report(before, sent_before=True): APPLIED,
    }


def written(jobs):
    """Return what jobs' rows and histories say, without what differs from one run to the next."""
    rows = [
        {
            name: value
            for name, value in Job.objects.filter(pk=job.job_id).values().get().items()
            if name not in ("id", "queue")
        }
        for job in jobs
    ]
    return rows, [outcomes(job) for job in jobs]


def test_a_turn_writes_and_claims_what_settle_and_take_do():
    """G5, G8: the same verdicts, rows and history; and the same jobs, in the same order."""
    parts = []
    for queue in ("one", "two"):
        reports = mixed()
        for number in range(4):
            ready(queue=queue, failures=number % 2, priority=number)
        ready(queue=queue, expires_at=after(-1), priority=9)
        parts.append((reports, order(4, 1, queue=queue)))

    (reports, wanted), (others, same) = parts
    verdicts, taken = turn(list(reports), wanted)
    plain, took = send(*others), take(same, worker=WORKER, using="default", now=NOW)
    results = [(verdicts, taken, reports), (plain, took, others)]

    assert verdicts == plain == list(reports.values())
    assert taken.passed == took.passed == 1
    assert (len(taken.late), len(took.late)) == (1, 1)
    shape = [[(job.priority, job.failures, job.may_wait, job.attempt) for job in r[1].jobs] for r in results]
    assert shape[0] == shape[1] == [(3, 1, False, 1), (2, 0, True, 1)]
    one, two = (written([each.job for each in some]) for _, _, some in results)
    assert one == two


def test_an_attempt_already_settled_is_stale_in_a_turn():
    """G4."""
    stale = report(claimed())
    send(stale)
    before = contents()

    assert turn([stale], order())[0] == [STALE]
    assert contents() == before


def test_a_job_handed_back_in_a_turn_is_not_claimed_in_the_same():
    """Where both are one statement. Elsewhere it may be; in either case it is one worker's, or READY."""
    job = claimed(queue="default", now=after(-1))

    verdicts, taken = turn([report(job, Released())], order())

    assert verdicts == [APPLIED]
    assert row(job).job_state is (JobState.RUNNING if taken.jobs else JobState.READY)
    assert ids(taken.jobs + claim().jobs) == [job.job_id]


@on_postgres
def test_a_turn_is_one_statement():
    """G12: one round trip, and no transaction around it, whatever is in it."""
    jobs = [claimed() for _ in range(5)]
    for number in range(5):
        ready(failures=number % 2)

    with CaptureQueriesContext(connection) as queries:
        verdicts, taken = turn(
            [report(job) for job in jobs], order(4, 1, past=(Place(0, after(-9), jobs[0].job_id),))
        )

    assert (verdicts, len(taken.jobs), taken.passed) == ([APPLIED] * 5, 3, 1)
    statements = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert len(statements) == 1, statements


@on_postgres
@committing
def test_outside_a_transaction_it_is_nothing_but_that():
    job, _ = claimed(), ready()

    with CaptureQueriesContext(connection) as queries:
        turn([report(job)], order())

    assert len(queries) == 1, [query["sql"] for query in queries]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_outcome_that_the_database_refuses_keeps_nobody_from_claiming(position):
    """The others are written, the refused one is a failure, and the jobs are claimed once."""
    jobs = [claimed() for _ in range(3)]
    given = [Succeeded("1")] * 3
    given[position] = Succeeded(LONE)
    due = [ready() for _ in range(2)]

    verdicts, taken = turn([*map(report, jobs, given)], order())

    assert verdicts == [APPLIED] * 3
    assert ids(taken.jobs) == [job.pk for job in due]
    assert {row(job).attempt for job in due} == {1}
    refused = jobs.pop(position)
    assert [row(job).output for job in jobs] == [1, 1]
    [attempt] = attempts(refused)
    assert attempt.message.startswith("The database refused to store this attempt's outcome: ")


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_in_doubt_is_looked_up_before_the_claim(landed):
    """G7: the history decides, as in a settle by itself."""
    job, due = claimed(), ready()
    if landed:
        send(report(job))
    doubtful = report(job, InDoubt(FAILED.error))

    verdicts, taken = turn([doubtful], order())

    assert verdicts == [Verdict.LANDED if landed else APPLIED]
    assert outcomes(job) == [(1, "succeeded" if landed else "failed")]
    assert ids(taken.jobs) == [due.pk]


@committing
def test_a_turn_that_fails_has_changed_nothing_that_it_has_not_told():
    """G5: on PostgreSQL neither half; elsewhere the settle fails first, and nothing is claimed."""
    job = claimed()
    ready()
    before = contents()

    with history_away(), pytest.raises(DatabaseError):
        turn([report(job)], order())

    assert contents() == before
    assert turn([report(job)], order())[0] == [APPLIED]


NO_CLAIMS = f"""
    CREATE FUNCTION no_claims() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no claims today'; END $$;
    CREATE TRIGGER no_claims BEFORE UPDATE ON {Job._meta.db_table} FOR EACH ROW
      WHEN (NEW.state = {JobState.RUNNING}) EXECUTE FUNCTION no_claims()
"""


@on_postgres
def test_a_claim_that_fails_takes_the_outcomes_along():
    """G5: both are one statement, so what a worker has no answer to has not been written by half."""
    job = claimed()
    ready()
    before = contents()
    with connection.cursor() as cursor:
        cursor.execute(NO_CLAIMS)

    with pytest.raises(DatabaseError, match="no claims today"):
        turn([report(job)], order())

    assert contents() == before


@committing
def test_a_locked_row_delays_neither_the_others_nor_the_claim():
    """It is LOCKED and tried again; a locked job that is due is passed over."""
    good, stuck = claimed(), claimed()
    held, due = ready(), ready()

    with locked(stuck, held):
        verdicts, taken = turn([report(good), report(stuck)], order())

    assert verdicts == [APPLIED, LOCKED]
    assert ids(taken.jobs) == [due.pk]
    assert turn([report(stuck)], order())[0] == [APPLIED]


def test_a_turn_of_another_worker_writes_nothing():
    """G4: the fence stands in a turn as well; but what is due is for everybody."""
    job, due = claimed(), ready()

    verdicts, taken = turn([report(job)], order(), worker=STRANGER)

    assert verdicts == [STALE]
    assert (row(job).job_state, row(job).worker) == (JobState.RUNNING, WORKER)
    assert (ids(taken.jobs), row(due).worker) == ([due.pk], STRANGER)
    assert not Attempt.objects.exists()


def test_after_the_end_of_the_lease_a_turn_writes_nothing():
    """G4: from the very instant."""
    job = claimed()

    assert turn([report(job)], order(), now=after(LEASE))[0] == [STALE]


@committing
@pytest.mark.slow
def test_racing_turns_settle_each_job_once_and_share_what_is_due():
    """G3, G5."""
    for _ in range(100):
        ready()

    def work(worker):
        reports = []

        def one(_):
            verdicts, taken = turn(reports, order(4, 2), worker=worker)
            assert set(verdicts) <= {APPLIED}
            reports[:] = [report(job) for job in taken.jobs]
            return len(verdicts)

        return one

    shares = race(30, work(WORKER), work(STRANGER))

    assert sum(map(sum, shares)) == 100
    assert Job.objects.filter(state=JobState.SUCCEEDED, attempt=1).count() == 100
    assert Attempt.objects.count() == 100
