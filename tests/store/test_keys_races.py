"""Keys under real races: threads with connections of their own, barriers, and open transactions."""

from __future__ import annotations

from contextlib import suppress
from threading import Barrier, Event

import pytest
from django.db import connection, transaction

from django_backwave.core.identity import Verdict
from django_backwave.core.protocol import Renewal, RequeueResult
from django_backwave.core.states import JobState
from django_backwave.ids import new_id
from django_backwave.models import Job, Key
from django_backwave.store import keys
from django_backwave.store.heartbeat import renew
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.retention import prune
from tests.app.models import Entry
from tests.factories import LEASE, NOW, SUCCEEDED, WORKER, after, report, row, second_connection, send
from tests.store.generations import (
    UNFINISHED,
    enqueue,
    generations,
    keyed,
    land,
    refused,
    remembered,
    settle,
    take,
)
from tests.store.races import PATIENCE, behind, needs_row_locks, race, together

pytestmark = pytest.mark.django_db(transaction=True)

THREADS = 8
ROUNDS = 12

NEW, RETURN, REPLACE, DUPLICATE, BUSY, TAKEN = Verdict


class RolledBack(Exception):
    pass


def delete_old(*, using="default"):
    return prune(keep_done=1.0, keep_dead=1.0, using=using, now=after(9))


def sweep_away(*, using="default"):
    """Prune, then forget, as a worker does."""
    delete_old(using=using)
    keys.forget(using=using, now=after(9))


# Enqueue against enqueue.


def test_one_key_from_many_connections_is_one_job():
    """One makes the job, the others are led to it, and no caller's transaction is broken."""

    def ask(number):
        with transaction.atomic():
            landed = land(key=f"k{number}")
            Entry.objects.create(key=str(new_id()), value="")  # the transaction goes on
        return landed

    told = race(ROUNDS, *[ask] * THREADS)

    for landings in zip(*told, strict=True):
        assert sorted(end.verdict.value for end in landings) == ["new", *["return"] * (THREADS - 1)]
        assert len({end.job_id for end in landings}) == 1
    assert Job.objects.count() == Key.objects.count() == ROUNDS
    assert Entry.objects.count() == ROUNDS * THREADS


def test_one_key_without_a_transaction_of_the_callers():
    told = race(ROUNDS, *[lambda number: land(key=f"k{number}", now=None)] * THREADS)

    for landings in zip(*told, strict=True):
        assert [end.verdict for end in landings].count(NEW) == 1
    assert Job.objects.count() == ROUNDS


def test_a_new_generation_from_many_connections_is_one_job():
    """One runs it again; to the others the key is busy."""
    for number in range(ROUNDS):
        enqueue(key=f"k{number}")
        settle()

    def ask(number):
        try:
            return enqueue(key=f"k{number}", on_conflict="new_generation")[0]
        except keys.Refused as error:
            return error.landed.verdict, error.landed.generation

    for answers in zip(*race(ROUNDS, *[ask] * THREADS), strict=True):
        assert sorted(answers, key=str) == [*[(BUSY, 2)] * (THREADS - 1), (NEW, 2)]


def test_overlapping_batches_do_not_deadlock():
    """However a batch is ordered, it locks its keys in one order."""

    def batch(order, number):
        numbers = [(n * order + number) % 17 for n in range(17)]
        with transaction.atomic():
            return enqueue(*(keyed(f"{number}-{n}") for n in numbers if n % order))

    told = race(ROUNDS, *[lambda number, order=order: batch(order, number) for order in (2, 3, 5, 7, 11)])

    assert sum(verdict is NEW for batches in told for one in batches for verdict, _ in one)
    assert Job.objects.count() == Key.objects.count()
    assert Job.objects.values("key").distinct().count() == Job.objects.count()


def test_unrelated_keys_never_wait_for_each_other():
    """A key that exists is locked, and no gap beside it: MySQL would lock that for a secondary index."""
    needs_row_locks()
    enqueue(*(keyed(key) for key in "abcdefgh"))
    barrier = Barrier(2)

    def ask(*order):
        with transaction.atomic():
            for key in order:
                barrier.wait(PATIENCE)
                enqueue(key=key)

    together(
        lambda: ask("b", "c5", "f", "a7", "c3", "h1"),
        lambda: ask("d", "a5", "h", "c7", "a3", "b1"),
    )

    assert Job.objects.count() == 8 + 8


def test_a_rollback_forgets_the_key_and_one_of_those_who_waited_makes_the_job():
    needs_row_locks()
    barrier = Barrier(THREADS)

    def give_up():
        with suppress(RolledBack), transaction.atomic():
            enqueue(key="k")
            barrier.wait(PATIENCE)
            raise RolledBack

    def ask():
        barrier.wait(PATIENCE)
        with transaction.atomic():
            return enqueue(key="k")

    _, *told = together(give_up, *[ask] * (THREADS - 1))

    assert sorted(told, key=str) == [[(NEW, 1)], *[[(RETURN, 1)]] * (THREADS - 2)]
    assert generations() == [(1, JobState.READY)]


@pytest.mark.parametrize("window", ["forever", "unfinished", "pending", 60.0])
def test_an_enqueue_behind_an_open_one_is_led_to_it(window):
    told = behind(lambda other: enqueue(using=other), lambda: enqueue(window=window))

    assert told == [(RETURN, 1)]


# Enqueue against claim.


@pytest.mark.parametrize("on_conflict", ["return", "replace"])
def test_what_was_found_before_its_start_cannot_start_before_the_commit(on_conflict):
    """The job that sees the caller's change is the one that the caller was led to."""
    needs_row_locks()
    enqueue()
    with transaction.atomic():
        enqueue(on_conflict=on_conflict, payload='{"args":[2],"kwargs":{}}')
        with second_connection() as other:
            assert take(using=other) is None

    taken = take()
    assert taken.generation == 1
    assert ("[2]" in taken.payload) is (on_conflict == "replace")


def test_what_was_rolled_back_may_start_at_once():
    enqueue()
    with suppress(RolledBack), transaction.atomic():
        enqueue(on_conflict="replace", payload='{"args":[2],"kwargs":{}}')
        raise RolledBack

    assert "[2]" not in take().payload


def _behind_asking(first, then, monkeypatch):
    """Return what `then` gives if it has asked for a job's lock while the transaction of `first` is open."""
    asked, answered = Event(), Event()

    def pause(_):
        asked.set()
        assert answered.wait(PATIENCE)

    def commit_late():
        with transaction.atomic():
            first("default")
            started.wait(PATIENCE)
            assert asked.wait(PATIENCE)
        answered.set()

    def come_second():
        started.wait(PATIENCE)
        return then()

    started = Barrier(2)
    monkeypatch.setattr(keys, "sleep", pause)
    _, told = together(commit_late, come_second)
    return told


@pytest.mark.parametrize("on_conflict", ["return", "new_generation", "reject", "replace"])
def test_an_enqueue_behind_an_open_claim_finds_it_started(on_conflict, monkeypatch):
    """A claimed job counts as started, and is renewed even while the caller's transaction is open."""
    needs_row_locks()
    landed = land()
    taken = []

    def ask():
        with transaction.atomic():
            try:
                told = land(on_conflict=on_conflict).verdict
            except keys.Refused as error:
                told = error.landed.verdict
            with second_connection("worker") as worker:
                held = {taken[0].key: None}
                [renewed] = renew(held, worker=WORKER, lease=LEASE, using=worker, now=NOW).values()
                return told, renewed

    if on_conflict in ("new_generation", "reject"):  # these hold nothing, and so wait for nothing
        taken.append(take())
        told = ask()
    elif connection.vendor == "mysql":  # it waits there without a lock, which it could not give back
        told = _behind_asking(lambda other: taken.append(take(using=other)), ask, monkeypatch)
    else:
        told = behind(lambda other: taken.append(take(using=other)), ask)

    expected = {"return": RETURN, "new_generation": BUSY, "reject": DUPLICATE, "replace": BUSY}
    assert told == (expected[on_conflict], Renewal.RENEWED)
    assert row(taken[0]).pk == landed.job_id


def test_a_replacement_races_a_claim():
    """Whoever is told that it was replaced has replaced what runs."""
    for number in range(ROUNDS):
        enqueue(key=f"k{number}", queue=f"queue-{number}")

    def replace(number):
        changes = {"key": f"k{number}", "queue": f"queue-{number}", "payload": '{"args":[2],"kwargs":{}}'}
        try:
            return enqueue(on_conflict="replace", **changes)[0][0]
        except keys.Refused as error:
            return error.landed.verdict

    told, claims = race(ROUNDS, replace, lambda number: take(f"queue-{number}"))

    for number, (verdict, taken) in enumerate(zip(told, claims, strict=True)):
        taken = taken or take(f"queue-{number}")  # a claim passes over what is being replaced
        assert verdict in (REPLACE, BUSY)
        assert ("[2]" in taken.payload) is (verdict is REPLACE)


# Enqueue against the pruner.


def test_the_pruner_passes_over_a_key_that_is_held():
    """It waits for nobody; what it leaves it takes the next time."""
    needs_row_locks()
    enqueue(*(keyed(key) for key in "abc"))
    for _ in "abc":
        settle()
    with transaction.atomic():
        assert enqueue(key="b") == [(RETURN, 1)]
        with second_connection() as other:
            assert delete_old(using=other) == 2

    assert generations("b") == [(1, JobState.SUCCEEDED)]
    assert delete_old() == 1
    assert remembered("b").settled_as == JobState.SUCCEEDED


def test_forgetting_passes_over_a_key_that_is_held():
    needs_row_locks()
    enqueue(*(keyed(key, window="unfinished") for key in "abcde"))
    for _ in "abcde":
        settle()
    assert delete_old() == 5
    with transaction.atomic():
        assert enqueue(key="c", window="unfinished") == [(NEW, 2)]
        with second_connection() as other:
            assert keys.forget(using=other, now=after(9)) == 4
            assert keys.forget_idle(0.0, using=other, now=after(9)) == 0

    assert remembered("c").generation == 2
    assert keys.forget(using="default", now=after(9)) == 0


def test_an_enqueue_behind_an_open_prune_knows_how_it_ended():
    enqueue()
    settle()

    landed = behind(lambda other: delete_old(using=other), land)

    assert (landed.verdict, landed.settled_as) == (RETURN, JobState.SUCCEEDED)


def test_an_enqueue_behind_an_open_forget_begins_anew():
    enqueue(window="unfinished")
    settle()
    delete_old()

    told = behind(lambda other: keys.forget(using=other, now=NOW), enqueue)

    assert told == [(NEW, 1)]
    assert generations() == [(1, JobState.READY)]


def test_enqueues_race_the_pruner():
    """A key that is unique for ever leads to its generation, whatever of it is left."""
    enqueue(*(keyed(f"k{number}") for number in range(ROUNDS)))
    for _ in range(ROUNDS):
        settle()

    found, again, *_ = race(
        ROUNDS, *[lambda number: land(key=f"k{number}")] * 2, *[lambda _: sweep_away()] * 2
    )

    for landed in (*found, *again):
        assert (landed.verdict, landed.generation, landed.settled_as) == (RETURN, 1, JobState.SUCCEEDED)
    assert Key.objects.count() == ROUNDS


def test_enqueues_race_a_forgetful_pruner():
    """A key whose window is over is forgotten, or has its next generation; never both, never two jobs."""
    enqueue(*(keyed(f"k{number}", window="unfinished") for number in range(ROUNDS)))
    for _ in range(ROUNDS):
        settle()

    told = race(
        ROUNDS,
        *[lambda number: enqueue(key=f"k{number}", window="unfinished")[0]] * 3,
        *[lambda _: sweep_away()] * 2,
    )

    for number, answers in enumerate(zip(*told[:3], strict=True)):
        assert sorted(verdict.value for verdict, _ in answers) == ["new", "return", "return"]
        [generation] = {generation for _, generation in answers}
        assert remembered(f"k{number}").generation == generation
        unfinished = Job.objects.filter(key=f"k{number}", state__in=UNFINISHED)
        assert [job.generation for job in unfinished] == [generation]


# Requeue against enqueue.


def test_a_requeue_races_a_new_generation():
    """One of both goes on; the other is told that the key is busy."""
    firsts = [land(key=f"k{number}").job_id for number in range(ROUNDS)]
    cancel(firsts, using="default", now=NOW)

    def send_back(number):
        return requeue([firsts[number]], using="default", now=NOW)[firsts[number]]

    def ask(number):
        try:
            return enqueue(key=f"k{number}", on_conflict="new_generation")[0][0]
        except keys.Refused as error:
            return error.landed.verdict

    told = race(ROUNDS, send_back, ask)

    for number, (sent_back, asked) in enumerate(zip(*told, strict=True)):
        assert (sent_back, asked) in [(RequeueResult.REQUEUED, BUSY), (RequeueResult.KEY_BUSY, NEW)]
        assert Job.objects.filter(key=f"k{number}", state__in=UNFINISHED).count() == 1


def test_an_enqueue_behind_an_open_requeue_finds_it_unfinished():
    first = land().job_id
    cancel([first], using="default", now=NOW)

    told = behind(lambda other: requeue([first], using=other, now=NOW), lambda: enqueue(window="unfinished"))

    assert told == [(RETURN, 1)]


def test_a_requeue_behind_an_open_enqueue_is_refused():
    first = land().job_id
    cancel([first], using="default", now=NOW)

    told = behind(
        lambda other: enqueue(window="unfinished", using=other),
        lambda: requeue([first], using="default", now=NOW),
    )

    assert told == {first: RequeueResult.KEY_BUSY}


# Enqueue against an outcome and a cancel.


def test_a_new_generation_races_the_end_of_the_last():
    """It begins once the last is settled, and is refused before that."""
    for number in range(ROUNDS):
        enqueue(key=f"k{number}", queue=f"queue-{number}")
    running = [take(f"queue-{number}") for number in range(ROUNDS)]

    def ask(number):
        try:
            options = {"key": f"k{number}", "queue": f"queue-{number}"}
            return enqueue(on_conflict="new_generation", **options)[0]
        except keys.Refused as error:
            return error.landed.verdict, error.landed.generation

    told, _ = race(ROUNDS, ask, lambda number: send(report(running[number], SUCCEEDED)))

    assert set(told) <= {(BUSY, 1), (NEW, 2)}
    for number, (verdict, _) in enumerate(told):
        first, *second = generations(f"k{number}")
        assert first == (1, JobState.SUCCEEDED)
        assert second == ([(2, JobState.READY)] if verdict is NEW else [])


def test_a_cancel_waits_for_whoever_was_led_to_the_job():
    """Then it cancels it, and a later enqueue is told so."""
    first = land().job_id

    behind(lambda other: enqueue(using=other), lambda: cancel([first], using="default", now=NOW))

    assert generations() == [(1, JobState.CANCELLED)]
    assert refused(on_conflict="reject").settled_as is JobState.CANCELLED
