"""The door of operations: a prepared enqueue is carried out once, or never will be."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_backwave.core.identity import Intent, OnConflict, Verdict, Window
from django_backwave.core.operation import Disposition, Resolution
from django_backwave.core.protocol import Prune, RequeueResult
from django_backwave.core.states import JobState
from django_backwave.exceptions import CannotResolve, OperationExpired, OperationMismatch
from django_backwave.management.commands import backwave_prune
from django_backwave.models import Job, Key, Operation
from django_backwave.store import keys, operations, retention
from django_backwave.store.claim import claim
from django_backwave.store.doctor import Limits, Severity, examine
from django_backwave.store.enqueue import insert_many, insert_one
from django_backwave.store.operate import requeue
from django_backwave.store.operations import Command, carry_out, prune, resolve
from django_backwave.worker import pump
from tests.factories import LEASE, NOW, WORKER, after, new_job, report, row, second_connection, send
from tests.store.races import PATIENCE, behind, needs_row_locks, race, together

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 24 * 3600.0


def command(*, digest="the work", plain=False, **changes):
    """Return a command that was prepared at `NOW`."""
    return Command(new_job(**changes), digest, after(300), after(300 + DAY), plain)


def keyed(on_conflict=OnConflict.RETURN, key="k", **changes):
    intent = Intent(key, on_conflict, Window.FOREVER, frozenset({"shop.send_receipt"}))
    return command(intent=intent, **changes)


def carried(given, *, using="default", now=NOW):
    return carry_out(given, using=using, now=now)


def resolved(given, *, timeout=PATIENCE, using="default", now=NOW):
    return resolve(given, timeout=timeout, using=using, now=now)


def open_insert(given, *, rolled_back=False):
    """Return what a stranger does in a transaction that is still open, and how it ends."""

    def insert(using):
        if given.plain:
            insert_one(given.job, using=using, now=NOW)
        else:
            carried(given, using=using)
        transaction.set_rollback(rolled_back, using=using)

    return insert


# Carrying out.


def test_it_makes_one_job_however_often():
    given = command(tags=(("", "vip"),))
    first, second = carried(given), carried(given)

    assert (first.now, second.now) == (True, False)
    assert first.landed == second.landed
    assert (first.landed.verdict, first.landed.job_id) == (Verdict.NEW, given.job.id)
    assert Job.objects.get().tags.count() == 1
    assert Operation.objects.get().created is True


@pytest.mark.parametrize("job", [command, keyed])
def test_callers_at_once_make_one_job(job):
    given = job()
    found = together(*[lambda: carried(given)] * 4)

    assert Job.objects.count() == 1
    assert sorted(each.now for each in found) == [False, False, False, True]
    assert {each.landed.job_id for each in found} == {given.job.id}


def test_it_waits_for_an_insert_that_is_open_elsewhere():
    given = command()
    assert behind(open_insert(given), lambda: carried(given)).now is False
    assert Job.objects.count() == 1


def test_it_does_the_work_of_an_insert_that_was_rolled_back():
    given = command()
    assert behind(open_insert(given, rolled_back=True), lambda: carried(given)).now is True
    assert Job.objects.count() == 1


def test_it_goes_with_the_callers_transaction():
    given = command()
    with pytest.raises(LookupError), transaction.atomic():
        carried(given)
        raise LookupError
    assert (Job.objects.count(), Operation.objects.count()) == (0, 0)
    assert carried(given).now is True


def test_other_work_under_the_same_id_is_refused_and_harms_nothing():
    given = command()
    carried(given)
    with transaction.atomic():
        with pytest.raises(OperationMismatch, match=f"Operation {given.job.id} was recorded with other work"):
            carried(given._replace(digest="other work"))
        carried(command())
    assert Job.objects.count() == 2


def test_after_the_deadline_nothing_is_begun():
    given = command()
    with pytest.raises(OperationExpired, match="until 2026-03-01 12:05:00 UTC") as caught:
        carried(given, now=after(301))
    assert caught.value.disposition is Disposition.UNKNOWN, "an earlier call may be on its way"
    assert (Job.objects.count(), Operation.objects.count()) == (0, 0)


def test_after_the_deadline_what_was_done_is_found():
    given, plain = command(), command(plain=True)
    first = carried(given)
    insert_one(plain.job, using="default", now=NOW)

    assert carried(given, now=after(301)).landed == first.landed
    assert carried(plain, now=after(301)).landed.job_id == plain.job.id


@pytest.mark.parametrize("on_conflict", OnConflict)
def test_a_plain_enqueue_that_was_applied_counts(on_conflict):
    given = keyed(on_conflict, plain=True)
    keys.enqueue([given.job], using="default", now=NOW)

    found = carried(given, now=after(1))

    assert (found.landed.verdict, found.landed.generation) == (Verdict.NEW, 1)
    assert (Job.objects.count(), Key.objects.get().generation) == (1, 1)
    assert carried(given, now=after(2)).landed._replace(enqueued_at=NOW) == found.landed._replace(
        enqueued_at=NOW
    )


def test_a_plain_enqueue_of_a_generation_that_has_ended_counts():
    """A new generation would be begun otherwise, under the same id."""
    given = keyed(OnConflict.NEW_GENERATION, plain=True, queue="mail")
    keys.enqueue([given.job], using="default", now=NOW)
    [taken] = claim("mail", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)
    send(report(taken))

    assert carried(given, now=after(1)).landed.generation == 1
    assert Job.objects.count() == 1


def test_a_plain_enqueue_that_arrives_and_ends_meanwhile_counts(monkeypatch):
    """After this call has looked for its job, and before it has locked the key."""
    given = keyed(OnConflict.NEW_GENERATION, plain=True, queue="mail")
    look = operations._job

    def look_too_early(job, using):
        monkeypatch.setattr(operations, "_job", look)
        keys.enqueue([given.job], using=using, now=NOW)
        [taken] = claim("mail", 1, worker=WORKER, lease=LEASE, using=using, now=NOW)
        send(report(taken))

    monkeypatch.setattr(operations, "_job", look_too_early)
    with transaction.atomic():
        landed = carried(given, now=after(1)).landed

    assert (landed.job_id, landed.generation) == (given.job.id, 1)
    assert (Job.objects.count(), Key.objects.get().generation) == (1, 1)
    assert resolved(given, now=after(2)) is Resolution.APPLIED


def test_a_plain_enqueue_that_is_still_open_counts():
    given = command(plain=True)
    assert behind(open_insert(given), lambda: carried(given)).landed.job_id == given.job.id
    assert Job.objects.count() == 1


def test_a_key_leads_to_the_generation_that_exists_every_time():
    other = keyed()
    carried(other)
    given = keyed()

    first, second = carried(given, now=after(1)), carried(given, now=after(2))

    assert first.landed.job_id == second.landed.job_id == other.job.id
    assert second.landed.verdict is Verdict.RETURN
    assert second.landed.generation == 1


def test_an_enqueue_that_its_key_refuses_leaves_no_operation():
    carried(keyed())
    given = keyed(OnConflict.REJECT)
    for _ in range(2):
        with transaction.atomic(), pytest.raises(keys.Refused):
            carried(given, now=after(1))
    assert Operation.objects.count() == 1


def test_a_generation_that_was_pruned_says_how_it_ended():
    given = keyed(queue="mail")
    carried(given)
    [taken] = claim("mail", 1, worker=WORKER, lease=LEASE, using="default", now=NOW)
    send(report(taken))
    retention.prune(keep_done=1.0, keep_dead=1.0, using="default", now=after(99))

    assert Job.objects.count() == 0
    assert carried(given, now=after(100)).landed.settled_as is JobState.SUCCEEDED


# Resolving.


def test_what_was_carried_out_is_applied():
    given = command()
    carried(given)
    assert resolved(given) is Resolution.APPLIED
    assert resolved(given, now=after(9 * DAY)) is Resolution.APPLIED


def test_what_was_not_never_will_be():
    given = command()
    assert resolved(given) is Resolution.NOT_APPLIED
    with transaction.atomic():
        with pytest.raises(OperationExpired, match="resolved as not applied") as caught:
            carried(given)
        carried(command())
    assert caught.value.disposition is Disposition.KNOWN_NOT_APPLIED
    assert resolved(given) is Resolution.NOT_APPLIED
    assert Job.objects.count() == 1


@pytest.mark.parametrize("plain", [False, True])
def test_it_waits_for_an_open_insert_and_finds_it(plain):
    given = command(plain=plain)
    assert behind(open_insert(given), lambda: resolved(given)) is Resolution.APPLIED
    assert resolved(given) is Resolution.APPLIED
    assert row(given.job).job_state is JobState.READY


@pytest.mark.parametrize("plain", [False, True])
def test_it_waits_for_an_open_insert_that_is_rolled_back(plain):
    given = command(plain=plain)
    insert = open_insert(given, rolled_back=True)
    assert behind(insert, lambda: resolved(given)) is Resolution.NOT_APPLIED


@pytest.mark.parametrize("plain", [False, True])
def test_a_wait_that_times_out_says_unknown_and_changes_nothing(plain):
    given = command(plain=plain)
    with second_connection() as other, transaction.atomic(using=other):
        open_insert(given)(other)
        assert resolved(given, timeout=0.05) is Resolution.UNKNOWN
    assert resolved(given) is Resolution.APPLIED


def test_the_patience_of_the_connection_is_as_before():
    given, blocked = command(), command()
    before = patience()
    resolved(given, timeout=3.0)
    with second_connection() as other, transaction.atomic(using=other):
        open_insert(blocked)(other)
        resolved(blocked, timeout=0.05)
    assert patience() == before


def patience():
    ask = {
        "postgresql": "SHOW lock_timeout",
        "mysql": "SELECT @@innodb_lock_wait_timeout",
        "sqlite": "PRAGMA busy_timeout",
    }
    with connection.cursor() as cursor:
        cursor.execute(ask[connection.vendor])
        return cursor.fetchone()


@pytest.mark.django_db(transaction=False)
def test_in_the_transaction_of_a_test_it_leaves_the_patience_alone():
    before = patience()
    assert resolved(command(), timeout=3.0) is Resolution.NOT_APPLIED
    assert patience() == before


def test_a_late_insert_fails():
    """The request of a plain enqueue may still be on its way when it is resolved."""
    given = command(plain=True)
    assert resolved(given) is Resolution.NOT_APPLIED
    with pytest.raises(IntegrityError):
        insert_one(given.job, using="default", now=after(1))
    with pytest.raises(IntegrityError):
        insert_many([new_job(), given.job], using="default", now=after(1))
    assert Job.objects.count() == 1


def test_a_late_replacement_fails():
    """It leaves no job of its own, but an operation."""
    keys.enqueue([keyed().job], using="default", now=NOW)
    given = keyed(OnConflict.REPLACE, plain=True, priority=9)
    assert resolved(given) is Resolution.NOT_APPLIED
    with pytest.raises(IntegrityError):
        operations.enqueue_by_key([given.job], lambda _: given, using="default", now=after(1))
    assert not Job.objects.filter(priority=9, state=JobState.READY).exists()


def test_the_row_that_stands_in_the_way_never_runs():
    given = command(plain=True, queue="mail")
    resolved(given)

    assert row(given.job).cause == "resolved as not applied: it was never enqueued"
    assert requeue([given.job.id], using="default", now=after(1)) == {
        given.job.id: RequeueResult.NOT_REQUEUEABLE
    }
    assert row(given.job).job_state is JobState.CANCELLED
    assert claim("mail", 9, worker=WORKER, lease=LEASE, using="default", now=after(1)) == []
    assert retention.prune(keep_done=1.0, keep_dead=1.0, using="default", now=after(99)) == 1


def test_the_doctor_finds_nothing_wrong_with_it():
    resolved(command(plain=True))
    results = examine(limits=Limits(), known=("shop.send_receipt",), using="default", now=after(1))
    assert [result for result in results if result.severity is Severity.ERROR] == []


def test_inside_a_transaction_it_refuses():
    given = command()
    with transaction.atomic(), pytest.raises(CannotResolve, match="would go with its rollback"):
        resolved(given)
    assert Operation.objects.count() == 0


def test_other_work_under_the_same_id_cannot_be_resolved():
    given = command()
    carried(given)
    with pytest.raises(OperationMismatch):
        resolved(given._replace(digest="other work"))


def test_once_everything_may_be_pruned_nothing_there_says_nothing():
    given, plain = command(), command(plain=True)
    insert_one(plain.job, using="default", now=NOW)

    assert resolved(given, now=after(301 + DAY)) is Resolution.UNKNOWN
    assert resolved(plain, now=after(301 + DAY)) is Resolution.APPLIED
    assert Operation.objects.count() == 0


def test_the_row_that_stands_in_the_way_is_no_job_when_the_operation_is_gone():
    given = command(plain=True)
    resolved(given)
    prune(using="default", now=after(301 + DAY))
    assert resolved(given, now=after(302 + DAY)) is Resolution.UNKNOWN
    with pytest.raises(OperationExpired):
        carried(given, now=after(302 + DAY))


@pytest.mark.parametrize("plain", [False, True])
def test_an_enqueue_and_its_resolution_at_once_agree(plain):
    """One of them is first, and the other one knows."""
    given = [command(plain=plain) for _ in range(10)]

    def enqueue(number):
        try:
            if plain:
                insert_one(given[number].job, using="default", now=NOW)
            else:
                carried(given[number])
        except (IntegrityError, OperationExpired):
            return False
        return True

    enqueued, answers = race(10, enqueue, lambda number: resolved(given[number]))

    assert [answer is Resolution.APPLIED for answer in answers] == enqueued
    ready = Job.objects.filter(state=JobState.READY).values_list("pk", flat=True)
    expected = {each.job.id for each, done in zip(given, enqueued, strict=True) if done}
    assert set(ready) == expected


# Forgetting.


def test_operations_are_pruned_a_day_after_their_deadline():
    carried(command())
    resolved(command())
    assert prune(using="default", now=after(299 + DAY)) == 0
    assert prune(using="default", now=after(300 + DAY)) == 2
    assert Operation.objects.count() == 0


def test_a_slice_is_bounded_and_the_oldest_come_first():
    for seconds in (3, 1, 2):
        carried(command()._replace(deadline=NOW + timedelta(seconds=seconds)))
    assert prune(limit=2, using="default", now=after(9 + DAY)) == 2
    assert Operation.objects.get().deadline == after(3)


def test_pruning_passes_over_an_operation_that_somebody_holds():
    given = command()
    carried(given)
    carried(command())
    needs_row_locks()
    with second_connection() as other, transaction.atomic(using=other):
        list(Operation.objects.using(other).filter(pk=given.job.id).select_for_update())
        assert prune(using="default", now=after(999 + DAY)) == 1


def test_what_it_costs():
    given = command()
    with CaptureQueriesContext(connection) as queries:
        carried(given)
    assert sum("django_backwave" in query["sql"] for query in queries) == 4


def test_a_prune_by_hand_forgets_them_all(monkeypatch):
    monkeypatch.setattr(backwave_prune, "OPERATIONS_SLICE", 1)
    monkeypatch.setattr(backwave_prune, "prune_operations", partial(prune, limit=1))
    for _ in range(3):
        carried(command())
    call_command("backwave_prune", stdout=StringIO())
    assert Operation.objects.count() == 0


def test_a_workers_errand_forgets_a_slice_and_says_when_there_is_more(monkeypatch):
    monkeypatch.setattr(pump, "OPERATIONS_SLICE", 2)
    monkeypatch.setattr(pump, "prune_operations", partial(prune, limit=2))
    worker = SimpleNamespace(
        using="default", keep_done=None, keep_dead=None, options=SimpleNamespace(lease=60.0)
    )
    errands = pump.Pump(worker)
    for _ in range(3):
        carried(command())
    assert errands._answer(Prune(), 0.0).more is True
    assert Operation.objects.count() == 1
    assert errands._answer(Prune(), 0.0).more is False
    assert Operation.objects.count() == 0
