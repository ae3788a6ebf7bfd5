"""The doctor: silent over whatever the store's own doors do, and exact about each row broken by hand."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext

from django_backwave.core.outcome import Cancelled, Failed, Released, Snoozed, TimedOut, Unroutable
from django_backwave.core.states import TERMINAL, AttemptOutcome, JobState
from django_backwave.models import Attempt, Job, Key, Operation, Pause, Worker
from django_backwave.store import clock
from django_backwave.store.adjust import reschedule, run_now
from django_backwave.store.claim import claim
from django_backwave.store.doctor import Limits, Severity, examine, rows, schema
from django_backwave.store.expire import expire, expire_waiting
from django_backwave.store.heartbeat import announce, renew
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.pause import pause
from django_backwave.store.release import release_unknown
from django_backwave.store.retention import KEPT_ATTEMPTS
from tests.factories import (
    ERROR,
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
    lapsed,
    new_job,
    ready,
    reclaimed,
    report,
    row,
    second_connection,
    send,
)
from tests.processes import wait_until
from tests.store.races import fresh_transactions

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[2]
NAME = new_job().name
TABLE = Job._meta.db_table


def found(*, now=NOW, known=(NAME,), **limits):
    """Return what the doctor finds wrong: check → (severity, text)."""
    results = examine(known=known, limits=Limits(**limits), using="default", now=now)
    return {
        result.check: (result.severity, result.text)
        for result in results
        if result.severity in (Severity.WARNING, Severity.ERROR)
    }


def broken(job, **columns):
    """Write columns of a job's row by hand, past the constraint of the database if need be."""
    with unconstrained():
        Job.objects.filter(pk=job.job_id if hasattr(job, "job_id") else job.pk).update(**columns)


class unconstrained:  # noqa: N801 - it reads as what it says
    """A database that takes a RUNNING row without a lease; on PostgreSQL until the test's rollback."""

    SWITCH = {
        "sqlite": ("PRAGMA ignore_check_constraints = 1", "PRAGMA ignore_check_constraints = 0"),
        "mysql": ("SET check_constraint_checks = 0", "SET check_constraint_checks = 1"),
        "postgresql": (
            f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS backwave_running_has_lease",
            f"ALTER TABLE {TABLE} ADD CONSTRAINT backwave_running_has_lease CHECK (true)",
        ),
    }

    def __enter__(self):
        self._run(0)

    def __exit__(self, *_):
        self._run(1)

    def _run(self, number):
        with connection.cursor() as cursor:
            cursor.execute(self.SWITCH[connection.vendor][number])


def done(job, outcome=SUCCEEDED, now=NOW):
    """Settle a claimed job, and return its row."""
    send(report(job, outcome), now=now)
    return row(job)


# Silence.


def test_an_empty_database_is_healthy():
    assert found() == {}


def test_every_check_answers_in_a_fixed_order():
    checks = [result.check for result in examine(known=[], using="default", now=NOW)]

    assert checks == [
        "migrations",
        "schema",
        "unreadable-rows",
        "lapsed-leases",
        "running-without-lease",
        "lease-without-running",
        "finish-times",
        "forgotten-cancels",
        "failures",
        "attempt-numbers",
        "outcomes",
        "late-jobs",
        "unserved-queues",
        "unknown-names",
        "pauses",
        "silent-workers",
        "dead-rows",
        "open-transactions",
        "clock",
    ]


def test_every_check_is_described():
    page = (ROOT / "docs" / "operating.md").read_text()
    checks = [result.check for result in examine(known=[], using="default", now=NOW)]

    assert re.findall(r"^\| `([a-z-]+)` \| (?:error|warning) \|", page, re.MULTILINE) == checks


@pytest.mark.parametrize("seed", range(6))
def test_no_sequence_of_the_stores_own_doors_is_ever_reported(seed):
    """It never cries wolf: failures kept and reset, hand-backs, cancels of what fails, long histories."""
    chance = random.Random(seed)
    day, seen = _Day(chance), set()
    for step in range(300):
        day.step()
        if step % 30 == 29:
            told = found(now=day.now, unserved=1e9, due_age=1e9, unswept=1e9)
            assert told == {}, f"seed {seed}, step {step}"
            seen |= {JobState(state) for state in Job.objects.values_list("state", flat=True)}

    assert seen == {*JobState} - {JobState.WAITING, JobState.QUARANTINED}


class _Day:
    """Random operations through the store's doors, on a virtual clock."""

    QUEUES = ("mail", "reports")

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = NOW
        self.running = []
        self.doors = [self.enqueue, self.claim, self.settle, self.cancel, self.requeue, self.odd]

    def step(self) -> None:
        self.now = clock.after(self.now, self.chance.choice((0.5, 2, 20)))
        self.chance.choices(self.doors, weights=(3, 6, 6, 1, 2, 2))[0]()

    def jobs(self, *states) -> list:
        ids = list(Job.objects.filter(state__in=states).order_by("pk").values_list("pk", flat=True))
        return self.chance.sample(ids, min(len(ids), 2))

    def enqueue(self) -> None:
        ready(
            now=self.now,
            queue=self.chance.choice(self.QUEUES),
            max_attempts=self.chance.choice((1, 2, 5)),
            expires=self.chance.choice((None, None, 30.0)),
        )

    def claim(self) -> None:
        worker = self.chance.choice((WORKER, STRANGER))
        queue = self.chance.choice(self.QUEUES)
        jobs = claim(queue, 3, worker=worker, lease=LEASE, using="default", now=self.now)
        self.running += [(worker, job) for job in jobs if self.chance.random() < 0.8]

    def settle(self) -> None:
        if not self.running:
            return
        worker, job = self.running.pop(self.chance.randrange(len(self.running)))
        outcome = self.chance.choice(
            (SUCCEEDED, SUCCEEDED, FAILED, FAILED, Failed(ERROR, final=True), TimedOut(ERROR), Cancelled(),
             Released(), Snoozed(5), Unroutable("no such name"))
        )  # fmt: skip
        if self.chance.random() < 0.1:
            self.running.append((worker, job))  # it will be reported twice
        send(report(job, outcome, started_after=self.chance.choice((None, 0.5))), worker=worker, now=self.now)

    def cancel(self) -> None:
        cancel(self.jobs(*JobState), using="default", now=self.now)

    def requeue(self) -> None:
        reset = self.chance.random() < 0.5
        requeue(self.jobs(*TERMINAL), reset_failures=reset, using="default", now=self.now)

    def odd(self) -> None:
        self.chance.choice((self.sweep, self.hand_back, self.renew, self.move, self.atomic))()

    def sweep(self) -> None:
        expire(jitter=self.chance.random, using="default", now=self.now)
        expire_waiting(using="default", now=self.now)

    def hand_back(self) -> None:
        known = {job.key for worker, job in self.running if worker == WORKER}
        release_unknown(known, worker=WORKER, using="default", now=self.now)

    def renew(self) -> None:
        held = {job.key: None for worker, job in self.running if worker == WORKER}
        renew(held, worker=WORKER, lease=LEASE, using="default", now=self.now)

    def move(self) -> None:
        reschedule(self.jobs(JobState.READY), self.now, using="default", now=self.now)
        run_now(self.jobs(JobState.READY), using="default", now=self.now)

    def atomic(self) -> None:
        """Run the same writes as an atomic completion, inside the test's own transaction."""
        if self.running:
            worker, job = self.running.pop()
            send(report(job, SUCCEEDED, sent_before=True), worker=worker, now=self.now)


def test_a_history_of_which_the_oldest_were_dropped_is_no_finding():
    """The dropped ones may all have been failures."""
    job = claimed(max_attempts=10_000)
    for _ in range(KEPT_ATTEMPTS + 2):
        send(report(job, Failed(ERROR, delay=1)), now=NOW)
        Job.objects.update(due_at=NOW)
        job = reclaimed(job)
    done(job)

    assert (len(attempts(job)), row(job).failures) == (KEPT_ATTEMPTS, KEPT_ATTEMPTS + 2)
    assert found() == {}
    broken(job, failures=KEPT_ATTEMPTS + 4)
    assert list(found()) == ["failures"]


def test_a_row_that_moves_on_between_two_reads_is_no_finding(monkeypatch):
    """A history is believed only if its row is the same afterwards: no snapshot is held."""
    job = claimed()
    real = rows._histories

    def settled_meanwhile(job_ids, using):
        done(job)
        return real(job_ids, using)

    monkeypatch.setattr(rows, "_histories", settled_meanwhile)

    assert found() == {}


def test_an_examination_writes_nothing():
    for state in (JobState.READY, JobState.SUCCEEDED):
        ready(state=state)
    before = contents()

    with CaptureQueriesContext(connection) as sent:
        found()

    assert contents() == before
    verbs = {query["sql"].split()[0].upper() for query in sent}
    assert verbs <= {"SELECT", "WITH", "SHOW", "PRAGMA", "SAVEPOINT", "RELEASE"}


# Rows broken by hand.

ENDED = {"finished_at": NOW}


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"lease_expires_at": None}, "running-without-lease"),
        ({"worker": ""}, "running-without-lease"),
        ({"attempt": 0}, "running-without-lease"),
        ({"finished_at": NOW}, "finish-times"),
    ],
    ids=str,
)
def test_a_running_row_that_is_broken(columns, check):
    job = claimed()
    broken(job, **columns)

    [(name, (severity, text))] = found().items()

    assert (name, severity) == (check, Severity.ERROR)
    assert text.startswith("1 job ")
    assert text.endswith(f": {job.job_id}.")


@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"lease_expires_at": NOW}, "lease-without-running"),
        ({"worker": WORKER}, "lease-without-running"),
        ({"finished_at": NOW}, "finish-times"),
        ({"cancel_requested_at": NOW}, "forgotten-cancels"),
        ({"failures": 1}, "failures"),
    ],
    ids=str,
)
def test_a_ready_row_that_is_broken(columns, check):
    broken(job := ready(), **columns)

    assert list(found()) == [check]
    assert str(job.pk) in found()[check][1]


@pytest.mark.parametrize("state", sorted(TERMINAL), ids=str)
def test_a_finished_row_without_its_time(state):
    """Found wherever it lies: there is an index on it."""
    job = done(claimed())
    Attempt.objects.update(outcome=AttemptOutcome.FAILED if state is JobState.DEAD_LETTERED else "succeeded")
    if state in (JobState.CANCELLED, JobState.QUARANTINED):
        Attempt.objects.all().delete()
    broken(job, state=state.value, finished_at=None)

    assert list(found(rows=1)) == ["finish-times"]


def test_failures_that_no_attempt_has_had():
    job = done(claimed(), FAILED)
    assert found() == {}
    broken(job, failures=2)

    assert found() == {
        "failures": (
            Severity.ERROR,
            f"1 job with more failures than their history can have had: {job.pk}.",
        )
    }


def test_a_hand_back_and_a_snooze_are_no_failures():
    job = done(claimed(), Snoozed(1))
    broken(job, failures=1)

    assert list(found()) == ["failures"]


def test_an_attempt_that_has_not_begun():
    job = done(claimed(), FAILED)
    broken(job, attempt=0)

    assert list(found()) == ["attempt-numbers"]


def test_a_running_attempt_with_an_outcome():
    job = claimed()
    Attempt.objects.create(job_id=job.job_id, number=1, worker=WORKER, finished_at=NOW, outcome="released")

    assert list(found()) == ["outcomes"]


@pytest.mark.parametrize(
    ("outcome", "columns"),
    [
        (SUCCEEDED, {"state": JobState.READY, "finished_at": None}),
        (SUCCEEDED, {"state": JobState.CANCELLED}),
        (SUCCEEDED, {"state": JobState.DEAD_LETTERED}),
        (FAILED, {"state": JobState.SUCCEEDED, **ENDED}),
        (Snoozed(1), {"state": JobState.DEAD_LETTERED, **ENDED}),
    ],
    ids=str,
)
def test_a_state_that_the_history_contradicts(outcome, columns):
    broken(done(claimed(), outcome), **columns)

    assert list(found()) == ["outcomes"]


def test_a_success_whose_history_was_deleted():
    done(claimed())
    Attempt.objects.all().delete()

    assert list(found()) == ["outcomes"]


def test_many_rows_are_counted_and_three_are_named():
    for _ in range(5):
        broken(ready(), worker=WORKER)

    [(_, text)] = found().values()

    assert text.startswith("5 jobs with a lease or a worker although not running: ")
    assert text.endswith(" and 2 more.")


# Leases, queues, names, pauses, workers.


def test_leases_that_nobody_sweeps():
    for _ in range(3):
        lapsed()
    assert found(now=after(60)) != {}

    assert list(found(now=after(59))) == []
    [(check, (severity, text))] = found(now=after(61), rows=2).items()
    assert (check, severity) == ("lapsed-leases", Severity.WARNING)
    assert text.startswith("at least 2 leases over for more than 60 s, and not swept: ")


def test_late_jobs_are_told_of_each_queue():
    ready(queue="mail", now=after(-7000))
    ready(queue="mail", now=after(-10))
    ready(queue="reports", now=after(-10))
    serve(None)

    assert found() == {
        "late-jobs": (
            Severity.WARNING,
            "1 queue with a job due for more than 3600 s: mail; the oldest for 7,000 s in mail.",
        )
    }
    assert found(due_age=8000) == {}


def test_queues_that_nobody_serves():
    ready(queue="mail", now=after(-61))
    ready(queue="reports", now=after(-61))
    ready(queue="later", now=after(-59))
    serve(["reports"])

    assert found() == {
        "unserved-queues": (Severity.WARNING, "1 queue with due jobs and no live worker: mail.")
    }
    serve(None)
    assert found() == {}


def test_what_is_paused_is_neither_late_nor_unserved():
    ready(queue="mail", now=after(-7000))
    ready(queue="reports", name="old", now=after(-7000))
    pause(Pause.Kind.QUEUE, "mail", using="default", now=NOW)
    pause(Pause.Kind.NAME, "old", using="default", now=NOW)

    assert found(known=["old", NAME]) == {}


def test_names_that_nobody_knows_are_counted():
    for _ in range(2):
        ready(name="shop.gone")
    ready(name="shop.other")
    ready()
    serve(None, names=["shop.other"])

    [(check, (severity, text))] = found().items()

    assert (check, severity) == ("unknown-names", Severity.WARNING)
    assert text == (
        "1 job name that neither this code nor a live worker defines, in 2 of 4 jobs looked at:"
        " shop.gone (2)."
    )


def test_names_of_code_that_cannot_be_imported_are_not_available():
    results = {result.check: result for result in examine(known=None, using="default", now=NOW)}

    assert results["unknown-names"].severity is Severity.UNAVAILABLE
    assert "cannot be imported" in results["unknown-names"].text


def test_a_pause_that_may_have_been_forgotten():
    pause(Pause.Kind.QUEUE, "mail", using="default", now=after(-3600))
    pause(Pause.Kind.NAME, "shop.old", using="default", now=after(-3599))

    assert found() == {
        "pauses": (Severity.WARNING, "1 pause of more than 3600 s: queue mail since 2026-03-01 11:00 UTC.")
    }


def test_workers_that_say_nothing_any_more():
    serve(None, now=after(-30))
    assert list(found()) == ["silent-workers"]
    assert found()["silent-workers"][1] == "1 worker not heard of for more than 30 s: host:1:a."

    for seconds in (29, 3601):
        Worker.objects.update(seen_at=after(-seconds))
        assert found() == {}


def serve(queues, *, names=(NAME,), now=NOW):
    """Let a live worker serve these queues."""
    announce(
        name=WORKER, host="host", pid=1, started_at=NOW, queues=queues, names=list(names), concurrency=1,
        version="1", using="default", now=now,
    )  # fmt: skip


# Schema.


def test_a_migration_that_is_not_applied():
    applied = MigrationRecorder(connection).migration_qs.filter(app="django_backwave")
    last = applied.order_by("name").last()
    last.delete()

    assert found() == {"migrations": (Severity.ERROR, f"1 migration not applied: {last.name}.")}


def test_every_table_is_looked_at():
    models = apps.get_app_config("django_backwave").get_models()

    assert set(schema.MODELS) == {model for model in models if not model._meta.proxy}


@committing
@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Job, "backwave_finished"),
        (Key, "backwave_key_forget"),
        (Operation, "backwave_operation_deadline"),
    ],
)
def test_an_index_that_is_not_there(model, name):
    """Committed, for MariaDB has no DDL that rolls back."""
    index = next(index for index in model._meta.indexes if index.name == name)
    with connection.schema_editor() as editor:
        editor.remove_index(model, index)
    try:
        assert found() == {
            "schema": (
                Severity.ERROR,
                f"1 index or constraint missing or not valid: {name}.",
            )
        }
    finally:
        with connection.schema_editor() as editor:
            editor.add_index(model, index)
    assert found() == {}


@pytest.mark.only_on("postgres")
def test_a_constraint_that_was_never_validated():
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT mine CHECK (priority > -1000) NOT VALID")

    assert found() == {"schema": (Severity.ERROR, "1 index or constraint missing or not valid: mine.")}


# The server.


def answers(**limits):
    results = examine(known=[], limits=Limits(**limits), using="default")
    return {result.check: result for result in results}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("check", ["dead-rows", "open-transactions", "clock"])
def test_what_sqlite_cannot_tell_is_said_by_name(check):
    assert answers()[check].severity is Severity.UNAVAILABLE
    assert "SQLite" in answers()[check].text


@committing
@pytest.mark.only_on("postgres", "mysql")
def test_a_transaction_that_stays_open():
    assert answers()["open-transactions"].severity is Severity.OK
    with second_connection() as other, transaction.atomic(using=other):
        with connections[other].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM django_backwave_job")

        def told():
            with fresh_transactions():
                result = answers(transaction_age=0.0)["open-transactions"]
            return result if result.severity is Severity.WARNING else None

        warning = wait_until(told)  # its age counts from a whole second on

    assert warning.text.startswith("A transaction has been open for ")


@committing
@pytest.mark.only_on("postgres")
@pytest.mark.usefixtures("no_vacuum")
def test_a_table_full_of_dead_rows():
    job = ready()
    for number in range(20):
        Job.objects.filter(pk=job.pk).update(priority=number)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")

    told = answers(dead_rows=10)["dead-rows"]

    assert told.severity is Severity.WARNING
    assert "of the jobs' table are dead rows" in told.text
    assert answers()["dead-rows"].severity is Severity.OK


@pytest.mark.only_on("mysql")
def test_a_long_history_list():
    assert answers()["dead-rows"].severity is Severity.OK
    assert "InnoDB's history list is" in answers(history_length=-1)["dead-rows"].text


@pytest.mark.only_on("postgres", "mysql")
def test_clocks_that_differ(monkeypatch):
    assert answers()["clock"].severity is Severity.OK
    monkeypatch.setattr(clock, "_local", lambda: datetime(2020, 1, 1, tzinfo=UTC))

    assert answers()["clock"].severity is Severity.WARNING
    assert "behind the database's" in answers()["clock"].text


# Bounds.

SLOW = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
    "mysql": "SELECT count(*) FROM information_schema.columns a, information_schema.columns b,"
    " information_schema.columns c",
}


@committing
def test_a_statement_that_takes_too_long_is_ended_and_told(monkeypatch):
    """The other checks answer all the same, and the bounds are gone afterwards."""

    def slow(*_, **__):
        with connection.cursor() as cursor:
            cursor.execute(SLOW[connection.vendor])
        return iter(())

    monkeypatch.setattr(rows, "check_lapsed", slow)
    told = answers(timeout=1.0)

    assert told["lapsed-leases"].severity is Severity.WARNING
    assert told["lapsed-leases"].text.startswith("could not be made: ")
    assert "--timeout" in told["lapsed-leases"].remedy
    assert told["outcomes"].severity is Severity.OK
    assert ready().pk


@committing
@pytest.mark.only_on("postgres")
def test_on_postgres_the_transaction_is_read_only(monkeypatch):
    def write(*_, **__):
        ready()
        return iter(())

    monkeypatch.setattr(rows, "check_lapsed", write)

    assert "read-only" in answers()["lapsed-leases"].text
    assert not connection.in_atomic_block
    assert Job.objects.count() == 0


@committing
def test_no_lock_is_held_while_it_looks(monkeypatch):
    """SQLite has one writer, and it must not be the doctor."""
    job, written = ready(), []

    def write_elsewhere(*_, **__):
        with second_connection() as other:
            written.append(Job.objects.using(other).filter(pk=job.pk).update(priority=5))
        return iter(())

    monkeypatch.setattr(rows, "check_lapsed", write_elsewhere)
    answers()

    assert written == [1]


def test_only_so_many_rows_of_each_state_are_read():
    for _ in range(5):
        ready()
        done(claimed())
        claimed()
    limits = Limits(rows=2)
    with CaptureQueriesContext(connection) as few:
        found(rows=2)
    with CaptureQueriesContext(connection) as many:
        found(rows=1000)

    assert len(few) == len(many)
    assert len(rows.running_rows(limits, using="default")) == 2
    assert len(rows.ready_rows(limits, using="default")) == 2
    assert len(rows.finished_rows(JobState.SUCCEEDED, limits, using="default")) == 2
