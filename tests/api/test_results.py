"""Results: a job's row and history as Django's TaskResult, and more."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync

from django_backwave import JobState
from django_backwave.compat import TaskResultDoesNotExist, TaskResultMismatch, TaskResultStatus
from django_backwave.core.outcome import ErrorInfo, Failed, Released, Snoozed, Succeeded
from django_backwave.core.protocol import CancelResult, Report
from django_backwave.exceptions import AttemptAbandoned
from django_backwave.models import Job
from django_backwave.results import STATUSES
from django_backwave.store.claim import claim
from django_backwave.store.clock import after, read
from django_backwave.store.expire import expire
from django_backwave.store.operate import requeue
from django_backwave.store.settle import settle
from tests.api import handlers

pytestmark = pytest.mark.django_db
BOOM = Failed(ErrorInfo(class_path="builtins.ValueError", message="boom", traceback="Tr: boom\n"))


class Story:
    """One job of `send_receipt` and what happens to it, on a clock that only moves when told to."""

    def __init__(self, **options) -> None:
        self.result = handlers.send_receipt.using(**options).enqueue(7)
        self.now = self.began = read("default")

    def claim(self, worker: str, *, wait: float = 1000.0):
        self.now = after(self.now, wait)
        [self.job] = claim("mail", 1, worker=worker, lease=60, using="default", now=self.now)
        self.worker = worker
        return self

    def ends(self, outcome, *, seconds: float = 1.0):
        """End the attempt, whose handler began half a second after the claim."""
        self.now = after(self.now, seconds)
        report = Report(job=self.job, outcome=outcome, jitter=0.0, started_after=0.5)
        settle([report], worker=self.worker, unroutable_grace=60, using="default", now=self.now)
        return self

    def lapses(self):
        self.now = after(self.now, 1000)
        expire(jitter=lambda: 0.0, using="default", now=self.now)
        return self

    def read(self):
        self.result.refresh()
        return self.result


def test_every_state_has_a_status():
    """Django knows four; everything that ended otherwise than well has failed."""
    assert STATUSES.keys() == set(JobState)
    finished = {TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL}
    assert {state for state in JobState if STATUSES[state] in finished} == {
        state for state in JobState if state.is_terminal
    }


def test_a_success_has_its_output_and_times():
    story = Story().claim("a").ends(Succeeded('{"sent":[1,2]}'))

    result = story.read()

    assert (result.state, result.status) == (JobState.SUCCEEDED, TaskResultStatus.SUCCESSFUL)
    assert result.output == result.return_value == {"sent": [1, 2]}
    assert result.is_finished
    assert (result.worker_ids, result.attempts, result.errors) == (["a"], 1, [])
    assert result.started_at == result.last_attempted_at == story.began + timedelta(seconds=1000.5)
    assert result.finished_at == story.now
    assert result.cause == ""


def test_a_running_job_names_its_worker():
    result = Story().claim("a").read()

    assert (result.state, result.status) == (JobState.RUNNING, TaskResultStatus.RUNNING)
    assert (result.worker_ids, result.attempts) == (["a"], 1)
    assert (result.finished_at, result.output) == (None, None)


def test_every_failed_attempt_is_an_error():
    """Attempts that were snoozed or handed back are no failures, but they had workers."""
    story = Story(max_attempts=3)
    for worker, outcome in (("a", BOOM), ("b", Snoozed(5)), ("c", Released()), ("d", BOOM)):
        story.claim(worker).ends(outcome)
    result = story.read()
    assert (result.state, result.status) == (JobState.READY, TaskResultStatus.READY)

    result = story.claim("e").ends(BOOM).read()

    assert (result.state, result.status) == (JobState.DEAD_LETTERED, TaskResultStatus.FAILED)
    assert result.worker_ids == ["a", "b", "c", "d", "e"]
    assert [error.exception_class for error in result.errors] == [ValueError] * 3
    assert {error.traceback for error in result.errors} == {"Tr: boom\n"}
    assert result.cause == "ValueError: boom"
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018


def test_first_and_last_start_are_told_apart():
    story = Story().claim("a").ends(BOOM).claim("b").ends(Succeeded("null"))

    result = story.read()

    assert result.started_at == story.began + timedelta(seconds=1000.5)
    assert result.last_attempted_at == story.began + timedelta(seconds=2001.5)


def test_an_abandoned_attempt_is_an_error_of_ours():
    result = Story().claim("a").lapses().read()

    [error] = result.errors
    assert error.exception_class is AttemptAbandoned
    assert error.traceback.endswith(".AttemptAbandoned: attempt 1 of a: its lease lapsed\n")
    assert (result.state, result.worker_ids) == (JobState.READY, ["a"])


def test_a_requeued_job_has_not_finished():
    story = Story(max_attempts=1).claim("a").ends(BOOM)
    assert story.read().state is JobState.DEAD_LETTERED

    requeue([story.job.job_id], using="default", now=story.now)

    result = story.read()
    assert (result.state, result.finished_at, result.cause) == (JobState.READY, None, "")
    assert len(result.errors) == 1


def test_a_running_job_is_asked_to_stop():
    story = Story().claim("a", wait=0)

    assert story.result.cancel() is CancelResult.ASKED_TO_STOP
    assert story.read().state is JobState.RUNNING


def test_coroutines_can_refresh_and_cancel():
    result = handlers.echo.enqueue()

    async def cancel():
        done = await result.acancel()
        await result.arefresh()
        return done

    assert async_to_sync(cancel)() is CancelResult.CANCELLED
    assert result.state is JobState.CANCELLED


def test_a_result_whose_function_is_gone_can_be_read(settings):
    """Its task stands in under the stored name, and every option of the row is there."""
    settings.TASKS = {"default": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": ["new"]}}
    result = handlers.echo.using(queue_name="new").enqueue(1)
    Job.objects.update(name="shop.old.send", queue="old")

    read = result._backend().get_result(result.id)

    assert (read.task.module_path, read.task.name) == ("shop.old.send", "send")
    assert (read.task.job_name, read.task.queue_name) == ("shop.old.send", "old")
    assert read.args == [1]
    with pytest.raises(LookupError, match=r"No function here serves the job name 'shop\.old\.send'"):
        read.task.call()
    with pytest.raises(TaskResultMismatch):
        handlers.echo.get_result(result.id)
    assert read.cancel() is CancelResult.CANCELLED
    read.refresh()
    assert read.state is JobState.CANCELLED


def test_a_queue_that_left_the_settings_leaves_results_readable(settings):
    result = handlers.send_receipt.enqueue(7)
    settings.TASKS = {"default": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": ["new"]}}

    read = handlers.send_receipt.get_result(result.id)

    assert (read.task.queue_name, read.backend) == ("mail", "default")


def test_a_former_name_leads_to_the_function():
    result = handlers.send_receipt.enqueue(7)
    Job.objects.update(name="shop.send_receipt")

    assert handlers.send_receipt.get_result(result.id).task.func is handlers.send_receipt.func


def test_an_unknown_name_starts_discovery_and_survives_its_failure(settings, caplog):
    """Reading what happened must not depend on every module of today."""
    result = handlers.echo.enqueue()
    Job.objects.update(name="gone")
    settings.BACKWAVE = {"MODULES": ["nowhere.jobs"]}

    result.refresh()

    assert "No module named 'nowhere'" in caplog.text
    assert result.state is JobState.READY


def test_a_pruned_job_has_no_result():
    result = handlers.echo.enqueue()
    Job.objects.all().delete()

    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    with pytest.raises(TaskResultDoesNotExist):
        result.cancel()


def test_results_survive_pickling():
    result = Story(priority=3).claim("a").ends(Succeeded("[1]")).read()

    again = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own bytes

    assert again == result
    assert (again.state, again.output, again.task.priority) == (JobState.SUCCEEDED, [1], 3)


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_follow_djangos_custom(settings, use_tz):
    """Aware under USE_TZ, else naive in TIME_ZONE; the same from a claim, a row and an enqueue."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Karachi"
    story = Story()
    enqueued_at = story.result.enqueued_at

    result = story.claim("a", wait=0).ends(Succeeded("null")).read()

    assert (enqueued_at.tzinfo is None) is (result.finished_at.tzinfo is None) is not use_tz
    assert abs(result.enqueued_at - enqueued_at) < timedelta(seconds=1)
    assert timedelta(0) < result.finished_at - enqueued_at < timedelta(minutes=1)
