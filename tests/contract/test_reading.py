"""Results read again: what Django's documentation says of `get_result`, and our states in Django's words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import async_to_sync

from django_backwave import CancelResult, JobState
from django_backwave.compat import TaskResultDoesNotExist, TaskResultMismatch, TaskResultStatus
from django_backwave.core.outcome import (
    TIMED_OUT_CLASS,
    ErrorInfo,
    Failed,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
    Unroutable,
)
from django_backwave.core.protocol import Report, RequeueResult
from django_backwave.exceptions import AttemptAbandoned
from django_backwave.exceptions import TimedOut as TimedOutError
from django_backwave.models import Job
from django_backwave.store import operate
from django_backwave.store.claim import claim
from django_backwave.store.clock import after, read
from django_backwave.store.expire import expire
from django_backwave.store.settle import settle

keeps = pytest.mark.parametrize("backend", ["dummy", "ours"], indirect=True)
BOOM = Failed(ErrorInfo(class_path="builtins.OSError", message="no network", traceback="Traceback: …\n"))
LATE = TimedOut(ErrorInfo(class_path=TIMED_OUT_CLASS, message="5 s", traceback="Traceback: …\n"))
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


class Life:
    """One job and what happens to it, on a clock that moves by 1000 seconds a step."""

    def __init__(self, task, **options):
        self.result = task.using(**options).enqueue(1)
        self.now = read("default")

    def claimed(self, worker):
        self.worker, self.now = worker, after(self.now, 1000)
        [self.job] = claim("default", 1, worker=worker, lease=60, using="default", now=self.now)

    def ends(self, outcome, worker="a"):
        self.claimed(worker)
        report = Report(job=self.job, outcome=outcome, jitter=0.0, started_after=0.5)
        settle([report], worker=worker, unroutable_grace=1500, using="default", now=after(self.now, 1))

    def lapses(self, worker="a"):
        self.claimed(worker)
        self.now = after(self.now, 1000)
        expire(jitter=lambda: 0.0, using="default", now=self.now)


@pytest.fixture
def life(ours, define):
    """Return a function that enqueues a job with these options."""
    task = define("add")
    return lambda **options: Life(task, **options)


@keeps
@pytest.mark.parametrize("twin", ["sync", "async"])
def test_a_result_can_be_read_by_its_id(backend, define, twin):
    add = define("add")
    result = add.enqueue(1, b=2)
    ways = [add.get_result, backend.get_result]
    if twin == "async":
        ways = [async_to_sync(add.aget_result), async_to_sync(backend.aget_result)]

    for again in [way(result.id) for way in ways]:
        assert (again.id, again.args, again.kwargs) == (result.id, [1], {"b": 2})
        assert (again.status, again.task, again.backend) == (READY, add, "default")


@keeps
@pytest.mark.parametrize("result_id", ["", "123", "0" * 32, "no id", "\0", "x" * 500])
def test_an_id_that_is_none_has_no_result(backend, define, result_id):
    add = define("add")

    for read_it in (add.get_result, async_to_sync(add.aget_result), backend.get_result):
        with pytest.raises(TaskResultDoesNotExist):
            read_it(result_id)


@keeps
def test_the_result_of_another_task_is_a_mismatch(backend, define):
    result, other = define("add").enqueue(1), define("give")

    with pytest.raises(TaskResultMismatch):
        other.get_result(result.id)
    with pytest.raises(TaskResultMismatch):
        async_to_sync(other.aget_result)(result.id)


@keeps
@pytest.mark.parametrize("twin", ["sync", "async"])
def test_a_result_can_be_refreshed(backend, define, twin):
    result = define("add").enqueue(1)

    (result.refresh if twin == "sync" else async_to_sync(result.arefresh))()

    assert (result.status, result.attempts, result.is_finished) == (READY, 0, False)


def test_a_result_lives_as_long_as_its_row(ours, define):
    result = define("add").enqueue(1)
    Job.objects.all().delete()

    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(result.arefresh)()


@pytest.mark.parametrize(
    ("state", "status", "returned"),
    [
        (JobState.WAITING, READY, "has not finished yet"),
        (JobState.READY, READY, "has not finished yet"),
        (JobState.RUNNING, RUNNING, "has not finished yet"),
        (JobState.SUCCEEDED, SUCCESSFUL, None),
        (JobState.CANCELLED, FAILED, "Task failed"),
        (JobState.DEAD_LETTERED, FAILED, "Task failed"),
        (JobState.QUARANTINED, FAILED, "Task failed"),
    ],
)
def test_every_state_has_its_status(life, state, status, returned):
    one = life(max_attempts=1)
    if state is JobState.WAITING:  # which nothing leads to yet
        Job.objects.update(state=state)
    elif state is JobState.RUNNING:
        one.claimed("a")
    elif state is JobState.SUCCEEDED:
        one.ends(Succeeded("[3]"))
    elif state is JobState.CANCELLED:
        one.result.cancel()
    elif state is JobState.DEAD_LETTERED:
        one.ends(BOOM)
    elif state is JobState.QUARANTINED:
        one.ends(Unroutable("no handler"))
        one.now = after(one.now, 2000)
        one.ends(Unroutable("no handler"))

    one.result.refresh()

    assert (one.result.state, one.result.status) == (state, status)
    assert one.result.is_finished is state.is_terminal
    if returned is None:
        assert one.result.return_value == [3]
    else:
        with pytest.raises(ValueError, match=returned):
            one.result.return_value  # noqa: B018


def test_every_failed_attempt_is_an_error_and_every_attempt_has_its_worker(life):
    """Attempts that were snoozed or handed back after their start had workers, but no errors."""
    one = life(max_attempts=4)
    one.ends(BOOM, "a")
    one.lapses("b")
    one.ends(Snoozed(5), "c")
    one.ends(Released(), "d")
    one.ends(LATE, "e")
    one.claimed("f")

    one.result.refresh()

    assert one.result.worker_ids == ["a", "b", "c", "d", "e", "f"]
    assert (one.result.attempts, one.result.status) == (6, RUNNING)
    classes = [error.exception_class for error in one.result.errors]
    assert classes == [OSError, AttemptAbandoned, TimedOutError]
    assert all(error.traceback for error in one.result.errors)


def test_first_and_last_start_and_end(life):
    one = life()
    began = one.now
    one.ends(BOOM)
    one.ends(Succeeded("null"))

    one.result.refresh()

    assert one.result.started_at == began + timedelta(seconds=1000.5)
    assert one.result.last_attempted_at == began + timedelta(seconds=2000.5)
    assert one.result.finished_at == began + timedelta(seconds=2001)


def test_results_outlive_their_function_and_their_queue(ours, define, settings):
    kept = define("add", queue_name="old").enqueue(1)
    gone = define("give").enqueue(2)
    Job.objects.filter(pk=gone.id).update(name="shop.jobs.removed")
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["new"]}}

    read_kept, read_gone = (kept._backend().get_result(one.id) for one in (kept, gone))

    assert (read_kept.task.queue_name, read_kept.task.func) == ("old", kept.task.func)
    assert (read_gone.task.module_path, read_gone.args) == ("shop.jobs.removed", [2])


def test_order_is_priority_then_due_time_then_enqueue(ours, define):
    """A job without `run_after` is due when it was enqueued, and no deferred one overtakes it."""
    add = define("add")
    past = datetime(2020, 1, 1, tzinfo=UTC)
    names = {}
    for name, options in {
        "third": {},
        "fourth": {},
        "second": {"run_after": past},
        "first": {"priority": 1},
        "fifth": {"priority": -1, "run_after": past},
        "never": {"priority": 100, "run_after": datetime(2100, 1, 1, tzinfo=UTC)},
    }.items():
        names[add.using(**options).enqueue(1).id] = name

    jobs = [one for _ in names for one in claim("default", 1, worker="a", lease=60, using="default")]

    assert [names[str(job.job_id)] for job in jobs] == ["first", "second", "third", "fourth", "fifth"]


def test_what_is_ours_alone_has_twins_too(ours, define):
    add = define("add")

    async def through() -> list[object]:
        one, other = await ours.aenqueue_many(add, [((1,), {}), ((2,), {})])
        done = [await ours.acancel(one.id), await other.acancel(), await ours.arequeue(one.id)]
        done.append(await other.arequeue())
        await one.arefresh()
        return [*done, one.status]

    assert async_to_sync(through)() == [
        CancelResult.CANCELLED,
        CancelResult.CANCELLED,
        RequeueResult.REQUEUED,
        RequeueResult.REQUEUED,
        READY,
    ]


def test_what_was_sent_back_has_not_finished(life):
    one = life(max_attempts=1)
    one.ends(BOOM)

    operate.requeue([one.job.job_id], using="default", now=one.now)
    one.result.refresh()

    assert (one.result.status, one.result.finished_at, len(one.result.errors)) == (READY, None, 1)
