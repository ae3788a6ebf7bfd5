"""Run again: settled work as the next generation of its key, once, whoever asks at the same time."""

from __future__ import annotations

import pytest
from django.db import transaction

from django_backwave import operations
from django_backwave.core.identity import Intent, OnConflict, Window
from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import RequeueResult, RunAgain, RunAgainResult
from django_backwave.core.states import TERMINAL, JobState
from django_backwave.ids import new_id
from django_backwave.models import Action, Job, Key, Tag
from django_backwave.store import keys, operate
from django_backwave.store.again import run_again
from django_backwave.store.claim import claim
from tests.factories import (
    LEASE,
    NOW,
    WORKER,
    after,
    contents,
    new_job,
    ready,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import behind, race, together

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

ENQUEUED, NO_KEY, BUSY, TAKEN = RunAgainResult
ROUNDS = 20


def keyed(
    key="receipt:7",
    *,
    state=JobState.SUCCEEDED,
    window=Window.FOREVER,
    how=OnConflict.NEW_GENERATION,
    now=NOW,
    using="default",
    **changes,
):
    """Return the newest generation of a key, just enqueued, as a row in some state."""
    name = changes.setdefault("name", "shop.send_receipt")
    job = new_job(intent=Intent(key, how, window, frozenset({name})), **changes)
    [landed] = keys.enqueue([job], using=using, now=now)
    Job.objects.using(using).filter(pk=landed.job_id).update(state=state)
    return Job.objects.using(using).get(pk=landed.job_id)


def again(*jobs, now=NOW, using="default", **options):
    return run_again([job.pk for job in jobs], using=using, now=now, **options)


def everything():
    return [*contents(), *(list(model.objects.order_by("pk").values()) for model in (Key, Tag, Action))]


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_settled_work_has_its_next_generation(state):
    old = keyed(
        state=state,
        queue="mail",
        priority=5,
        payload='{"args":[1e22,"caf\\u00e9"],"kwargs":{"b":1,"a":2}}',
        max_attempts=7,
        backoff=Backoff(base=9, cap=90, jitter=0.25),
        lease_seconds=12.5,
        timeout_seconds=3.5,
        headers='{"tenant":"north"}',
        tags=(("customer", "7"), ("", "vip")),
        expires=after(5),
        schema="receipt/2",
    )
    before = row(old)

    said = again(old, now=after(60))

    [new] = Job.objects.exclude(pk=old.pk)
    assert said == {old.pk: RunAgain(ENQUEUED, new.pk, 2)}
    assert (new.state, new.key, new.generation) == (JobState.READY, "receipt:7", 2)
    assert (new.enqueued_at, new.due_at, new.expires_at) == (after(60), after(60), None)
    assert (new.attempt, new.failures, new.started_at, new.finished_at) == (0, 0, None, None)
    same = ("name", "queue", "priority", "payload", "headers", "schema", "max_attempts")
    numbers = ("backoff_base", "backoff_cap", "backoff_jitter", "lease_seconds", "timeout_seconds")
    for column in (*same, *numbers):
        assert getattr(new, column) == getattr(old, column), column
    assert sorted(Tag.objects.filter(job=new).values_list("key", "value")) == [("", "vip"), ("customer", "7")]
    assert (row(old).state, row(old).payload) == (before.state, before.payload)
    assert (Key.objects.get().generation, Key.objects.get().job_id) == (2, new.pk)


def test_the_payload_is_copied_to_the_letter():
    """What another JSON encoder would write differently must come out as it went in."""
    text = '{"args": [ 1e22, 0.10, "\\u00e9/\\/" ],"kwargs":{"z":1,"a":2}}'
    old = keyed(payload=text)

    again(old)

    [taken, *_] = claim("default", 9, worker=WORKER, lease=LEASE, using="default", now=NOW)
    assert taken.payload == text
    assert (taken.logical_key, taken.generation) == ("receipt:7", 2)


def test_it_is_recorded_for_both_jobs():
    old = keyed()

    [said] = again(old, actor="7 anna").values()

    assert list(Action.objects.order_by("pk").values_list("verb", "actor", "job_id", "result")) == [
        ("run_again", "7 anna", old.pk, f"generation 2, job {said.job_id}"),
        ("run_again", "7 anna", said.job_id, f"of generation 1, job {old.pk}"),
    ]


def test_without_an_actor_nothing_is_recorded():
    again(keyed())

    assert Action.objects.count() == 0


def test_a_job_without_a_key_is_refused():
    job = ready(state=JobState.SUCCEEDED)
    before = everything()

    assert again(job, actor="7 anna") == {job.pk: RunAgain(NO_KEY)}
    assert everything() == before


@pytest.mark.parametrize("state", [state for state in JobState if state not in TERMINAL and state != 2])
def test_an_unfinished_generation_is_named(state):
    old = keyed()
    newer = keyed(state=state)
    before = everything()

    assert again(old, newer, actor="7 anna") == dict.fromkeys([old.pk, newer.pk], RunAgain(BUSY, newer.pk, 2))
    assert everything() == before


def test_a_running_generation_is_named():
    job = keyed(state=JobState.READY)
    claim("default", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)

    assert again(job) == {job.pk: RunAgain(BUSY, job.pk, 1)}


def test_an_older_generation_that_was_requeued_is_in_the_way():
    old = keyed(state=JobState.DEAD_LETTERED)
    newer = keyed()
    assert operate.requeue([old.pk], using="default", now=NOW) == {old.pk: RequeueResult.REQUEUED}

    assert again(newer) == {newer.pk: RunAgain(BUSY, old.pk, 1)}


def test_what_was_run_again_holds_back_a_requeue():
    old = keyed(state=JobState.DEAD_LETTERED)
    again(old)

    assert operate.requeue([old.pk], using="default", now=NOW) == {old.pk: RequeueResult.KEY_BUSY}


def test_several_generations_at_once_are_one_more_run_of_the_newest():
    first, second = keyed(payload='{"args":[1],"kwargs":{}}'), keyed(payload='{"args":[2],"kwargs":{}}')
    other = keyed("receipt:8")

    said = again(first, second, other, ready(), actor="7 anna")

    new = said[second.pk]
    assert (new.result, new.generation) == (ENQUEUED, 3)
    assert said[first.pk] == RunAgain(BUSY, new.job_id, 3)
    assert (said[other.pk].result, said[other.pk].generation) == (ENQUEUED, 2)
    assert Job.objects.get(pk=new.job_id).payload == {"args": [2], "kwargs": {}}
    assert Action.objects.count() == 4


def test_the_same_key_in_two_queues_is_two_pieces_of_work():
    here, there = keyed(queue="here"), keyed(queue="there", state=JobState.READY)

    said = again(here, there)

    assert [said[job.pk].result for job in (here, there)] == [ENQUEUED, BUSY]


def test_keys_compare_byte_for_byte():
    lower, upper = keyed("order:a"), keyed("order:A", state=JobState.READY)

    said = again(lower, upper)

    assert [said[job.pk].result for job in (lower, upper)] == [ENQUEUED, BUSY]


def test_what_does_not_exist_is_left_out():
    assert run_again([new_id()], using="default") == {}
    assert run_again([], using="default") == {}


def test_a_key_of_another_name_by_now():
    old = keyed(window=Window.UNFINISHED, how=OnConflict.RETURN)
    other = keyed(window=Window.UNFINISHED, how=OnConflict.RETURN, name="shop.other")
    before = everything()

    assert again(old) == {old.pk: RunAgain(TAKEN, other.pk, 2)}
    assert everything() == before

    renamed = frozenset({"shop.send_receipt", "shop.other"})
    [said] = again(old, names=lambda _name: renamed).values()
    assert (said.result, said.generation) == (ENQUEUED, 3)


@pytest.mark.parametrize(
    ("window", "until"),
    [
        (Window.FOREVER, None),
        (Window.UNFINISHED, after(1000)),
        (Window.PENDING, after(1000)),
        (3600.0, after(4600)),
    ],
)
def test_the_key_is_remembered_as_long_as_before(window, until):
    job = keyed(window=window)

    assert again(job, now=after(1000))[job.pk].result is ENQUEUED

    assert Key.objects.get().forget_at == until


def test_an_unfinished_generation_is_in_the_way_after_its_window_too():
    job = keyed(window=60.0, state=JobState.READY)

    assert again(job, now=after(3600)) == {job.pk: RunAgain(BUSY, job.pk, 1)}


def test_the_newest_may_have_been_pruned():
    old = keyed()
    newest = keyed()
    keys.farewell([newest.pk], using="default")
    newest.delete()

    [said] = again(old).values()

    assert (said.result, said.generation) == (ENQUEUED, 3)
    assert Key.objects.get().settled_as is None


def test_the_callers_transaction_decides():
    old = keyed()
    before = everything()

    with pytest.raises(RuntimeError), transaction.atomic():
        assert again(old, actor="7 anna")[old.pk].result is ENQUEUED
        raise RuntimeError

    assert everything() == before


def test_the_door_for_code():
    """The same, without a clock of one's own, with ids as strings; a handler that no code has is fine."""
    old = keyed(now=None)

    [said] = operations.run_again([str(old.pk)], actor="7 anna").values()

    assert said == operations.RunAgain(operations.RunAgainResult.ENQUEUED, said.job_id, 2)
    assert row(Job(pk=said.job_id)).due_at >= old.enqueued_at
    with pytest.raises(ValueError, match="badly formed"):
        operations.run_again(["x"])


def test_the_number_of_statements_does_not_grow(django_assert_max_num_queries):
    jobs = [keyed(f"receipt:{n}", tags=(("", "vip"),)) for n in range(20)]

    with django_assert_max_num_queries(25):
        said = again(*jobs, actor="7 anna")

    assert {each.result for each in said.values()} == {ENQUEUED}


# Races, on real connections.


@committing
def test_two_operators_at_once_make_one_generation():
    olds = [keyed(f"k:{number}", now=None) for number in range(ROUNDS)]

    def press(number):
        return operations.run_again([olds[number].pk], actor="7 anna")[olds[number].pk]

    for said in zip(*race(ROUNDS, press, press), strict=True):
        assert {each.result for each in said} == {ENQUEUED, BUSY}
        assert len({each.job_id for each in said}) == 1, "the other one is told which it is"
    assert Job.objects.count() == Job.objects.filter(generation__lte=2).count() == 2 * ROUNDS


@committing
def test_many_keys_in_any_order_are_no_deadlock():
    jobs = [keyed(f"k:{n}", now=None) for n in range(10)]

    said = together(lambda: again(*jobs, now=None), lambda: again(*reversed(jobs), now=None))

    for job in jobs:
        assert {each[job.pk].result for each in said} == {ENQUEUED, BUSY}
    assert Job.objects.count() == 20


@committing
def test_an_enqueue_and_an_operator_make_one_generation():
    old = keyed(now=None)

    def enqueue():
        job = new_job(
            intent=Intent(old.key, OnConflict.RETURN, Window.UNFINISHED, frozenset({old.name})), name=old.name
        )
        return keys.enqueue([job], using="default")[0].job_id

    one, other = together(enqueue, lambda: again(old, now=None)[old.pk].job_id)

    assert one == other
    assert Job.objects.count() == 2


@committing
def test_a_requeue_and_an_operator_leave_one_unfinished():
    olds = [keyed(f"k:{n}", now=None, state=JobState.DEAD_LETTERED) for n in range(ROUNDS)]

    requeued, run = race(
        ROUNDS,
        lambda n: operate.requeue([olds[n].pk], using="default")[olds[n].pk],
        lambda n: again(olds[n], now=None)[olds[n].pk].result,
    )

    assert set(zip(requeued, run, strict=True)) <= {
        (RequeueResult.REQUEUED, BUSY),
        (RequeueResult.KEY_BUSY, ENQUEUED),
    }
    assert Job.objects.filter(state=JobState.READY).count() == ROUNDS


@committing
def test_it_waits_for_an_enqueue_that_is_still_open():
    old = keyed(now=None)

    def begin(alias):
        keyed(state=JobState.READY, now=None, using=alias)

    said = behind(begin, lambda: again(old, now=None))

    newer = Job.objects.get(generation=2)
    assert said == {old.pk: RunAgain(BUSY, newer.pk, 2)}


@committing
def test_nobody_sees_it_before_the_commit():
    old = keyed(now=None)

    with second_connection() as other:
        with transaction.atomic():
            said = again(old, now=None)[old.pk]
            assert Job.objects.using(other).count() == 1
        assert Job.objects.using(other).filter(pk=said.job_id).exists()


@committing
def test_a_worker_takes_what_was_run_again():
    old = keyed(now=None)
    said = again(old, now=None)[old.pk]

    [taken] = claim("default", 9, worker=WORKER, lease=LEASE, using="default")
    send(report(taken), now=None)

    assert taken.job_id == said.job_id
    assert row(taken).state == JobState.SUCCEEDED
    assert again(row(taken), now=None)[taken.job_id].generation == 3
