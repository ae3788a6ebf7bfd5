"""Signals: what is sent after which write, in which context, and that nobody who listens can do harm."""

from __future__ import annotations

import contextvars
import gc
import logging
import queue
import sys
import threading
import weakref

import pytest
from django.core.cache import caches
from django.db import transaction
from django.utils.log import RequireDebugTrue

from django_backwave import BackWaveBackend, JobState, Snooze, registry
from django_backwave.compat import TaskResultStatus, task_finished, task_started, tasks_logger
from django_backwave.context import StopSwitch
from django_backwave.core.protocol import Verdict
from django_backwave.jobs import BackWaveTask
from django_backwave.signals import job_abandoned, job_retrying, job_stale
from django_backwave.store.expire import expire
from django_backwave.worker import notifier as notifier_module
from django_backwave.worker import signalling
from django_backwave.worker.execution import Execution
from django_backwave.worker.notifier import Notifier
from tests.app.models import Entry
from tests.core.bench import claimed
from tests.factories import NOW, WORKER, lapsed, row
from tests.processes import PATIENCE

NAME = "shop.send_receipt"
SIGNALS = {
    "started": task_started,
    "finished": task_finished,
    "retrying": job_retrying,
    "abandoned": job_abandoned,
    "stale": job_stale,
}
SETTING = contextvars.ContextVar("SETTING", default="nobody's")


@pytest.fixture
def heard():
    """Collect all signals, as (name, sender, arguments), while a test runs."""
    heard = []
    receivers = []
    for name, signal in SIGNALS.items():

        def receive(sender, signal, key=name, **given):
            heard.append((key, sender, given | {"exc": sys.exc_info()[1], "setting": SETTING.get()}))

        receivers.append(receive)
        signal.connect(receive)
    yield heard
    for signal, receiver in zip(SIGNALS.values(), receivers, strict=True):
        signal.disconnect(receiver)


@pytest.fixture
def notifier():
    """Run a notifier; ``said()`` waits until it has told everything."""
    notifier = Notifier()
    notifier.start()
    notifier.said = lambda: (notifier.stop(5.0), notifier.thread.is_alive())[1] is False
    yield notifier
    notifier.stop(5.0)


@pytest.fixture
def run(monkeypatch, notifier):
    """Return a function that runs a handler, settles it with a verdict, and waits for the notifier."""

    def run(handler, verdict=Verdict.APPLIED, **changes):
        task = BackWaveTask.unchecked(func=handler, job_name=NAME)
        monkeypatch.setattr(registry, "resolve", {NAME: task}.get)
        job = claimed(name=NAME, **changes)
        switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
        execution = Execution(
            job, "host:1:a", switch, claimed_at=0.0, using="default", completed=bool, began=notifier.began
        )
        contextvars.copy_context().run(execution.run)
        notifier.settled([(execution, verdict)], grace=0.0)
        assert notifier.said()
        return execution

    return run


def names(heard):
    return [name for name, _, _ in heard]


def fine():
    SETTING.set("the handler's")
    return {"receipt": "R-1"}


def failing():
    SETTING.set("the handler's")
    raise ValueError("no stock")


def test_a_success(run, heard):
    run(fine)

    (started, sender, before), (finished, _, after_) = heard
    assert (started, finished, sender) == ("started", "finished", BackWaveBackend)
    assert before["task_result"].status is TaskResultStatus.RUNNING
    assert before["task_result"].worker_ids == ["host:1:a"]
    result = after_["task_result"]
    assert (result.status, result.state) == (TaskResultStatus.SUCCESSFUL, JobState.SUCCEEDED)
    assert (result.return_value, result.errors) == ({"receipt": "R-1"}, [])
    assert result.worker_ids == ["host:1:a"]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert (before["setting"], after_["setting"]) == ("nobody's", "the handler's")
    assert (before["exc"], after_["exc"]) == (None, None)


def test_a_last_failure_is_told_within_its_exception(run, heard):
    run(failing, max_attempts=1)

    name, sender, given = heard[-1]
    result = given["task_result"]
    assert (name, sender) == ("finished", BackWaveBackend)
    assert repr(given["exc"]) == "ValueError('no stock')"
    assert given["setting"] == "the handler's"
    assert (result.status, result.state) == (TaskResultStatus.FAILED, JobState.DEAD_LETTERED)
    assert result.errors[0].exception_class is ValueError
    assert "no stock" in result.errors[0].traceback
    assert result.cause == "ValueError: no stock"
    assert given["exc"].__traceback__.tb_frame.f_code is failing.__code__


def test_djangos_own_log_line_has_the_traceback(run, caplog):
    with caplog.at_level(logging.ERROR, tasks_logger.name):
        run(failing, max_attempts=1)

    [record] = [record for record in caplog.records if record.name == tasks_logger.name]
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith("state=FAILED")
    assert record.exc_info[0] is ValueError
    assert "in failing" in record.exc_text


def test_a_failure_that_is_tried_again(run, heard):
    execution = run(failing, failures=1, max_attempts=5)

    assert names(heard) == ["started", "retrying"]
    _, sender, given = heard[-1]
    assert sender is BackWaveBackend
    assert repr(given["error"]) == "ValueError('no stock')"
    assert (given["job_id"], given["name"], given["attempt"]) == (execution.job.job_id, NAME, 1)
    assert (given["queue"], given["worker"]) == ("mail", "host:1:a")
    assert (given["failures"], given["max_attempts"]) == (2, 5)
    assert 1 <= given["due_in"] <= 4


@pytest.mark.parametrize(("handler", "word"), [(fine, "succeeded"), (failing, "failed")])
def test_a_stale_outcome_is_told_as_that_and_nothing_else(run, heard, handler, word):
    """G4: no "finished", whatever the handler made of it."""
    run(handler, Verdict.STALE, max_attempts=1)

    assert names(heard) == ["started", "stale"]
    assert heard[-1][2]["outcome"] == word


def test_a_cancel_that_the_worker_had_not_heard_of(run, heard):
    """G8: the row says CANCELLED, so that is what is told, and no retry."""
    run(failing, Verdict.CANCELLED, max_attempts=5)

    assert names(heard) == ["started", "finished"]
    result = heard[-1][2]["task_result"]
    assert (result.state, result.status) == (JobState.CANCELLED, TaskResultStatus.FAILED)
    assert (result.errors, result.cause) == ([], "cancel requested")
    assert heard[-1][2]["exc"] is None


def snoozing():
    raise Snooze(60)


def test_a_snooze_is_no_end_and_no_retry(run, heard):
    run(snoozing)
    assert names(heard) == ["started"]


def test_a_job_that_is_quarantined(run, heard):
    """It never started, and its payload may be anything."""
    run(fine, payload='["?"]', unroutable_for=9.0)

    assert names(heard) == ["finished"]
    result = heard[0][2]["task_result"]
    assert (result.state, result.args, result.started_at) == (JobState.QUARANTINED, [], None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("most", "signals"), [(3, ["abandoned"]), (1, ["abandoned", "finished"])])
def test_a_lapsed_lease(notifier, heard, most, signals):
    """The sweep tells of it, and of the job's end if it was the last."""
    job = lapsed(max_attempts=most)

    notifier.expired(expire(jitter=lambda: 0.0, using="default", now=NOW))

    assert notifier.said()
    assert names(heard) == signals
    given = heard[0][2]
    assert (given["job_id"], given["attempt"], given["worker"]) == (job.job_id, 1, WORKER)
    assert (given["name"], given["queue"]) == (job.name, job.queue)
    assert given["state"] is row(job).job_state
    if most == 1:
        result = heard[1][2]["task_result"]
        assert result.state is JobState.DEAD_LETTERED
        assert result.errors[0].exception_class_path.endswith("AttemptAbandoned")


# Receivers.


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_broken_receiver_harms_nothing(run, heard, notifier, error):
    def break_(**_):
        raise error

    job_retrying.connect(break_)
    task_started.connect(break_)
    try:
        run(failing)
        assert notifier.thread.is_alive() is False  # it has ended in order, when it was told to
    finally:
        job_retrying.disconnect(break_)
        task_started.disconnect(break_)
    assert "retrying" in names(heard)


@pytest.mark.django_db(transaction=True)
def test_receivers_use_the_database_and_leave_nothing_open(run, heard, notifier):
    ends = queue.SimpleQueue()

    def write(**_):
        Entry.objects.create(key="told", value="yes")
        transaction.set_autocommit(False)
        Entry.objects.create(key="left open", value="no")
        ends.put(threading.current_thread().name)

    task_started.connect(write)
    try:
        run(fine)
    finally:
        task_started.disconnect(write)
    assert ends.get(timeout=PATIENCE) == "backwave-notifier"
    assert list(Entry.objects.values_list("key", flat=True)) == ["told"]


def test_receivers_have_cache_clients_of_their_own(run, heard):
    """The handler's thread uses its own for the next job already."""
    seen = {}

    def look(sender, task_result, **_):
        seen[task_result.status] = caches["default"]

    def handler():
        seen["handler"] = caches["default"]

    task_started.connect(look)
    task_finished.connect(look)
    try:
        run(handler)
    finally:
        task_started.disconnect(look)
        task_finished.disconnect(look)
    assert seen[TaskResultStatus.RUNNING] is seen[TaskResultStatus.SUCCESSFUL]
    assert seen["handler"] is not seen[TaskResultStatus.SUCCESSFUL]


# What it costs.


@pytest.fixture
def built(monkeypatch):
    """Count the results that are built for signals."""
    built = []
    for name in ("of_claim", "of_end"):
        build = getattr(signalling.results, name)
        monkeypatch.setattr(
            signalling.results,
            name,
            lambda *a, build=build, name=name, **k: built.append(name) or build(*a, **k),
        )
    return built


@pytest.fixture
def only_handler(monkeypatch):
    """Return a function that lets Django's own log lines go to one handler, and not to pytest's."""

    def use(level=logging.NOTSET, *filters):
        handler = logging.NullHandler(level)
        for each in filters:
            handler.addFilter(each)
        monkeypatch.setattr(tasks_logger, "handlers", [handler])
        monkeypatch.setattr(tasks_logger, "propagate", False)
        # The backport's has no level of its own.
        monkeypatch.setattr(tasks_logger, "level", logging.INFO)

    return use


def test_no_result_is_built_while_nobody_listens(run, built, caplog):
    with caplog.at_level(logging.WARNING, tasks_logger.name):
        run(fine)
    assert built == []


@pytest.mark.parametrize("debug", [True, False])
def test_no_result_is_built_for_lines_that_no_handler_writes(run, built, only_handler, settings, debug):
    """As with Django's own LOGGING in production."""
    settings.DEBUG = debug
    only_handler(logging.INFO, RequireDebugTrue())

    run(fine)
    assert built == (["of_claim", "of_end"] if debug else [])


def test_a_success_is_not_built_for_a_handler_of_errors(run, built, only_handler):
    only_handler(logging.ERROR)
    run(fine)
    assert built == []


def test_a_result_is_built_for_djangos_log_lines_if_their_level_is_on(run, built, caplog):
    with caplog.at_level(logging.INFO, tasks_logger.name):
        run(fine)
    assert built == ["of_claim", "of_end"]
    assert len([record for record in caplog.records if record.name == tasks_logger.name]) == 2


def test_a_result_is_built_when_somebody_listens(run, built, heard):
    run(fine)
    assert built == ["of_claim", "of_end"]


def test_who_hears_of_starts_is_asked_once_for_each_claim(run, notifier, only_handler, request):
    """And at each start where nothing is claimed, as above."""
    starts = []

    def receive(**given):
        starts.append(given)

    only_handler(logging.ERROR)
    notifier.listen()
    task_started.connect(receive)
    request.addfinalizer(lambda: task_started.disconnect(receive))
    execution = run(fine)
    assert not starts

    second = Notifier()
    second.start()
    second.listen()
    second.began(execution)
    second.stop(5.0)

    assert len(starts) == 1


def test_no_result_is_built_for_a_retry(run, built, only_handler):
    only_handler(logging.ERROR)
    run(failing)
    assert built == []


def test_a_failure_is_built_for_a_handler_of_errors(run, built, only_handler):
    only_handler(logging.ERROR)
    run(failing, max_attempts=1)
    assert built == ["of_end"]


# Levels.


@pytest.mark.parametrize(
    ("handler", "changes", "level"),
    [
        (fine, {}, logging.INFO),
        (snoozing, {}, logging.INFO),
        (failing, {"max_attempts": 2}, logging.WARNING),
        (failing, {"max_attempts": 1}, logging.ERROR),
        (fine, {"payload": "[]"}, logging.WARNING),
        (fine, {"payload": "[]", "unroutable_for": 9.0}, logging.ERROR),
    ],
    ids=["success", "snooze", "retried", "last failure", "unroutable", "quarantined"],
)
def test_the_level_of_the_log_line(run, caplog, handler, changes, level):
    with caplog.at_level(logging.INFO, "django_backwave.worker"):
        run(handler, **changes)

    [record] = [r for r in caplog.records if r.getMessage().startswith("action=attempt_ended")]
    assert record.levelno == level


def test_log_lines_are_written_in_the_handlers_context(run):
    seen = []

    class Look(logging.Handler):
        def emit(self, record):
            if "attempt_ended" in record.getMessage():
                seen.append(SETTING.get())

    logger, look = logging.getLogger("django_backwave.worker"), Look()
    logger.addHandler(look)
    logger.setLevel(logging.INFO)
    try:
        run(fine)
    finally:
        logger.removeHandler(look)
        logger.setLevel(logging.NOTSET)
    assert seen == ["the handler's"]


def test_what_waits_for_a_slow_receiver_is_bounded(monkeypatch, notifier, caplog):
    """Successes give way first: of an attempt that ended otherwise there is more to tell."""
    monkeypatch.setattr(notifier_module, "MOST_UNTOLD", 8)
    go, busy, heard = threading.Event(), threading.Event(), []

    def receive(task_result, **_):
        busy.set()
        assert go.wait(PATIENCE)
        heard.append(task_result.status)

    def end(handler):
        monkeypatch.setattr(
            registry, "resolve", lambda _: BackWaveTask.unchecked(func=handler, job_name=NAME)
        )
        job = claimed(name=NAME, attempt=1, max_attempts=1)
        switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
        execution = Execution(job, "host:1:a", switch, claimed_at=0.0, using="default", completed=bool)
        execution.run()
        notifier.settled([(execution, Verdict.APPLIED)], grace=0.0)

    task_finished.connect(receive)
    try:
        end(fine)
        assert busy.wait(PATIENCE)
        for _ in range(20):
            end(fine)
        for _ in range(20):
            end(failing)
        go.set()
        assert notifier.said()
    finally:
        task_finished.disconnect(receive)

    assert heard == [TaskResultStatus.SUCCESSFUL] * 5 + [TaskResultStatus.FAILED] * 4
    assert "action=notify_behind untold=32: log lines and signals are missing" in caplog.text


def test_what_a_failed_handler_held_is_freed_once_it_is_told_of(run, monkeypatch):
    """Its exception's traceback has the handler's frame, and that everything in it."""
    held = []
    monkeypatch.setattr(logging.getLogger("django_backwave"), "disabled", True)
    monkeypatch.setattr(logging.getLogger("django_backwave.worker"), "disabled", True)

    class Large:
        pass

    def handler():
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError("no stock")

    gc.disable()
    try:
        run(handler)
        assert held[0]() is None
    finally:
        gc.enable()
