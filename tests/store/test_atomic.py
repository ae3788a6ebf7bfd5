"""Atomic completion (G7): the handler's writes and its fenced success are both there, or neither is."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from django.contrib.auth.models import Permission
from django.db import (
    DatabaseError,
    IntegrityError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)

from django_backwave.core.outcome import InDoubt, Succeeded
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.exceptions import NotAtomic
from django_backwave.models import Attempt
from django_backwave.store import atomic
from django_backwave.store.atomic import DatabaseBusy, Gate, LeaseGone, completing
from django_backwave.store.expire import expire
from django_backwave.store.heartbeat import renew
from django_backwave.store.operate import cancel, requeue
from tests.app.models import Entry
from tests.factories import (
    ERROR,
    LEASE,
    NOW,
    STRANGER,
    WORKER,
    after,
    attempts,
    claimed,
    contents,
    outcomes,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.store.races import behind, locked, needs_row_locks, together

pytestmark = pytest.mark.django_db(transaction=True)


def complete(job, during=bool, *, gate=None, now=NOW, worker=WORKER, output='"done"'):
    """Run an atomic job that writes an entry, and return its gate."""
    gate = gate or Gate()
    with completing(
        gate,
        job,
        worker=worker,
        report=lambda: report(job, Succeeded(output)),
        using="default",
        now=now,
    ):
        Entry.objects.create(key=str(job.job_id), value="written")
        during()
    return gate


def refused(job, error, during=bool, **options):
    """Run an atomic job that must end in this error, and see that it has left nothing."""
    gate = Gate()
    with pytest.raises(error) as caught:
        complete(job, during, gate=gate, **options)
    assert not gate.written
    assert not connection.in_atomic_block
    assert list(Entry.objects.all()) == []
    assert JobState.SUCCEEDED.value != row(job).state
    return caught.value


def test_the_writes_and_the_success_are_one():
    job = claimed()

    gate = complete(job)

    assert gate.written
    assert Entry.objects.count() == 1
    done = row(job)
    assert (done.job_state, done.output, done.worker, done.failures) == (JobState.SUCCEEDED, "done", "", 0)
    assert done.lease_expires_at is None
    assert (done.started_at, done.finished_at) == (after(1), NOW)
    [attempt] = attempts(job)
    assert (attempt.number, attempt.outcome, attempt.worker) == (1, "succeeded", WORKER)


def test_an_exception_takes_both_back():
    job = claimed()
    before = contents()

    def fail():
        raise KeyError("no stock")

    refused(job, KeyError, fail)

    assert contents() == before


@pytest.mark.parametrize(
    "changes",
    [{"now": after(LEASE)}, {"worker": STRANGER}],
    ids=["lease over", "another worker"],
)
def test_the_fence_is_asked_as_a_whole(changes):
    """G4: and at SQLite's begin, where nobody can write in between."""
    job = claimed()
    before = contents()

    refused(job, LeaseGone, **changes)

    assert contents() == before


def test_an_older_attempt_writes_nothing():
    job = claimed()
    expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
    newer = reclaimed(job, worker=WORKER, now=after(LEASE))
    before = contents()

    refused(job, LeaseGone, now=after(LEASE))

    assert contents() == before
    assert newer.attempt == 2


# What others do between the begin and the completion. SQLite lets nobody.


def _swept(job, other):
    assert expire(jitter=lambda: 0.0, using=other, now=after(LEASE))


def _swept_and_claimed(job, other):
    from django_backwave.store.claim import claim

    _swept(job, other)
    assert claim(job.queue, 1, worker=STRANGER, lease=LEASE, using=other, now=after(LEASE))


def _claimed_by_the_same_worker(job, other):
    from django_backwave.store.claim import claim

    _swept(job, other)
    [newer] = claim(job.queue, 1, worker=WORKER, lease=LEASE, using=other, now=after(LEASE))
    assert newer.attempt == job.attempt + 1


def _requeued(job, other):
    _swept(job, other)
    requeue([job.job_id], using=other, now=after(LEASE))
    assert row(job, other).job_state is JobState.READY


RACES = {
    "swept": (_swept, {}),
    "swept and claimed by another": (_swept_and_claimed, {}),
    "swept and claimed by the same worker": (_claimed_by_the_same_worker, {}),
    "dead-lettered": (_swept, {"max_attempts": 1}),
    "dead-lettered and requeued": (_requeued, {"max_attempts": 1}),
}


@pytest.mark.parametrize("race", RACES)
def test_who_loses_the_lease_within_writes_nothing(race):
    needs_row_locks()
    happens, options = RACES[race]
    job = claimed(**options)

    with second_connection() as other:

        def during():
            happens(job, other)
            nonlocal theirs
            theirs = row(job, other), outcomes(job)

        theirs = None
        refused(job, LeaseGone, during)

    assert theirs is not None
    assert row(job).__dict__ | {"_state": 0} == theirs[0].__dict__ | {"_state": 0}
    assert outcomes(job) == [(1, "abandoned")]


def test_a_cancel_that_nobody_noticed_does_not_stop_the_success():
    """G8."""
    needs_row_locks()
    job = claimed()

    with second_connection() as other:
        complete(job, lambda: cancel([job.job_id], using=other, now=NOW))

    assert row(job).job_state is JobState.SUCCEEDED
    assert row(job).cancel_requested_at is not None
    assert Entry.objects.count() == 1


def test_a_heartbeat_goes_on_within():
    needs_row_locks()
    job = claimed()

    with second_connection() as other:
        beat = {job.key: None}
        complete(job, lambda: renew(beat, worker=WORKER, lease=LEASE, using=other, now=after(30)))

    assert row(job).job_state is JobState.SUCCEEDED


def test_the_completion_waits_for_the_sweep_and_is_refused():
    """The guard is asked again after the wait, by the row as it was committed."""
    needs_row_locks()
    job = claimed()

    def sweep(other):
        _swept(job, other)

    def finish():
        with pytest.raises(LeaseGone):
            complete(job)

    behind(sweep, finish)

    assert list(Entry.objects.all()) == []
    assert outcomes(job) == [(1, "abandoned")]


def test_the_completion_waits_for_a_lock_that_changes_nothing():
    needs_row_locks()
    job = claimed()

    def lock(other):
        cancel([job.job_id], using=other, now=NOW)

    behind(lock, lambda: complete(job))

    assert row(job).job_state is JobState.SUCCEEDED


@pytest.mark.only_on("postgres", "mysql")
def test_a_lock_that_is_never_given_up_is_no_failure(monkeypatch):
    monkeypatch.setattr(atomic, "LOCK_WAIT", 200)
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
    job = claimed()

    with locked(job):
        refused(job, DatabaseBusy)

    complete(job)
    connection.close()


def test_rows_of_others_that_are_locked_delay_nothing(monkeypatch):
    """§9.1: also where MySQL would walk an index over all that is running."""
    others = [claimed() for _ in range(3)]
    job = claimed()
    monkeypatch.setattr(atomic, "LOCK_WAIT", 200)

    with locked(*others):
        complete(job)

    assert row(job).job_state is JobState.SUCCEEDED


# Beginning.


@pytest.mark.only_on("sqlite")
def test_a_busy_database_is_waited_for_and_then_no_failure(monkeypatch):
    """§9.7."""
    job = claimed()
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.2)
    with second_connection() as other, transaction.atomic(using=other):
        refused(job, DatabaseBusy)
    connection.close()

    complete(job)


@pytest.mark.only_on("sqlite")
def test_the_write_lock_is_taken_at_the_begin_whatever_the_settings_say(monkeypatch):
    job = claimed()
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", None)
    with second_connection() as other:
        connections[other].settings_dict["OPTIONS"]["timeout"] = 0.1

        def during():
            with pytest.raises(DatabaseError, match="locked"):
                cancel([job.job_id], using=other, now=NOW)

        complete(job, during)
    assert connection.transaction_mode is None
    connection.close()


@pytest.mark.only_on("sqlite")
def test_a_lease_that_ran_out_within_is_still_ours():
    """§9.7: nobody else could have written, its own heartbeat neither."""
    job = claimed(now=None, lease=1.0)

    complete(job, lambda: time.sleep(1.1), now=None)

    assert row(job).job_state is JobState.SUCCEEDED


@pytest.mark.only_on("postgres", "mysql")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stricter_level_of_the_connection_is_not_used(level):
    """§9.4: otherwise the job's own heartbeat would make its completion fail."""
    job = claimed()
    strict = {
        "postgresql": f"SET default_transaction_isolation = '{level.lower()}'",
        "mysql": f"SET SESSION TRANSACTION ISOLATION LEVEL {level}",
    }
    with connection.cursor() as cursor:
        cursor.execute(strict[connection.vendor])

    with second_connection() as other:

        def during():
            Entry.objects.count()
            renew({job.key: None}, worker=WORKER, lease=LEASE, using=other, now=after(30))

        complete(job, during)
    connection.close()

    assert row(job).job_state is JobState.SUCCEEDED


def test_without_autocommit_there_is_nothing_to_commit():
    job = claimed()
    connection.ensure_connection()
    transaction.set_autocommit(False)
    try:
        refused(job, NotAtomic)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


def test_it_is_the_outermost_transaction():
    job = claimed()
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        complete(job)

    assert row(job).job_state is JobState.RUNNING


# What a handler may do to its transaction.


def _caught_without_a_block():
    with suppress(IntegrityError):
        Entry.objects.create(key="twice", value="")
        Entry.objects.create(key="twice", value="")


def _durable():
    with transaction.atomic(durable=True):
        pass


def _commit():
    transaction.commit()


MISUSES = {
    "set_rollback": (lambda: transaction.set_rollback(True), NotAtomic, "marked to be rolled back"),
    "an error caught within": (_caught_without_a_block, NotAtomic, "marked to be rolled back"),
    "a closed connection": (lambda: connection.close(), NotAtomic, "was closed within"),
    "a durable block": (_durable, RuntimeError, "durable"),
    "a commit": (_commit, transaction.TransactionManagementError, "forbidden"),
    "SQL that is wrong": (lambda: connection.cursor().execute("SELEC"), DatabaseError, ""),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_who_spoils_the_transaction_fails_with_a_clear_error(misuse):
    does, error, words = MISUSES[misuse]
    job = claimed()
    before = contents()

    def run():
        assert words in str(refused(job, error, does))

    together(run)  # in a thread, and so with connections, of its own

    assert contents() == before
    complete(job)


def test_a_connection_that_was_exchanged_is_noticed():
    job = claimed()

    def exchange():
        connections["default"].connection.close()
        del connections["default"]

    def run():
        with pytest.raises(NotAtomic, match="was closed within"):
            complete(job, exchange)

    together(run)  # in a thread, and so with connections, of its own

    assert row(job).job_state is JobState.RUNNING
    assert Entry.objects.count() == 0


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_savepoints_within_are_the_handlers_own():
    job = claimed()

    def during():
        with transaction.atomic():
            Entry.objects.create(key="kept", value="")
        with suppress(ValueError), transaction.atomic():
            Entry.objects.create(key="taken back", value="")
            raise ValueError
        with suppress(IntegrityError), transaction.atomic():
            Entry.objects.create(key="kept", value="")
        with transaction.atomic(using="other"):
            Entry.objects.using("other").create(key="elsewhere", value="")

    complete(job, during)

    assert set(Entry.objects.values_list("key", flat=True)) == {str(job.job_id), "kept"}


def test_a_deferred_constraint_fails_the_attempt_and_says_why():
    """It is that failure, whether the database speaks before COMMIT or in it."""
    job = claimed()
    before = contents()
    gate = Gate()

    with pytest.raises(IntegrityError) as caught:
        complete(
            job,
            lambda: Permission.objects.create(codename="x", name="x", content_type_id=987_654),
            gate=gate,
        )

    assert contents() == before
    assert gate.written is (connection.vendor == "sqlite"), "there alone it is COMMIT that refuses"
    assert send(report(job, InDoubt(ERROR))) == [Verdict.APPLIED]
    assert outcomes(job) == [(1, "failed")]
    assert "constraint" in str(caught.value).lower()


def test_an_error_after_the_commit_changes_nothing():
    job = claimed()
    gate = Gate()

    def later():
        raise ProgrammingError("after the commit")

    with pytest.raises(ProgrammingError):
        complete(job, lambda: transaction.on_commit(later), gate=gate)

    assert gate.written
    assert row(job).job_state is JobState.SUCCEEDED
    assert send(report(job, InDoubt(ERROR))) == [Verdict.LANDED]
    assert outcomes(job) == [(1, "succeeded")]
    assert Entry.objects.count() == 1


# A COMMIT whose reply was lost (§9.2).


def test_a_doubt_about_a_commit_that_did_not_land_is_the_failure():
    job = claimed()

    assert send(report(job, InDoubt(ERROR))) == [Verdict.APPLIED]

    assert (row(job).job_state, row(job).failures) == (JobState.READY, 1)
    assert outcomes(job) == [(1, "failed")]


def test_a_doubt_about_a_commit_that_landed_is_settled_by_the_history():
    job = claimed()
    complete(job)
    before = contents()

    assert send(report(job, InDoubt(ERROR))) == [Verdict.LANDED]

    assert contents() == before


def test_a_doubt_about_a_commit_that_was_swept_is_stale():
    job = claimed()
    expire(jitter=lambda: 0.0, using="default", now=after(LEASE))
    before = contents()

    assert send(report(job, InDoubt(ERROR)), now=after(LEASE)) == [Verdict.STALE]

    assert contents() == before


def test_a_doubt_waits_for_a_commit_that_is_still_under_way():
    needs_row_locks()
    job = claimed()

    with second_connection() as other:
        with transaction.atomic(using=other):
            list(type(row(job)).objects.using(other).filter(pk=job.job_id).select_for_update())
            assert send(report(job, InDoubt(ERROR))) == [Verdict.LOCKED]
            Attempt.objects.using(other).create(
                job_id=job.job_id,
                number=job.attempt,
                worker=WORKER,
                outcome="succeeded",
                finished_at=NOW,
            )
        assert send(report(job, InDoubt(ERROR))) == [Verdict.LANDED]
