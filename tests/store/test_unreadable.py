"""Jobs that cannot be read are set aside, each with what stood in it; all others go on."""

from __future__ import annotations

import pytest

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from django_backwave.store import operate
from django_backwave.store.claim import claim, scan
from django_backwave.store.doctor import Severity, examine
from django_backwave.store.expire import expire, expire_dead
from django_backwave.store.unreadable import set_aside
from tests.factories import FAILED, NOW, WORKER, after, claimed, contents, ready, report, row, send
from tests.fuzz.garbage import write

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.only_on("sqlite"),  # whose columns hold anything
]


def take(limit=10, now=NOW):
    return [job.job_id for job in claim("default", limit, worker=WORKER, lease=60, using="default", now=now)]


def sweep(now):
    return [each.key.job_id for each in expire(jitter=lambda: 0.5, using="default", now=now)]


def put_aside(now=NOW, **options):
    return set_aside(using="default", now=now, **options)


def test_a_job_that_cannot_be_read_is_quarantined_with_what_stood_there():
    bad, good = ready(), ready()
    write(Job, bad.pk, "max_attempts", "'many'")
    write(Job, bad.pk, "due_at", "5")

    assert take() == [good.pk]

    job = row(bad)
    assert (job.job_state, job.finished_at, job.attempt) == (JobState.QUARANTINED, NOW, 0)
    assert job.cause == "Could not be read, and was replaced: due_at ('5'), max_attempts ('many')."
    assert (job.due_at, job.max_attempts, job.payload) == (NOW, 0, bad.payload)


def test_it_can_be_requeued():
    bad = ready()
    write(Job, bad.pk, "priority", "'high'")
    assert take() == []

    operate.requeue([bad.pk], reset_failures=True, actor="ann", using="default", now=NOW)

    assert take() == [bad.pk]


def test_many_at_once_hide_no_good_one():
    """More than one slice of them, and in front of it in every order."""
    for _ in range(130):
        write(Job, ready(priority=100).pk, "backoff_base", "'long'")
    good = ready()

    assert take(limit=1) == [good.pk]


def test_what_stood_there_is_repeated_in_part_only():
    bad = ready()
    write(Job, bad.pk, "name", f"CAST('{'x' * 1000}' AS BLOB)")

    put_aside()

    assert len(row(bad).cause) < 300
    assert row(bad).name == "x" * 1000


@pytest.mark.parametrize("column", ["worker", "failures", "backoff_cap"])
def test_a_sweep_goes_on_behind_a_lease_that_cannot_be_read(column):
    bad, good = claimed(), claimed()
    write(Job, bad.job_id, column, "x'ff'")

    assert sweep(now=after(100)) == [good.job_id]

    assert row(bad).job_state is JobState.QUARANTINED
    assert (row(bad).worker, row(bad).lease_expires_at) == ("", None)


def test_the_number_of_attempts_never_falls_below_the_history():
    job = claimed()
    send(report(job, FAILED))
    assert Attempt.objects.get().number == 1
    write(Job, job.job_id, "attempt", "'first'")

    put_aside()

    assert row(job).attempt == 1


def test_what_a_live_attempt_holds_is_left_to_it():
    """Its own report needs nothing of the row but the guard's columns."""
    job = claimed()
    write(Job, job.job_id, "backoff_base", "'long'")

    assert put_aside(now=after(59)) == 0
    send(report(job))

    assert row(job).job_state is JobState.SUCCEEDED


def test_what_a_dead_worker_held_is_not():
    bad, good = claimed(), claimed()
    write(Job, bad.job_id, "backoff_base", "'long'")

    ended = expire_dead(WORKER, ordered=False, jitter=lambda: 0.5, using="default", now=after(1))

    assert [each.key.job_id for each in ended] == [good.job_id]
    assert row(bad).job_state is JobState.QUARANTINED


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.CANCELLED, JobState.DEAD_LETTERED])
def test_what_has_ended_is_left_as_it_is(state):
    job = ready(state=state, finished_at=NOW)
    write(Job, job.pk, "max_attempts", "'many'")

    assert put_aside() == 0


def test_other_errors_are_not_taken_for_it(monkeypatch):
    """Nothing is found to set aside, so the error is the caller's."""
    from django_backwave.store import claim as claiming

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(claiming, "_claim_portable", fail)
    ready()
    before = contents()

    with pytest.raises(ZeroDivisionError):
        take()

    assert contents() == before


def test_reads_that_succeed_pay_nothing(django_assert_num_queries):
    """Not a statement more, whatever stands in rows that they do not come across."""
    write(Job, ready(queue="other").pk, "backoff_base", "'long'")
    ready()
    with django_assert_num_queries(3):
        scan(["default"], using="default", now=NOW)


def test_the_doctor_tells_of_them():
    write(Job, ready().pk, "backoff_base", "'long'")
    write(Job, claimed().job_id, "due_at", "'soon'")

    found = {result.check: result for result in examine(known=[], using="default", now=NOW)}

    told = found["unreadable-rows"]
    assert told.severity is Severity.ERROR
    assert told.text == "2 jobs with values that cannot be read, in backoff_base, due_at."
