"""`run_jobs()`: jobs run in the test's own thread and transaction, through a worker's doors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import IntegrityError, connection, connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import translation

from django_backwave import JobState, operations
from django_backwave.backend import first_of_ours
from django_backwave.compat import task_finished, task_started
from django_backwave.exceptions import ForeignTransaction, NotAtomic, NotOnce
from django_backwave.models import Attempt, Job
from django_backwave.signals import job_retrying
from django_backwave.testing import Clock, RunError, arun_jobs, enqueued_jobs, run_jobs
from tests.app.jobs import add
from tests.app.models import Entry
from tests.testing import handlers
from tests.testing.handlers import note, seen

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    seen.clear()
    return


def only(**options: Any) -> Any:
    """Run the one attempt that is due, and return it."""
    [run] = run_jobs(**{"raise_errors": False} | options)
    return run


def lasting(before: set[threading.Thread]) -> set[threading.Thread]:
    """Return the threads that are there to stay; that of an event loop ends soon after its last coroutine."""
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(timeout=10)
    return {thread for thread in new if thread.is_alive()}


def keys() -> set[str]:
    return set(Entry.objects.values_list("key", flat=True))


class TestWhatRuns:
    def test_it_returns_each_attempt_with_the_job_as_it_stood_after_it(self) -> None:
        job = add.enqueue(1, b=2)

        run = only()

        assert run.outcome == "succeeded"
        assert run.error is None
        assert run.attempt == 1
        assert run.name == "tests.app.jobs.add"
        assert run.result.id == job.id
        assert run.result.state is JobState.SUCCEEDED
        assert run.result.return_value == 3
        assert run.result.enqueued_at <= run.result.started_at <= run.result.finished_at

    def test_nothing_due_is_no_error(self) -> None:
        assert run_jobs() == []

    def test_priority_goes_before_due_time_and_that_before_the_order_of_the_enqueues(self) -> None:
        note.enqueue("first")
        note.enqueue("second")
        note.using(priority=5).enqueue("urgent")

        run_jobs()

        assert seen == ["urgent", "first", "second"]

    def test_across_queues_what_has_been_due_longest_goes_first(self) -> None:
        for queue, value in (("b", 1), ("a", 2), ("b", 3)):
            note.using(queue_name=queue).enqueue(value)

        run_jobs()

        assert seen == [1, 2, 3]

    def test_only_of_a_queue(self) -> None:
        note.using(queue_name="mail").enqueue(1)
        note.using(queue_name="feeds").enqueue(2)
        note.enqueue(3)

        assert len(run_jobs(queue="mail")) == 1
        assert len(run_jobs(queue=["feeds", "mail"])) == 1
        assert seen == [1, 2]

    def test_up_to_a_limit(self) -> None:
        for value in range(3):
            note.enqueue(value)

        assert len(run_jobs(limit=2)) == 2
        assert len(enqueued_jobs()) == 1

    def test_what_handlers_enqueue_runs_too(self) -> None:
        handlers.chain.enqueue(3)

        assert len(run_jobs()) == 4
        assert seen == [3, 2, 1, 0]

    def test_jobs_that_never_end_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_backwave.testing.loop.MOST", 5)
        handlers.forever.enqueue()

        with pytest.raises(RunError) as caught:
            run_jobs()

        assert str(caught.value) == (
            "run_jobs() has made 5 attempts, and still jobs are due; 5 of the attempts were of "
            "tests.testing.handlers.forever. A job that enqueues itself never ends, and one that snoozes for "
            "seconds takes long to come to a far `until`. If all these are wanted, say how many: "
            "run_jobs(limit=5000)."
        )
        assert len(run_jobs(limit=7)) == 7

    def test_what_is_paused_waits(self) -> None:
        note.using(queue_name="mail").enqueue(1)
        note.enqueue(2)
        add.enqueue(3)
        operations.pause(queue="mail")
        operations.pause(name="tests.testing.handlers.note")

        [run] = run_jobs()

        assert run.name == "tests.app.jobs.add"

    def test_a_plain_task_runs(self, settings: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": "django_backwave.BackWaveBackend"}}
        settings.BACKWAVE = {"MODULES": ["tests.testing.handlers"]}
        plain = handlers.plain.using(backend="default")
        plain.enqueue(1)

        assert only().result.return_value == 2

    def test_what_started_too_late_is_cancelled(self, backwave_clock: Clock) -> None:
        job = note.using(expires=60).enqueue(1)
        other = note.using(expires=60, run_after=backwave_clock.now + timedelta(days=1)).enqueue(1)
        backwave_clock.advance(minutes=2)

        assert run_jobs() == []

        job.refresh()
        assert (job.state, job.cause) == (JobState.CANCELLED, "expired")
        other.refresh()
        assert other.state is JobState.CANCELLED  # no claim would have come to it

    def test_a_cancelled_job_does_not_run(self) -> None:
        note.enqueue(1).cancel()

        assert run_jobs() == []

    def test_a_dead_workers_lease_is_swept(self, backwave_clock: Clock) -> None:
        job = note.enqueue(1)
        Job.objects.update(
            state=JobState.RUNNING, worker="host:1:a", attempt=1, lease_expires_at=backwave_clock.now
        )
        backwave_clock.advance(seconds=1)

        run = only()

        assert run.attempt == 2
        assert run.result.id == job.id
        assert Attempt.objects.get(number=1).outcome == "abandoned"

    def test_tags_progress_headers_and_numbers(self, settings: Any) -> None:
        settings.BACKWAVE = {"ON_ENQUEUE": ["tests.testing.test_running.headers"]}
        handlers.tell.enqueue(7)

        result = only().result

        assert seen == [(1, 0, {"from": "test"})]
        assert result.tags == (("value", "7"),)
        assert result.progress.message == "half"

    def test_around_surrounds(self, settings: Any) -> None:
        settings.BACKWAVE = {"AROUND": ["tests.testing.test_running.around"]}
        note.enqueue(1)

        run_jobs()

        assert seen == ["before", 1, "after"]

    def test_a_handler_finds_nothing_of_the_tests_context_but_its_caches(self) -> None:
        cache.set("key", "from the test")
        handlers.language_and_cache.enqueue()

        with translation.override("de"):
            run = only()

        assert run.result.output == ["en-us", "from the test"]

    def test_signals_come_after_the_write(self) -> None:
        told: list[tuple[str, Any]] = []

        def started(task_result: Any, **_: Any) -> None:
            told.append(("started", task_result.id))

        def finished(task_result: Any, **_: Any) -> None:
            told.append(("finished", first_of_ours().get_result(task_result.id).state))

        def retrying(job_id: Any, **_: Any) -> None:
            told.append(("retrying", str(job_id)))

        task_started.connect(started)
        task_finished.connect(finished)
        job_retrying.connect(retrying)
        try:
            good, bad = note.enqueue(1), handlers.fail.enqueue()
            run_jobs(raise_errors=False)
        finally:
            task_started.disconnect(started)
            task_finished.disconnect(finished)
            job_retrying.disconnect(retrying)

        assert told == [
            ("started", good.id),
            ("finished", JobState.SUCCEEDED),
            ("started", bad.id),
            ("retrying", bad.id),
        ]

    def test_it_is_said_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", logger="django_backwave.worker")
        note.enqueue(1)

        run_jobs()

        assert "action=attempt_ended" in caplog.text


def headers(task: Any) -> dict[str, str]:
    return {"from": "test"}


class around:  # noqa: N801 - it is used as a function
    def __init__(self, context: Any) -> None:
        pass

    def __enter__(self) -> None:
        seen.append("before")

    def __exit__(self, *error: object) -> None:
        seen.append("after")


class TestErrors:
    def test_what_a_handler_raises_is_recorded_and_raised(self) -> None:
        failing, behind = handlers.fail.enqueue("no stock"), note.enqueue(1)

        with pytest.raises(ValueError, match=r"^no stock$"):
            run_jobs()

        failing.refresh()
        assert (failing.state, failing.cause) == (JobState.READY, "ValueError: no stock")
        behind.refresh()
        assert behind.state is JobState.READY

    def test_without_raise_errors_the_outcome_says_it(self) -> None:
        handlers.fail.enqueue()
        note.enqueue(1)

        failed, succeeded = run_jobs(raise_errors=False)

        assert (failed.outcome, succeeded.outcome) == ("failed", "succeeded")
        assert isinstance(failed.error, ValueError)
        assert failed.result.errors[0].exception_class is ValueError

    def test_a_handlers_own_words_are_not_raised(self) -> None:
        for task in (handlers.give_up, handlers.retry_later, handlers.snooze):
            task.enqueue()

        given_up, retrying, snoozed = run_jobs()

        assert (given_up.outcome, given_up.result.state) == ("failed", JobState.DEAD_LETTERED)
        assert (retrying.outcome, retrying.result.state) == ("failed", JobState.READY)
        assert (snoozed.outcome, snoozed.result.state) == ("snoozed", JobState.READY)

    def test_an_interrupt_is_always_raised(self) -> None:
        handlers.interrupted.enqueue()

        with pytest.raises(KeyboardInterrupt):
            run_jobs(raise_errors=False)

    def test_an_unknown_name(self) -> None:
        job = note.enqueue(1)
        Job.objects.update(name="shop.gone")

        with pytest.raises(RunError) as caught:
            run_jobs()

        assert str(caught.value) == (
            f"No worker could run shop.gone (job {job.id}, attempt 1): no handler here is named 'shop.gone'. "
            "Workers know what `jobs` and `tasks` of the installed apps define, and the modules in "
            'BACKWAVE["MODULES"].'
        )

    def test_an_unknown_name_is_quarantined_in_the_end(self) -> None:
        note.enqueue(1)
        Job.objects.update(name="shop.gone")

        runs = run_jobs(until=timedelta(hours=5), raise_errors=False)

        assert {run.outcome for run in runs} == {"unroutable"}
        assert runs[-1].result.state is JobState.QUARANTINED

    def test_a_failure_before_the_handler(self, settings: Any) -> None:
        settings.BACKWAVE = {"AROUND": ["tests.testing.test_running.headers"]}
        note.enqueue(1)

        with pytest.raises(TypeError, match="must return a context manager"):
            run_jobs()

    def test_within_a_handler_it_is_refused(self) -> None:
        job = nested.enqueue()

        with pytest.raises(RunError) as caught:
            run_jobs()

        assert str(caught.value) == (
            "run_jobs() was called by what it runs. It runs what handlers enqueue anyway."
        )
        job.refresh()
        assert job.state is JobState.READY
        assert run_jobs() == []

    @pytest.mark.parametrize("limit", [0, -1, True, "3"])
    def test_a_limit_that_is_none(self, limit: Any) -> None:
        with pytest.raises(ValueError, match=r"limit must be a number of attempts from 1, or None, got"):
            run_jobs(limit=limit)

    def test_a_queue_that_is_none(self) -> None:
        with pytest.raises(ValueError, match=r"run_jobs\(\)"):
            run_jobs(queue="")

    def test_a_handler_that_deletes_its_row(self) -> None:
        deleting.enqueue()

        run = only()

        assert run.outcome == "stale"
        assert run.result.state is JobState.RUNNING


@handlers.job
def nested() -> None:
    """Call what runs it."""
    run_jobs()


@handlers.job
def deleting() -> None:
    """Delete all rows."""
    Job.objects.all().delete()


class _Transactions:
    """A handler meets connections as in production: in no transaction."""

    def test_it_is_in_autocommit_mode(self) -> None:
        handlers.state_of_the_connection.enqueue()

        assert only().result.output == [False, True]

    def test_a_failed_handlers_writes_stay(self) -> None:
        handlers.fail.enqueue()

        assert only().outcome == "failed"
        assert keys() == {"written 0"}

    def test_an_error_of_the_database_spoils_nothing_else(self) -> None:
        handlers.clash.enqueue()
        handlers.clash_unhandled.enqueue()
        Entry.objects.create(key="from the test", value="")

        survived, failed = run_jobs(raise_errors=False)

        assert survived.result.output == "survived"
        assert failed.outcome == "failed"
        assert keys() == {"taken", "other", "third", "from the test"}

    def test_only_a_transaction_of_its_own_is_rolled_back(self) -> None:
        handlers.roll_back.enqueue()

        assert only().outcome == "failed"
        assert keys() == {"before"}

    def test_durable_blocks_and_callbacks(self) -> None:
        handlers.durably.enqueue()

        assert only().result.output == ["at once", "within", "committed"]

    def test_transactions_by_hand(self) -> None:
        handlers.by_hand.enqueue()

        assert only().outcome == "succeeded"
        assert keys() == {"kept"}

    def test_what_a_handler_leaves_open_is_rolled_back(self, caplog: pytest.LogCaptureFixture) -> None:
        handlers.careless.enqueue()

        run = only()

        assert run.outcome == "succeeded"
        assert keys() == set()
        assert (
            "action=transaction_left_open database=default: rolled back; a handler must end what it begins"
            in caplog.text
        )

    def test_an_atomic_job(self) -> None:
        handlers.atomically.enqueue("kept")
        handlers.atomically.enqueue("lost", fails=True)

        kept, lost = run_jobs(raise_errors=False)

        assert (kept.outcome, kept.result.output) == ("succeeded", "kept")
        assert (lost.outcome, lost.result.state) == ("failed", JobState.READY)
        assert keys() == {"kept"}

    def test_a_callback_that_fails_after_the_commit(self) -> None:
        troubled_after_commit.enqueue()

        run = only()

        assert (run.outcome, run.result.state) == ("succeeded", JobState.SUCCEEDED)
        assert str(run.error) == "after the commit"
        assert keys() == {"committed"}

    def test_rows_can_be_read_in_chunks(self) -> None:
        Entry.objects.bulk_create(Entry(key=str(number), value="") for number in range(5))
        in_chunks.enqueue()

        assert only().result.output == 5

    @pytest.mark.only_on("postgres", "mysql")
    def test_a_row_lock_needs_a_transaction(self) -> None:
        locking.enqueue()

        with pytest.raises(transaction.TransactionManagementError, match="select_for_update cannot be used"):
            run_jobs()

    def test_an_atomic_block(self) -> None:
        handlers.block.enqueue()

        run = only()

        assert (run.outcome, run.result.output) == ("succeeded", 7)
        assert keys() == {"block"}

    def test_a_mark_survives_the_failure(self) -> None:
        handlers.marked.enqueue()

        failed, succeeded = run_jobs(until=timedelta(minutes=1), raise_errors=False)

        assert failed.outcome == "failed"
        assert succeeded.result.output == [False, True, "receipt"]

    def test_a_misused_mark_is_refused_as_ever(self) -> None:
        handlers.marked_in_transaction.enqueue()

        with pytest.raises(NotOnce, match="a transaction is open"):
            run_jobs()

    def test_async_handlers_write_over_the_same_connection(self) -> None:
        Entry.objects.create(key="from the test", value="")
        handlers.asynchronous.enqueue("async")

        first, second = run_jobs()

        assert first.result.output == [2, "default"]
        assert second.result.output == "async"
        assert keys() == {"from the test", "async"}

    def test_an_async_handler_fails_and_marks(self) -> None:
        handlers.asynchronous_failure.enqueue()
        handlers.asynchronously_marked.enqueue()

        failed, marked = run_jobs(raise_errors=False)

        assert str(failed.error) == "from a coroutine"
        assert marked.result.output is True

    def test_an_error_that_is_raised_leaves_nothing_behind(self) -> None:
        connection.ensure_connection()
        in_transaction = connection.in_atomic_block
        handlers.clash_unhandled.enqueue()

        with pytest.raises(IntegrityError):
            run_jobs()

        assert connection.in_atomic_block is in_transaction
        assert "close" not in vars(connection)
        assert keys() == {"taken"}

    def test_an_enqueue_within_another_databases_transaction_is_refused_as_ever(self) -> None:
        elsewhere.enqueue()

        with pytest.raises(ForeignTransaction, match="A transaction is open on 'other'"):
            run_jobs()

    def test_nothing_is_left_behind(self) -> None:
        connection.ensure_connection()
        before = {
            name: getattr(connection, name) for name in ("in_atomic_block", "autocommit", "savepoint_ids")
        }
        aliases = [each.alias for each in connections.all(initialized_only=True)]
        threads = set(threading.enumerate())
        raw = connection.connection
        for task in (handlers.marked, handlers.asynchronously_marked, handlers.block, handlers.thread):
            task.enqueue()

        runs = run_jobs(raise_errors=False)

        assert runs[-1].result.output == threading.current_thread().name
        assert lasting(threads) == set()
        assert [each.alias for each in connections.all(initialized_only=True)] == aliases
        assert connection.connection is raw
        assert {name: getattr(connection, name) for name in before} == before
        assert not {"_commit", "_rollback", "_set_autocommit", "close"} & vars(connection).keys()
        assert connection.execute_wrappers == []


@pytest.mark.django_db(databases=["default", "other"])
class TestInATransaction(_Transactions):
    def test_the_tests_own_callbacks_do_not_run(self) -> None:
        transaction.on_commit(lambda: seen.append("the test's"))
        note.enqueue(1)

        run_jobs()

        assert seen == [1]
        assert len(connection.run_on_commit) == 1

    def test_in_a_block_of_the_test(self) -> None:
        with transaction.atomic():
            handlers.durably.enqueue()
            handlers.atomically.enqueue("kept")

            assert [run.outcome for run in run_jobs()] == ["succeeded", "succeeded"]
            transaction.set_rollback(True)

        assert not Job.objects.exists()

    def test_a_broken_transaction_is_refused(self) -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(transaction.TransactionManagementError):
                run_jobs()

    @pytest.mark.only_on("postgres", "sqlite")
    def test_a_deferred_constraint_speaks_at_the_handlers_commit(self) -> None:
        orphan.enqueue()

        run = only()

        assert isinstance(run.error, IntegrityError)
        assert connection.is_usable()


@handlers.job(atomic=True)
def troubled_after_commit() -> None:
    """Commit, and fail after it."""

    def fail() -> None:
        raise ValueError("after the commit")

    Entry.objects.create(key="committed", value="")
    transaction.on_commit(fail)


@handlers.job
def in_chunks() -> int:
    """Read and write in turns."""
    count = 0
    for entry in Entry.objects.iterator(chunk_size=2):
        Entry.objects.filter(pk=entry.pk).update(value="seen")
        count += 1
    return count


@handlers.job
def locking() -> None:
    """Lock rows where nothing would hold the locks."""
    list(Entry.objects.select_for_update())


@handlers.job
def elsewhere() -> None:
    """Enqueue where the job would not share the transaction's fate."""
    with transaction.atomic(using="other"):
        note.enqueue(1)


@handlers.job
def orphan() -> None:
    """Break a foreign key, which is checked at COMMIT."""
    from django.contrib.auth.models import Permission

    with transaction.atomic():
        Permission.objects.create(name="x", codename="x", content_type_id=10**6)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
class TestInNoTransaction(_Transactions):
    pass


class ATestCase(TestCase):
    """The same for users of unittest."""

    databases = {"default", "other"}

    @classmethod
    def setUpTestData(cls) -> None:
        handlers.atomically.enqueue("for the whole class")
        run_jobs()

    def tearDown(self) -> None:
        assert "for the whole class" in keys()

    def test_it_runs_within_the_tests_transaction(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            handlers.durably.enqueue()
            handlers.atomically.enqueue("kept")
            runs = run_jobs()

        assert [run.outcome for run in runs] == ["succeeded", "succeeded"]
        assert callbacks == []
        assert connection.in_atomic_block

    def test_another_database_is_in_autocommit_mode_too(self) -> None:
        on_both.enqueue()

        assert only().result.output == [False, False]
        assert Entry.objects.using("other").count() == 1

    async def test_from_a_coroutine(self) -> None:
        await handlers.asynchronous.aenqueue("async")

        runs = await arun_jobs()

        assert [run.outcome for run in runs] == ["succeeded", "succeeded"]
        assert await Entry.objects.acount() == 2

    async def test_the_synchronous_one_is_refused_in_a_coroutine(self) -> None:
        with pytest.raises(RunError) as caught:
            run_jobs()

        assert str(caught.value) == "run_jobs() was called from a coroutine. Write: await arun_jobs()."

    @override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo")
    def test_without_time_zones(self) -> None:
        handlers.fail.enqueue()

        runs = run_jobs(until=timedelta(minutes=5), raise_errors=False)

        assert [run.result.state for run in runs][-1] is JobState.DEAD_LETTERED
        assert runs[0].result.enqueued_at.tzinfo is None


@handlers.job
def on_both() -> list[bool]:
    """Use two databases."""
    Entry.objects.using("other").create(key="there", value="")
    return [connections[alias].in_atomic_block for alias in ("default", "other")]


class ATransactionTestCase(TransactionTestCase):
    """The same where transactions are real."""

    def test_it_runs(self) -> None:
        handlers.atomically.enqueue("kept")

        assert only().outcome == "succeeded"
        assert keys() == {"kept"}

    async def test_from_a_coroutine(self) -> None:
        await handlers.asynchronous.aenqueue("async")

        assert len(await arun_jobs()) == 2


def test_an_atomic_block_within_a_transaction_is_refused_as_ever() -> None:
    in_block.enqueue()

    with pytest.raises(NotAtomic, match="has a transaction open on 'default'"):
        run_jobs()


@handlers.job(takes_context=True)
def in_block(context: Any) -> None:
    """Misuse a block."""
    with transaction.atomic(), context.atomic():
        pass


def test_the_fixtures_are_the_functions(
    run_jobs: Callable[..., Any],
    enqueued_jobs: Callable[..., Any],
    assert_enqueued: Callable[..., Any],
    assert_not_enqueued: Callable[..., Any],
    backwave_clock: Clock,
) -> None:
    note.enqueue(1)

    assert_enqueued(note, 1)
    assert len(enqueued_jobs()) == len(run_jobs()) == 1
    assert_not_enqueued(note)
