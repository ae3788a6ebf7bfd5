"""Tags and progress: written under the fence with what they belong to, and by no stale attempt."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from django.db import transaction

from django_backwave.core.limits import KEPT_TAGS
from django_backwave.core.outcome import Cancelled, Released, Snoozed, Succeeded
from django_backwave.core.protocol import Renewal, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job, Tag
from django_backwave.notes import Progress
from django_backwave.store import heartbeat
from django_backwave.store.atomic import Gate, LeaseGone, completing
from django_backwave.store.enqueue import insert_many, insert_one
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.retention import prune
from django_backwave.store.tags import tagged
from tests.app.models import Entry
from tests.factories import (
    FAILED,
    LEASE,
    NOW,
    STRANGER,
    SUCCEEDED,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    new_job,
    ready,
    reclaimed,
    report,
    row,
    send,
)
from tests.store.races import locked, race, send_until_answered

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

VIP, CUSTOMER = ("", "vip"), ("customer", "7")
BOTH = (VIP, CUSTOMER)
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def tags(job):
    return sorted(
        Tag.objects.filter(job_id=getattr(job, "job_id", None) or job.id).values_list("key", "value")
    )


def said(done, message=""):
    return Progress(done, 10, message).encoded(AT)


def progress(job):
    return Progress.read(row(job).progress)


# Tags.


@pytest.mark.parametrize(
    "outcome", [SUCCEEDED, FAILED, Snoozed(9), Released(), Cancelled()], ids=lambda one: type(one).__name__
)
def test_tags_are_written_with_any_outcome(outcome):
    """G5."""
    job, other = claimed(), claimed()

    send(report(job, outcome, tags=BOTH), report(other, outcome, tags=(("customer", "8"),)))

    assert tags(job) == [VIP, CUSTOMER]
    assert tags(other) == [("customer", "8")]


def test_tags_come_with_a_success_that_beats_a_cancel_and_with_the_cancel():
    """G8."""
    won, lost = claimed(), claimed()
    cancel([won.job_id, lost.job_id], using="default", now=NOW)

    verdicts = send(report(won, tags=BOTH), report(lost, FAILED, tags=BOTH))

    assert verdicts == [Verdict.APPLIED, Verdict.CANCELLED]
    assert tags(won) == tags(lost) == [VIP, CUSTOMER]


@pytest.mark.parametrize(
    "late",
    [{"worker": STRANGER}, {"now": after(LEASE)}, {"attempt": 2}],
    ids=["another worker", "lapsed", "another attempt"],
)
def test_what_a_stale_attempt_says_is_dropped(late):
    """G4: neither tags nor progress nor anything else."""
    job, live = claimed(), claimed(lease_seconds=999)
    before = contents()
    given = {name: late[name] for name in ("worker", "now") if name in late}
    stale = job._replace(attempt=late.get("attempt", 1))

    assert send(report(stale, tags=BOTH, progress=said(3)), **given) == [Verdict.STALE]
    assert contents() == before
    assert not Tag.objects.exists()
    assert send(report(live, tags=BOTH)) == [Verdict.APPLIED]


def test_of_two_attempts_in_one_batch_only_the_live_one_tags():
    """G4: a batch can hold an attempt that is over and the one that came after it."""
    job = claimed()
    send(report(job, Snoozed(1)))
    again = reclaimed(job, now=after(1))

    verdicts = send(report(job, FAILED, tags=(VIP,)), report(again, tags=(CUSTOMER,)), now=after(2))

    assert verdicts[1] is Verdict.APPLIED
    assert tags(job) == [CUSTOMER]


def test_a_tag_that_the_job_has_already_stays_one():
    """Given at enqueue, by the attempt before, and by this one."""
    job = claimed(tags=BOTH)
    send(report(job, Snoozed(1), tags=BOTH))
    again = reclaimed(job, now=after(1))

    assert send(report(again, tags=(*BOTH, ("n", "1"))), now=after(2)) == [Verdict.APPLIED]
    assert tags(job) == [VIP, CUSTOMER, ("n", "1")]


def test_tags_compare_byte_for_byte():
    words = (("k", "a"), ("k", "A"), ("K", "a"), ("k", "ä"), ("k", "💥"), ("", "a"))
    job = claimed()

    send(report(job, tags=words))

    assert tags(job) == sorted(words)
    assert tagged("k", "A", limit=9, using="default") == [job.job_id]
    assert tagged("k", "Ä", limit=9, using="default") == []


def test_an_outcome_that_the_database_refuses_keeps_its_tags():
    job = claimed()

    send(report(job, Succeeded('"\ud800"'), tags=BOTH))
    assert tags(job) == [VIP, CUSTOMER]
    assert attempts(job)[0].outcome == "failed"


def test_a_leftover_history_row_costs_the_tags_and_not_the_outcome():
    """The way out when nothing else is taken: the state alone."""
    job = claimed()
    Attempt.objects.create(job_id=job.job_id, number=1, worker="hand", finished_at=NOW, outcome="failed")

    assert send(report(job, tags=BOTH, progress=said(1))) == [Verdict.APPLIED]
    assert (tags(job), progress(job)) == ([], None)


def test_a_report_sent_again_tags_nothing_twice():
    job = claimed()
    send(report(job, tags=BOTH))
    before = contents()

    assert send(report(job, tags=(*BOTH, ("n", "2")), sent_before=True)) == [Verdict.APPLIED]
    assert contents() == before
    assert tags(job) == [VIP, CUSTOMER]


def test_a_job_that_snoozes_for_ever_keeps_the_newest_tags():
    job = claimed()
    for round_ in range(4):
        words = tuple(("n", f"{round_}-{n:02}") for n in range(40))
        send(report(job, Snoozed(1), tags=words), now=after(2 * round_))
        job = reclaimed(job, now=after(2 * round_ + 1))

    kept = [value for _, value in tags(job)]
    assert len(kept) == KEPT_TAGS
    assert [value[0] for value in (kept[0], kept[-1])] == ["1", "3"]


def test_tags_go_with_the_job():
    job = claimed(tags=BOTH)
    send(report(job))

    assert prune(keep_done=1.0, keep_dead=1.0, using="default", now=after(9)) == 1
    assert not Tag.objects.exists()


def test_tags_of_many_new_jobs():
    jobs = [new_job(tags=BOTH), new_job(), new_job(tags=(VIP,))]

    insert_many(jobs, using="default", now=NOW)
    assert [tags(job) for job in jobs] == [[VIP, CUSTOMER], [], [VIP]]
    assert tagged(*VIP, limit=9, using="default") == [jobs[2].id, jobs[0].id]
    assert tagged(*VIP, limit=1, using="default") == [jobs[2].id]


@committing
def test_a_job_and_its_tags_are_rolled_back_together():
    """G1."""
    with suppress(ZeroDivisionError), transaction.atomic():
        insert_one(new_job(tags=BOTH), using="default", now=NOW)
        insert_many([new_job(tags=BOTH)], using="default", now=NOW)
        raise ZeroDivisionError
    assert not Job.objects.exists()
    assert not Tag.objects.exists()


def complete(job, worker=WORKER, now=NOW):
    with completing(
        Gate(),
        job,
        worker=worker,
        report=lambda: report(job, tags=BOTH, progress=said(10)),
        using="default",
        now=now,
    ):
        Entry.objects.create(key=str(job.job_id), value="")


@committing
def test_an_atomic_job_tags_in_its_own_transaction():
    """G7."""
    job = claimed()
    complete(job)
    assert (tags(job), progress(job).done) == ([VIP, CUSTOMER], 10)


@committing
@pytest.mark.parametrize("late", [{"worker": STRANGER}, {"now": after(LEASE)}], ids=["stranger", "lapsed"])
def test_an_atomic_job_that_is_stale_tags_nothing(late):
    """G7."""
    job = claimed()
    with pytest.raises(LeaseGone):
        complete(job, **late)
    assert (tags(job), progress(job), Entry.objects.count()) == ([], None, 0)


@committing
@pytest.mark.slow
def test_two_settles_race_for_one_attempt():
    """G4: of the same attempt, reported twice at one instant, one is applied, with its own tags."""
    jobs = [claimed() for _ in range(20)]

    def end(word):
        return lambda number: send_until_answered(report(jobs[number], tags=(("by", word),)))

    for job, one, two in zip(jobs, *race(len(jobs), end("one"), end("two")), strict=True):
        assert {one, two} == {Verdict.APPLIED, Verdict.STALE}
        assert tags(job) == [("by", "one" if one is Verdict.APPLIED else "two")]


# Progress.


def renew(*jobs, worker=WORKER, now=NOW, **told):
    held = {job.key: None for job in jobs}
    given = {job.key: said(told.get(f"job_{n}", 1)) for n, job in enumerate(jobs) if f"job_{n}" in told}
    renewals = heartbeat.renew(held, worker=worker, lease=LEASE, progress=given, using="default", now=now)
    return [renewals[job.key] for job in jobs]


def test_progress_is_written_with_the_renewal_for_those_who_told():
    one, two, three = claimed(), claimed(), claimed()

    assert renew(one, two, three, job_0=3, job_2=5) == [Renewal.RENEWED] * 3
    assert [progress(one), progress(two), progress(three)] == [
        Progress(3, 10, "", AT),
        None,
        Progress(5, 10, "", AT),
    ]
    renew(one, two, three, job_1=1)
    assert [progress(job).done for job in (one, two, three)] == [3, 1, 5]


@pytest.mark.parametrize("late", [{"worker": STRANGER}, {"now": after(LEASE)}], ids=["stranger", "lapsed"])
def test_progress_of_a_stale_attempt_changes_nothing(late):
    """G4."""
    job = claimed()
    before = contents()

    assert renew(job, job_0=3, **late) == [Renewal.LOST]
    assert contents() == before


def test_progress_of_an_attempt_that_was_taken_over_changes_nothing():
    """G4: the next attempt has begun, in the very same worker."""
    job = claimed()
    send(report(job, Snoozed(1)))
    again = reclaimed(job, now=after(1))
    renew(again, now=after(1), job_0=7)

    assert renew(job, now=after(2), job_0=3) == [Renewal.LOST]
    assert progress(job).done == 7


@committing
def test_progress_of_a_locked_row_waits():
    job, free = claimed(now=None), claimed(now=None)
    with locked(job):
        assert renew(job, free, now=None, job_0=3, job_1=4) == [Renewal.UNKNOWN, Renewal.RENEWED]
    assert (progress(job), progress(free).done) == (None, 4)


@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["ok", "failed"])
def test_the_last_progress_comes_with_the_outcome(outcome):
    one, two, silent = claimed(), claimed(), claimed()
    renew(one, two, silent, job_0=1, job_1=1, job_2=1)

    send(
        report(one, outcome, progress=said(9)),
        report(two, outcome, progress=said(8)),
        report(silent, outcome),
    )
    assert [progress(job).done for job in (one, two, silent)] == [9, 8, 1]


def test_a_new_attempt_begins_without_progress():
    """And until then one can see how far the attempt before had come."""
    job = claimed()
    send(report(job, Snoozed(1), progress=said(9)))
    assert progress(job).done == 9

    reclaimed(job, now=after(1))
    assert progress(job) is None


def test_a_requeued_job_begins_without_progress():
    job = claimed(max_attempts=1)
    send(report(job, FAILED, progress=said(9)))
    requeue([job.job_id], using="default", now=NOW)

    assert row(reclaimed(job)).progress is None


# Headers.


def test_headers_come_out_as_they_went_in():
    headers = '{"tenant":"größe 💥","n":1e22,"deep":[{"a":null}]}'
    job = ready(headers=headers, queue="q")

    assert job.headers == {"tenant": "größe 💥", "n": 1e22, "deep": [{"a": None}]}
    assert claimed(headers=headers).headers == headers
    assert claimed().headers is None


# What the worker is told of its reports.


def test_a_verdict_tells_of_a_cancel_that_the_worker_had_not_heard_of():
    """G8: what is told of an outcome (log lines, signals) is what was written."""
    jobs = [claimed() for _ in range(3)]
    cancel([job.job_id for job in jobs[:2]], using="default", now=NOW)

    verdicts = send(report(jobs[0], FAILED), report(jobs[1]), report(jobs[2], FAILED))

    assert verdicts == [Verdict.CANCELLED, Verdict.APPLIED, Verdict.APPLIED]
    states = [row(job).job_state for job in jobs]
    assert states == [JobState.CANCELLED, JobState.SUCCEEDED, JobState.READY]
