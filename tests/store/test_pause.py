"""Pause and resume: rows that workers read; claims that leave paused names aside, at a bounded cost."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_backwave.core.protocol import PauseResult, ResumeResult
from django_backwave.core.states import JobState
from django_backwave.models import Action, Job, Pause
from django_backwave.store import aside, pause
from django_backwave.store.claim import Order, take
from tests.factories import NOW, WORKER, after, ready, row, second_connection
from tests.store.races import needs_row_locks, race, together

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

PAUSED, ALREADY_PAUSED = PauseResult
RESUMED, NOT_PAUSED = ResumeResult
QUEUE, NAME = Pause.Kind.QUEUE, Pause.Kind.NAME


def claim(names, limit=9, past=(), queue="default", now=NOW):
    """Claim without these names; return the ids taken and how far that has looked."""
    order = Order(queue, limit, limit, 9.0, tuple(names), tuple(past))
    taken = take(order, worker=WORKER, using="default", now=now)
    return [job.job_id for job in taken.jobs], taken.past


@pytest.fixture
def small(monkeypatch):
    """Let a claim look at three jobs of each priority."""
    monkeypatch.setattr(aside, "WINDOW", 3)


def test_pause_and_resume_say_what_they_did_and_are_recorded_each_time():
    calls = [
        (pause.pause, QUEUE, "mail", PAUSED),
        (pause.pause, QUEUE, "mail", ALREADY_PAUSED),
        (pause.pause, NAME, "mail", PAUSED),
        (pause.resume, QUEUE, "mail", RESUMED),
        (pause.resume, QUEUE, "mail", NOT_PAUSED),
    ]
    for call, kind, target, result in calls:
        assert call(kind, target, actor="7 anna", using="default", now=NOW) is result

    assert pause.pauses(using="default") == ({*()}, {"mail"})
    assert Pause.objects.values_list("kind", "target", "at", "actor").get() == ("name", "mail", NOW, "7 anna")
    told = Action.objects.order_by("pk").values_list(
        "actor", "verb", "job_id", "queue", "name", "result", "at"
    )
    assert list(told) == [
        ("7 anna", "pause", None, "mail", "", "paused", NOW),
        ("7 anna", "pause", None, "mail", "", "already paused", NOW),
        ("7 anna", "pause", None, "", "mail", "paused", NOW),
        ("7 anna", "resume", None, "mail", "", "resumed", NOW),
        ("7 anna", "resume", None, "mail", "", "not paused", NOW),
    ]


def test_names_and_queues_are_told_apart_byte_for_byte():
    for target in ("mail", "Mail", "mail ", "m" * 100):
        assert pause.pause(QUEUE, target, using="default") is PAUSED
        assert pause.pause(NAME, target * 2, using="default") is PAUSED

    assert pause.pauses(using="default").queues == {"mail", "Mail", "mail ", "m" * 100}
    assert pause.resume(QUEUE, "MAIL", using="default") is NOT_PAUSED


def test_the_first_to_pause_stays_on_record():
    pause.pause(QUEUE, "mail", actor="7 anna", using="default", now=NOW)
    pause.pause(QUEUE, "mail", actor="8 ben", using="default", now=after(9))

    assert Pause.objects.values_list("at", "actor").get() == (NOW, "7 anna")


@committing
def test_of_two_pauses_at_one_instant_one_is_the_first():
    for _ in range(5):
        told = together(*[lambda: pause.pause(QUEUE, "mail", using="default")] * 2)
        assert set(told) == {PAUSED, ALREADY_PAUSED}
        told = together(*[lambda: pause.resume(QUEUE, "mail", using="default")] * 2)
        assert set(told) == {RESUMED, NOT_PAUSED}


@committing
def test_a_pause_is_undone_with_its_transaction():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        pause.pause(QUEUE, "mail", using="default")
        raise ZeroDivisionError

    assert pause.pauses(using="default") == (frozenset(), frozenset())
    assert not Action.objects.exists()


def test_a_claim_leaves_paused_names_alone():
    stays, goes, other = ready(name="a"), ready(name="b"), ready(name="c", priority=9)

    taken, past = claim(["a"])

    assert taken == [other.pk, goes.pk]
    assert past == ()
    assert row(stays).state == JobState.READY
    assert claim(["A"])[0] == [stays.pk], "names compare byte for byte"


def test_a_claim_keeps_the_order_the_limit_and_the_due_time():
    ready(name="a", due_at=after(-9))
    second, first = ready(due_at=after(-1)), ready(due_at=after(-2))
    ready(due_at=after(1))
    third = ready(priority=-5, due_at=after(-60))

    assert claim(["a"], 2) == ([first.pk, second.pk], ())
    assert claim(["a"], 2) == ([third.pk], ())


@pytest.mark.usefixtures("small")
def test_a_claim_looks_at_one_window_of_each_priority_and_goes_on_from_there():
    for priority in (0, 5):
        for number in range(7):
            ready(name="a", priority=priority, due_at=after(-10 + number))
    low, high = ready(name="b", due_at=after(-1)), ready(name="b", priority=5, due_at=after(-1))

    taken, first = claim(["a"])
    assert (taken, [(place.priority, place.due_at) for place in first]) == (
        [],
        [(5, after(-8)), (0, after(-8))],
    )
    taken, second = claim(["a"], past=first)
    assert (taken, [(place.priority, place.due_at) for place in second]) == (
        [],
        [(5, after(-5)), (0, after(-5))],
    )
    taken, third = claim(["a"], past=second)
    assert (taken, third) == ([high.pk, low.pk], second)
    assert claim(["a"], past=third) == ([], third)


@pytest.mark.usefixtures("small")
def test_a_full_claim_does_not_step_over_what_it_has_not_looked_at():
    jobs = [ready(name="ab"[number % 2], due_at=after(-20 + number)) for number in range(10)]
    wanted = [job.pk for job in jobs if job.name == "b"]
    taken, past = [], ()
    for _ in range(12):
        ids, past = claim(["a"], 1, past=past)
        taken += ids

    assert taken == wanted


@pytest.mark.usefixtures("small")
def test_jobs_of_one_instant_are_told_apart_by_id():
    jobs = [ready(name="a" if number < 7 else "b", due_at=NOW) for number in range(9)]
    taken, past = [], ()
    for _ in range(4):
        ids, past = claim(["a"], past=past)
        taken += ids

    assert taken == [job.pk for job in jobs[7:]]


@pytest.mark.usefixtures("small")
def test_a_window_ends_before_what_is_due_later():
    """Else a job would be stepped over before it comes due."""
    ready(name="a"), ready(name="a")
    later = [ready(name="b", due_at=after(5)) for _ in range(3)]

    taken, past = claim(["a"])
    assert (taken, past) == ([], ())
    assert claim(["a"], past=past, now=after(6))[0] == [later[0].pk]
    _, past = claim(["a"], past=past, now=after(6))
    assert len(claim(["a"], past=past, now=after(6))[0]) <= 2
    assert not Job.objects.filter(name="b", state=JobState.READY).exists()


@committing
@pytest.mark.usefixtures("small")
def test_a_row_that_is_locked_does_not_hold_up_those_behind_it():
    needs_row_locks()
    locked = ready(name="b", due_at=after(-60))
    for number in range(4):
        ready(name="a", due_at=after(-50 + number))
    behind = ready(name="b")
    with second_connection() as other, transaction.atomic(using=other):
        assert Job.objects.using(other).select_for_update().get(pk=locked.pk)
        taken, past = claim(["a"])
        taken += claim(["a"], past=past)[0]

    assert taken == [behind.pk]
    assert claim(["a"])[0] == [locked.pk], "a look from the head finds it"


@committing
@pytest.mark.slow
def test_two_workers_that_leave_names_aside_never_take_the_same_job():
    """G3."""
    for number in range(60):
        ready(name="ab"[number % 2])

    def ask(_):
        return claim(["a"], 2)[0]

    first, second = race(20, ask, ask)

    taken = [job_id for each in (*first, *second) for job_id in each]
    assert len(taken) == len(set(taken)) <= 30
    assert Job.objects.filter(name="a", state=JobState.READY).count() == 30


@committing
@pytest.mark.slow
def test_a_claim_with_names_and_one_without_never_take_the_same_job():
    """G3: for a few seconds some workers know of a pause and some do not."""
    for number in range(60):
        ready(name="ab"[number % 2])

    def innocent(_):
        taken = take(Order("default", 2, 2, 9.0), worker="w:2", using="default", now=NOW)
        return [job.job_id for job in taken.jobs]

    first, second = race(12, lambda _: claim(["a"], 2)[0], innocent)

    taken = [job_id for each in (*first, *second) for job_id in each]
    assert len(taken) == len(set(taken))
