"""Keys at the store's door: what an enqueue comes to, what is written, what is remembered (G1)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_init

from django_backwave.core.identity import Verdict
from django_backwave.core.outcome import Released, Snoozed, Unroutable
from django_backwave.core.protocol import ChangeResult, Prune, RequeueResult
from django_backwave.core.states import JobState
from django_backwave.exceptions import ForeignTransaction
from django_backwave.models import Job, Key, Tag
from django_backwave.store import clock, keys
from django_backwave.store.adjust import change
from django_backwave.store.claim import claim
from django_backwave.store.expire import expire
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.retention import prune
from django_backwave.worker import pump
from tests.app.models import Invoice
from tests.factories import FAILED, LEASE, NOW, SUCCEEDED, WORKER, after, report, row, send
from tests.store.generations import (
    enqueue,
    generations,
    keyed,
    land,
    refused,
    remembered,
    settle,
    take,
)

pytestmark = pytest.mark.django_db

NEW, RETURN, REPLACE, DUPLICATE, BUSY, TAKEN = Verdict
DAY = 24 * 3600.0


def prune_at(seconds, **options):
    return prune(**{"keep_done": 1.0, "keep_dead": 1.0} | options, using="default", now=after(seconds))


# Generations.


def test_queue_and_key_name_the_work():
    """The same key in another queue is other work."""
    assert enqueue(key="k") == [(NEW, 1)]
    assert enqueue(key="k", queue="other") == [(NEW, 1)]
    assert enqueue(key="k") == [(RETURN, 1)]
    assert Job.objects.count() == Key.objects.count() == 2


def test_each_run_is_a_generation():
    for number in (1, 2, 3):
        assert enqueue(on_conflict="new_generation") == [(NEW, number)]
        settle()
    assert generations() == [(number, JobState.SUCCEEDED) for number in (1, 2, 3)]


def test_the_row_of_a_key_tells_its_last_generation():
    landed = land(window=60.0)

    key = remembered()
    assert (key.queue, key.key, key.name) == ("default", "k", "shop.send_receipt")
    assert (key.generation, key.job_id) == (1, landed.job_id)
    assert (key.enqueued_at, key.used_at, key.forget_at) == (NOW, NOW, after(60))
    assert key.settled_as is None

    settle()
    second = land(window=60.0, on_conflict="new_generation", now=after(9))
    key.refresh_from_db()
    assert (key.generation, key.job_id, key.enqueued_at) == (2, second.job_id, after(9))
    assert (key.forget_at, key.used_at) == (after(69), after(9))


def test_return_leads_to_the_generation_that_exists_and_leaves_it_untouched():
    first = land()
    before = Job.objects.values().get()

    again = land(payload='{"args":[2],"kwargs":{}}', priority=9, tags=(("", "vip"),), now=after(5))

    assert again == first._replace(verdict=RETURN)
    assert Job.objects.values().get() == before
    assert not Tag.objects.exists()


@pytest.mark.parametrize("outcome", [SUCCEEDED, FAILED], ids=["succeeded", "dead-lettered"])
def test_for_ever_also_a_settled_generation_is_returned(outcome):
    first = land(max_attempts=1)
    settle(outcome)

    again = land(now=after(DAY * 365))

    assert (again.verdict, again.job_id, again.generation) == (RETURN, first.job_id, 1)
    assert again.settled_as is row(Job(pk=first.job_id)).job_state


def test_reject_names_the_generation_that_exists():
    first = land()

    assert refused(on_conflict="reject") == first._replace(verdict=DUPLICATE)


def test_a_new_generation_needs_one_that_is_settled():
    first = land()

    assert refused(on_conflict="new_generation") == first._replace(verdict=BUSY)
    take()
    assert refused(on_conflict="new_generation").verdict is BUSY


def test_a_job_that_is_handed_in_twice_is_led_to_itself():
    """As a prepared enqueue may be: its id tells nothing of whether it is new."""
    job = keyed()
    assert enqueue(job) == [(NEW, 1)]
    assert enqueue(job, now=after(1)) == [(RETURN, 1)]


# Replace.


def test_replace_writes_all_of_the_new_work_and_keeps_identity():
    """Payload, due time, policy, tags, expiry, headers and schema; id, generation and enqueue stay."""
    first = land(tags=(("", "old"),), expires=after(50), headers='{"a":1}', schema="receipt/1")
    changes = {
        "payload": '{"args":[2],"kwargs":{}}',
        "run_after": after(500),
        "priority": 7,
        "max_attempts": 9,
        "lease_seconds": 33.0,
        "timeout_seconds": 44.0,
        "headers": '{"b":2}',
        "schema": "receipt/2",
        "expires": 900.0,
    }

    told = land(on_conflict="replace", now=after(20), tags=(("", "new"),), **changes)

    assert told == first._replace(verdict=REPLACE)
    job = Job.objects.get()
    assert (job.pk, job.generation, job.key, job.enqueued_at) == (first.job_id, 1, "k", NOW)
    assert (job.payload, job.headers, job.schema) == ({"args": [2], "kwargs": {}}, {"b": 2}, "receipt/2")
    assert (job.due_at, job.expires_at) == (after(500), after(920))
    assert (job.priority, job.max_attempts, job.lease_seconds, job.timeout_seconds) == (7, 9, 33.0, 44.0)
    assert list(Tag.objects.values_list("job_id", "value")) == [(first.job_id, "new")]
    assert (remembered().generation, remembered().enqueued_at) == (1, NOW)


def test_replace_without_a_due_time_is_due_at_once():
    land(run_after=after(500), expires=after(600))

    enqueue(on_conflict="replace", now=after(20))

    assert (Job.objects.get().due_at, Job.objects.get().expires_at) == (after(20), None)


def test_replace_of_what_waits_for_something_leaves_it_waiting():
    job = land()
    Job.objects.update(state=JobState.WAITING)

    assert land(on_conflict="replace").job_id == job.job_id
    assert Job.objects.get().state == JobState.WAITING


def test_replace_of_what_no_worker_could_route_gives_it_a_new_start():
    enqueue()
    settle(Unroutable("no such handler"), started_after=None)
    assert Job.objects.get().unroutable_since is not None

    assert enqueue(on_conflict="replace", now=after(99)) == [(REPLACE, 1)]

    assert (Job.objects.get().unroutable_since, Job.objects.get().cause) == (None, "")


def test_a_settled_generation_is_not_replaced():
    enqueue()
    settle()

    assert refused(on_conflict="replace").verdict is DUPLICATE


# Never started.


def _claimed(_):
    pass


def _released_unstarted(taken):
    send(report(taken, Released(), started_after=None))


def _released_started(taken):
    send(report(taken, Released()))


def _snoozed(taken):
    send(report(taken, Snoozed(5.0)))


def _failed(taken):
    send(report(taken, FAILED))


def _lapsed(_):
    expire(jitter=float, using="default", now=after(LEASE))


@pytest.mark.parametrize(
    ("happens", "started"),
    [
        (_claimed, True),
        (_released_unstarted, False),
        (_released_started, True),
        (_snoozed, True),
        (_failed, True),
        (_lapsed, True),
    ],
)
def test_never_started_means_no_attempt_that_may_have_begun(happens, started):
    """A claim counts as a start, until it is handed back unbegun; an abandoned attempt may have begun."""
    enqueue()
    happens(take())

    later = {"now": after(LEASE + 1)}
    if started:
        assert refused(on_conflict="replace", **later).verdict is BUSY
        assert enqueue(window="pending", **later) == [(NEW, 2)]
    else:
        assert enqueue(on_conflict="replace", **later) == [(REPLACE, 1)]
        assert enqueue(window="pending", **later) == [(RETURN, 1)]


def test_of_two_unfinished_generations_the_newest_is_returned():
    enqueue()
    first = take()
    assert enqueue(window="pending", now=after(1)) == [(NEW, 2)]
    assert enqueue(now=after(2)) == [(RETURN, 2)]
    cancel([remembered().job_id], using="default", now=after(3))

    # The newest is settled, and one before it is not.
    assert enqueue(now=after(4)) == [(RETURN, 1)]
    assert refused(on_conflict="new_generation", now=after(4)).job_id == first.job_id
    assert enqueue(window="pending", now=after(5)) == [(NEW, 3)]


# Windows.


@pytest.mark.parametrize("on_conflict", ["return", "reject", "replace"])
def test_unfinished(on_conflict):
    """Until it is settled, on_conflict decides; then any enqueue begins a new generation."""
    enqueue(window="unfinished")
    taken = take()
    assert enqueue(window="unfinished") == [(RETURN, 1)]
    send(report(taken, SUCCEEDED))

    assert enqueue(window="unfinished", on_conflict=on_conflict) == [(NEW, 2)]


def test_a_window_of_time_counts_from_the_enqueue_of_the_last_generation():
    assert enqueue(window=60.0) == [(NEW, 1)]
    assert enqueue(window=60.0, now=after(59)) == [(RETURN, 1)]
    assert enqueue(window=60.0, now=after(60)) == [(NEW, 2)]
    assert enqueue(window=60.0, now=after(119)) == [(RETURN, 2)]
    assert generations() == [(1, JobState.READY), (2, JobState.READY)]


def test_a_window_of_time_is_told_by_the_databases_clock():
    """Nobody's own clock counts."""
    enqueue(window=3600.0, now=None)
    at = clock.read("default")
    Key.objects.update(enqueued_at=at - timedelta(seconds=3500))
    assert enqueue(window=3600.0, now=None) == [(RETURN, 1)]
    Key.objects.update(enqueued_at=at - timedelta(seconds=3600))
    assert enqueue(window=3600.0, now=None) == [(NEW, 2)]


# Names.


def test_a_key_of_another_job_name_is_taken():
    first = land(names=("shop.charge",))

    for on_conflict in ("return", "new_generation", "reject", "replace"):
        assert refused(on_conflict=on_conflict) == first._replace(verdict=TAKEN)
    take()
    assert refused().verdict is TAKEN


def test_a_former_name_is_the_same_job():
    """Also in a rolling deployment, where the old code comes once more."""
    enqueue(names=("shop.old",))

    assert enqueue(names=("shop.new", "shop.old")) == [(RETURN, 1)]
    assert enqueue(names=("shop.new", "shop.old"), on_conflict="replace") == [(REPLACE, 1)]
    assert Job.objects.get().name == "shop.new"


# Many.


def test_many_with_keys_come_one_after_the_other():
    told = enqueue(keyed("b"), keyed("a"), keyed("b"), keyed("b", queue="other"), keyed("a", "replace"))

    assert told == [(NEW, 1), (NEW, 1), (RETURN, 1), (NEW, 1), (REPLACE, 1)]
    assert Job.objects.count() == Key.objects.count() == 3


def test_many_with_mixed_states():
    enqueue(keyed("settled"), now=NOW)
    settle()
    enqueue(keyed("running"))
    take()
    enqueue(keyed("pending"))

    def again(key):
        return keyed(key, window="unfinished")

    told = enqueue(again("fresh"), again("settled"), again("running"), again("pending"), again("settled"))

    assert told == [(NEW, 1), (NEW, 2), (RETURN, 1), (RETURN, 1), (RETURN, 2)]


@pytest.mark.parametrize("on_conflict", ["reject", "new_generation"])
def test_one_that_is_refused_takes_all_back(on_conflict):
    enqueue(key="there")
    before = list(Job.objects.values()), list(Key.objects.values())

    with transaction.atomic():
        with pytest.raises(keys.Refused) as caught:
            enqueue(keyed("a"), keyed("there", on_conflict), keyed("b"), now=after(5))
        assert (list(Job.objects.values()), list(Key.objects.values())) == before
        enqueue(key="c")  # the caller's transaction goes on

    assert (caught.value.number, caught.value.earlier) == (1, None)
    assert Job.objects.count() == 2


@pytest.mark.parametrize(("on_conflict", "verdict"), [("reject", DUPLICATE), ("new_generation", BUSY)])
def test_two_of_one_batch_may_be_in_each_others_way(on_conflict, verdict):
    with pytest.raises(keys.Refused) as caught:
        enqueue(keyed("a"), keyed("b", on_conflict), keyed("b", on_conflict))

    assert (caught.value.number, caught.value.earlier) == (2, 1)
    assert caught.value.landed.verdict is verdict
    assert not Job.objects.exists()
    assert not Key.objects.exists()


def test_the_last_of_one_batch_replaces_the_first():
    told = enqueue(
        keyed("k", "replace", payload='{"args":[1],"kwargs":{}}', tags=(("", "one"),)),
        keyed("k", "replace", payload='{"args":[2],"kwargs":{}}', tags=(("", "two"),)),
    )

    assert told == [(NEW, 1), (REPLACE, 1)]
    assert Job.objects.get().payload["args"] == [2]
    assert Tag.objects.get().value == "two"


def test_more_keys_than_one_statement_takes(monkeypatch):
    monkeypatch.setattr(keys, "BATCH", 3)
    batch = [keyed(f"k{number}", queue=f"queue-{number % 2}") for number in range(10)]

    assert enqueue(*batch) == [(NEW, 1)] * 10
    assert enqueue(*[job._replace(id=UUID(int=n + 1)) for n, job in enumerate(batch)]) == [(RETURN, 1)] * 10


def test_every_job_of_this_door_has_a_key():
    with pytest.raises(ValueError, match="has no key"):
        enqueue(keyed()._replace(intent=None))


# What names a key.


@pytest.mark.parametrize(
    "others",
    [("Order:A", "order:a"), ("x", "x "), ("straße", "strasse"), ("\u00e9", "e\u0301"), ("a", "ä")],
)
def test_keys_are_compared_byte_for_byte(others):
    for key in others:
        assert enqueue(key=key) == [(NEW, 1)]
    for key in others:
        assert enqueue(key=key) == [(RETURN, 1)]
        assert Job.objects.filter(key=key).count() == 1


@pytest.mark.parametrize("key", ["k" * 255, "😀" * 255, "a'b\"c;--%s{}\\", "\t\n ", "한글"])
def test_any_text_of_255_characters_is_a_key(key):
    assert enqueue(key=key) == [(NEW, 1)]
    assert enqueue(key=key) == [(RETURN, 1)]
    assert Key.objects.get().key == Job.objects.get().key == key


def test_queue_and_key_do_not_run_into_each_other():
    assert Key.id_of("a", "bc") != Key.id_of("ab", "c")


# What is remembered.


def test_a_pruned_job_is_remembered_by_its_key():
    """For ever: a repeat is led to it, and knows how it ended."""
    first = land()
    settle()
    assert prune_at(9) == 1

    again = land(now=after(DAY))

    assert again == first._replace(verdict=RETURN, settled_as=JobState.SUCCEEDED)
    assert not Job.objects.exists()
    assert enqueue(on_conflict="new_generation", now=after(DAY)) == [(NEW, 2)]
    assert remembered().settled_as is None


@pytest.mark.parametrize("end", [JobState.CANCELLED, JobState.DEAD_LETTERED])
def test_it_is_remembered_how_it_ended(end):
    job_id = land(max_attempts=1).job_id
    if end is JobState.CANCELLED:
        cancel([job_id], using="default", now=NOW)
    else:
        settle(FAILED)
    prune_at(9)

    assert remembered().settled_as == end
    assert refused(on_conflict="reject").settled_as is end


def test_of_an_older_generation_nothing_is_remembered():
    enqueue()
    settle()
    enqueue(on_conflict="new_generation", now=after(5))
    assert prune_at(9) == 1

    assert generations() == [(2, JobState.READY)]
    assert remembered().settled_as is None


def test_a_job_that_another_app_protects_stays_the_keys_generation():
    """It may be sent back later, and then it is unfinished again."""
    job_id = land().job_id
    cancel([job_id], using="default", now=NOW)
    Invoice.objects.create(job_id=job_id)
    assert prune_at(9) == 0
    assert keys.forget(using="default", now=after(9)) == 0

    assert requeue([job_id], using="default", now=after(10)) == {job_id: RequeueResult.REQUEUED}
    assert enqueue(window="unfinished") == [(RETURN, 1)]
    assert refused(on_conflict="reject").settled_as is None


def test_a_generation_whose_row_was_deleted_by_hand_is_settled():
    enqueue()
    Job.objects.all().delete()

    assert land().settled_as is None
    assert enqueue(on_conflict="new_generation") == [(NEW, 2)]


def test_pruning_needs_no_row_of_the_key():
    enqueue()
    settle()
    Key.objects.all().delete()

    assert prune_at(9) == 1


# What is forgotten.


@pytest.mark.parametrize(
    ("window", "at", "forgotten"),
    [
        ("forever", DAY * 10_000, 0),
        ("unfinished", 9, 1),
        ("pending", 9, 1),
        (100.0, 99, 0),
        (100.0, 100, 1),
    ],
)
def test_a_key_is_forgotten_by_its_own_window(window, at, forgotten):
    enqueue(window=window)
    settle()
    prune_at(9)

    assert keys.forgettable(using="default", now=after(at)) == forgotten
    assert keys.forget(using="default", now=after(at)) == forgotten
    assert Key.objects.count() == 1 - forgotten
    if forgotten:
        assert enqueue(window=window, now=after(at)) == [(NEW, 1)]


def test_no_key_is_forgotten_while_a_job_of_it_is_left():
    """Of no generation: a number would come twice."""
    job_id = land(window="unfinished").job_id
    settle()
    enqueue(window="unfinished", now=after(1))
    settle(now=after(1))
    Job.objects.filter(pk=job_id).update(state=JobState.DEAD_LETTERED)
    assert prune_at(9, keep_dead=None) == 1
    assert remembered().settled_as == JobState.SUCCEEDED

    assert keys.forget(using="default", now=after(99)) == 0
    assert keys.forget_idle(1.0, using="default", now=after(99)) == 0
    assert prune_at(99) == 1
    assert keys.forget(using="default", now=after(99)) == 1


def test_the_longest_window_of_those_who_used_a_key_counts():
    enqueue(window="unfinished")
    enqueue(window=50.0, now=after(1))
    assert remembered().forget_at == after(50)
    enqueue(window=20.0, now=after(2))
    assert remembered().forget_at == after(50)
    enqueue(now=after(3))
    assert remembered().forget_at is None
    enqueue(window=20.0, now=after(4), key="k")
    assert remembered().forget_at is None


def test_for_ever_ends_only_for_keys_that_nobody_asks_for():
    enqueue(keyed("a"), keyed("b"), keyed("c", window=DAY * 30))
    for _ in "abc":
        settle()
    prune_at(9)
    enqueue(key="b", now=after(DAY))

    idle = {"idle_for": DAY, "using": "default"}
    assert keys.forget_idle(**idle, now=after(DAY - 1)) == 0
    assert keys.forgettable(**idle, now=after(DAY)) == 1
    assert keys.forget_idle(**idle, now=after(DAY)) == 1
    assert sorted(Key.objects.values_list("key", flat=True)) == ["b", "c"]
    # A window of its own is kept, and ends like any other.
    assert keys.forget_idle(**idle, now=after(DAY * 30)) == 2


def test_slices(monkeypatch):
    monkeypatch.setattr(keys, "SLICE", 2)
    enqueue(*(keyed(f"k{number}", window="unfinished") for number in range(5)))
    for _ in range(5):
        settle()
    prune_at(9)

    assert keys.forget(limit=3, using="default", now=after(9)) == 3
    assert keys.forget_idle(1.0, using="default", now=after(9)) == 2


def test_workers_forget_by_themselves(monkeypatch):
    """With the jobs, slice by slice; a full slice is followed by the next at once."""
    monkeypatch.setattr(pump, "forget", partial(keys.forget, limit=2))
    monkeypatch.setattr(pump, "FORGET_SLICE", 2)
    enqueue(*(keyed(f"k{number}", window="unfinished") for number in range(3)))
    for _ in range(3):
        settle()
    worker = SimpleNamespace(
        using="default",
        keep_done=1.0,
        keep_dead=1.0,
        name="w",
        grace=1.0,
        options=SimpleNamespace(lease=60.0),
    )
    errands = pump.Pump(worker)

    told = [errands._answer(Prune(), 0.0).more for _ in range(3)]

    assert told == [True, False, False]
    assert not Key.objects.exists()


def test_what_is_found_is_held_slice_by_slice(monkeypatch):
    """No statement grows with the batch."""
    monkeypatch.setattr(keys, "BATCH", 2)
    jobs = [keyed(f"k{number}") for number in range(5)]
    enqueue(*jobs)

    again = [job._replace(id=UUID(int=n + 1)) for n, job in enumerate(jobs)]
    assert enqueue(*again) == [(RETURN, 1)] * 5


# Operators.


def test_requeue_is_refused_while_another_generation_is_unfinished():
    first = land().job_id
    cancel([first], using="default", now=NOW)
    second = land(on_conflict="new_generation").job_id
    assert requeue([first], using="default", now=after(1)) == {first: RequeueResult.KEY_BUSY}
    assert row(Job(pk=first)).state == JobState.CANCELLED

    cancel([second], using="default", now=after(2))
    # Of both the newest.
    assert requeue([first, second], using="default", now=after(3)) == {
        first: RequeueResult.KEY_BUSY,
        second: RequeueResult.REQUEUED,
    }
    # The other way round as well: an older one that is unfinished holds the key.
    cancel([second], using="default", now=after(4))
    assert requeue([first], using="default", now=after(5)) == {first: RequeueResult.REQUEUED}
    assert requeue([second], using="default", now=after(6)) == {second: RequeueResult.KEY_BUSY}
    assert remembered().used_at == after(6)


def test_a_newer_generation_that_succeeded_is_in_nobodys_way():
    first = land().job_id
    cancel([first], using="default", now=NOW)
    second = land(on_conflict="new_generation").job_id
    settle()

    assert requeue([first, second], using="default", now=NOW) == {
        first: RequeueResult.REQUEUED,
        second: RequeueResult.NOT_REQUEUEABLE,
    }


def test_of_two_that_are_sent_back_only_the_newest_goes_if_it_ends_meanwhile(monkeypatch):
    """Whoever reads that it runs must not take it for one that will not be sent back."""
    first = land().job_id
    cancel([first], using="default", now=NOW)
    second = land(on_conflict="new_generation", max_attempts=1).job_id
    taken, lock = take(), keys._lock

    def lock_late(rows, using):
        lock(rows, using)
        send(report(taken, FAILED), now=NOW)

    monkeypatch.setattr(keys, "_lock", lock_late)
    told = requeue([first, second], using="default", now=NOW)

    assert told == {first: RequeueResult.KEY_BUSY, second: RequeueResult.REQUEUED}
    assert generations() == [(1, JobState.CANCELLED), (2, JobState.READY)]


def test_requeue_makes_up_for_a_key_that_was_deleted_by_hand():
    job_id = land().job_id
    cancel([job_id], using="default", now=NOW)
    Key.objects.all().delete()

    assert requeue([job_id], using="default", now=after(1)) == {job_id: RequeueResult.REQUEUED}
    assert (remembered().job_id, remembered().generation) == (job_id, 1)
    assert enqueue() == [(RETURN, 1)]


def test_the_queue_of_a_job_with_a_key_stays():
    """The key names work of that queue."""
    job_id = land().job_id

    assert change([job_id], queue="other", using="default", now=NOW) == {job_id: ChangeResult.KEYED}
    assert change([job_id], queue="other", priority=5, using="default", now=NOW) == {
        job_id: ChangeResult.KEYED
    }
    assert (Job.objects.get().queue, Job.objects.get().priority) == ("default", 0)
    assert change([job_id], priority=5, using="default", now=NOW) == {job_id: ChangeResult.CHANGED}
    assert change([job_id], queue="default", using="default", now=NOW) == {job_id: ChangeResult.CHANGED}


# The caller's transaction.


def test_a_rollback_forgets_the_key():
    """G1."""
    with transaction.atomic():
        enqueue()
        transaction.set_rollback(True)

    assert not Key.objects.exists()
    assert enqueue() == [(NEW, 1)]


@pytest.mark.django_db(databases=["default", "other"], transaction=True)
def test_a_transaction_elsewhere_is_refused_before_any_sql(django_assert_num_queries):
    with transaction.atomic(using="other"):
        with django_assert_num_queries(0), pytest.raises(ForeignTransaction):
            enqueue()
        with transaction.atomic():
            assert enqueue() == [(NEW, 1)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("prepared", "options", "most"),
    [
        ([], {}, 5),  # the clock, the key, its row, the job; on PostgreSQL a notification
        ([keyed()], {}, 7),  # the clock, the key, its row, its jobs; a savepoint around the lock of the job
        ([keyed()], {"on_conflict": "replace"}, 11),  # as before; the job, its tags, a notification
        (
            [keyed()],
            {"window": 60.0},
            7,
        ),  # the clock, the key, its row, its jobs; row and job, a notification
    ],
    ids=["new", "return", "replace", "next"],
)
def test_an_enqueue_costs_a_few_statements(prepared, options, most, count_statements):
    """However many generations there are, and however full the table is."""
    if prepared:
        enqueue(*prepared)
    assert count_statements(lambda: enqueue(**options, now=None)) <= most


@pytest.mark.django_db(transaction=True)
def test_many_cost_no_more_statements_than_one(count_statements):
    few, many = ([keyed(f"{size}-{n}") for n in range(size)] for size in (3, 100))

    assert count_statements(lambda: enqueue(*many)) == count_statements(lambda: enqueue(*few))
    again = [job._replace(id=UUID(int=n + 1)) for n, job in enumerate(many)]
    assert count_statements(lambda: enqueue(*again)) <= 8


@pytest.fixture
def count_statements():
    """Return a function that says how many statements a call sends, beside BEGIN and COMMIT."""

    def count(call):
        sent = []

        def record(execute, sql, params, many, context):
            sent.append(sql)
            return execute(sql, params, many, context)

        connection.ensure_connection()
        with connection.execute_wrapper(record):
            call()
        return len(sent)

    return count


def test_the_worker_that_claims_a_generation_knows_it():
    enqueue()
    [taken] = claim("default", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)

    assert (taken.logical_key, taken.generation) == ("k", 1)


def test_the_rows_of_many_generations_are_not_read():
    """An enqueue looks at what is unfinished, and at the last."""
    for number in range(1, 31):
        enqueue(on_conflict="new_generation", now=after(number))
        settle(now=after(number))
    rows = []

    def count(instance, **_):
        rows.append(instance.generation)

    post_init.connect(count, sender=Job)
    try:
        assert enqueue(now=after(99)) == [(RETURN, 30)]
    finally:
        post_init.disconnect(count, sender=Job)
    assert rows == [30]
