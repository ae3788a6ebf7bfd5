"""One attempt: what a handler does becomes an outcome, whatever it does. No database is needed."""

from __future__ import annotations

import asyncio

import pytest

from django_backwave import GiveUp, Retry, Snooze, Stopped, registry
from django_backwave.context import JobContext, StopSwitch
from django_backwave.core.outcome import (
    TIMED_OUT_CLASS,
    Cancelled,
    Failed,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
    Unroutable,
)
from django_backwave.core.protocol import StopReason
from django_backwave.jobs import BackWaveTask
from django_backwave.worker.execution import MESSAGE_LENGTH, TRACEBACK_LENGTH, Execution
from tests.core.bench import claimed

NAME = "shop.send_receipt"


@pytest.fixture
def attempt(monkeypatch):
    """Return a function that runs an attempt of a handler, and returns its report."""

    def run(
        handler, *, told=(), lease=60.0, payload='{"args":[],"kwargs":{}}', timeout_seconds=None, **options
    ):
        task = BackWaveTask.unchecked(func=handler, job_name=NAME, **options)
        monkeypatch.setattr(registry, "resolve", {NAME: task}.get)
        switch = StopSwitch(lease_ends=lease, clock=lambda: 0.0)
        for reason in told:
            switch.tell(reason)
        name = options.get("job_name", NAME)
        job = claimed(name=name, payload=payload, timeout_seconds=timeout_seconds)
        return Execution(job, "host:1:a", switch, claimed_at=0.0, using="default", completed=bool).run()

    return run


def raising(error):
    def handler():
        raise error

    return handler


def failure(report):
    """Return the error of a report that tells of a failure."""
    assert isinstance(report.outcome, Failed)
    return report.outcome.error


def test_a_return_value_is_the_output(attempt):
    report = attempt(lambda a, b: {"sum": a + b, "pair": (a, b)}, payload='{"args":[1],"kwargs":{"b":2}}')

    assert report.outcome == Succeeded('{"sum":3,"pair":[1,2]}')
    assert report.started_after is not None
    assert not report.sent_before


def test_a_handler_that_takes_the_context_gets_it_first(attempt):
    def handler(context, number):
        assert isinstance(context, JobContext)
        return [str(context.job_id), context.attempt, number]

    report = attempt(handler, takes_context=True, payload='{"args":[7],"kwargs":{}}')
    assert report.outcome == Succeeded('["00000000-0000-0000-0000-000000000001",1,7]')


def test_an_exception_is_a_failure_with_its_traceback(attempt):
    error = failure(attempt(raising(ValueError("no stock"))))

    assert (error.class_path, error.message) == ("builtins.ValueError", "no stock")
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith("ValueError: no stock\n")
    assert __file__ in error.traceback


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("odd")],
    ids=repr,
)
def test_no_exception_gets_out_and_ends_the_thread(attempt, error):
    assert failure(attempt(raising(error))).class_path.endswith(type(error).__name__)


def test_snooze_is_no_failure(attempt):
    assert attempt(raising(Snooze(90))).outcome == Snoozed(90.0)


@pytest.mark.parametrize("options", [{}, {"retry_on": (OSError,)}, {"give_up_on": (Exception,)}])
def test_retry_is_a_failure_with_a_delay_of_its_own(attempt, options):
    outcome = attempt(raising(Retry(after=90, reason="no answer")), **options).outcome

    assert (outcome.delay, outcome.final) == (90.0, False)
    assert outcome.error.class_path == "django_backwave.exceptions.Retry"
    assert outcome.error.message == "no answer"


def test_other_failures_have_no_delay_of_their_own(attempt):
    assert attempt(raising(OSError())).outcome.delay is None


def test_give_up_is_a_final_failure(attempt):
    outcome = attempt(raising(GiveUp("no such order"))).outcome

    assert outcome.final
    assert outcome.error.message == "no such order"


@pytest.mark.parametrize(
    ("error", "options", "final"),
    [
        (OSError(), {}, False),
        (OSError(), {"retry_on": (OSError,)}, False),
        (TimeoutError(), {"retry_on": (OSError,)}, False),
        (ValueError(), {"retry_on": (OSError,)}, True),
        (OSError(), {"give_up_on": (OSError,)}, True),
        (TimeoutError(), {"give_up_on": (TimeoutError,), "retry_on": (OSError,)}, True),
        (SystemExit(), {}, False),
    ],
)
def test_only_some_exceptions_are_retried(attempt, error, options, final):
    assert attempt(raising(error), **options).outcome.final is final


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object, "Unsupported type"),
        (lambda: {1: 2}, "Dict key that is not a string"),
        (lambda: float("nan"), "Number that JSON does not have"),
        (lambda: "a\0b", "NUL character"),
        (lambda: "\ud800", "Lone surrogate"),
        (lambda: "x" * 70_000, "more than 65,536"),
    ],
)
def test_an_output_that_cannot_be_stored_is_a_failure_that_says_so(attempt, value, message):
    error = failure(attempt(lambda: value()))

    assert message in error.message
    assert "the output" in error.message.lower()


def test_an_exception_without_words_is_told_all_the_same(attempt):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    error = failure(attempt(raising(MuteError())))
    assert error.message == "<its __str__ raised RuntimeError>"
    assert error.class_path.endswith("MuteError")
    assert error.traceback


def test_an_exception_whose_words_end_threads_ends_none(attempt):
    class RudeError(Exception):
        def __str__(self):
            raise SystemExit

    assert failure(attempt(raising(RudeError()))).message == "<its __str__ raised SystemExit>"


def test_what_no_database_stores_is_replaced(attempt):
    error = failure(attempt(raising(ValueError("a\0b\ud800c 💥"))))

    assert error.message == "a�b?c 💥"
    assert "a�b?c 💥" in error.traceback


def test_long_texts_are_cut_and_of_a_traceback_the_end_is_kept(attempt):
    error = failure(attempt(raising(ValueError("ä" * 50_000 + "end"))))

    assert error.message == "ä" * MESSAGE_LENGTH
    assert len(error.traceback) == TRACEBACK_LENGTH
    assert error.traceback.endswith("end\n")


# Stops.

STOPPED = Stopped(StopReason.SHUTDOWN)
STOPS = {
    "alone": STOPPED,
    "cancelled": asyncio.CancelledError(),
    "group": BaseExceptionGroup("", [STOPPED, asyncio.CancelledError()]),
    "groups": BaseExceptionGroup("", [BaseExceptionGroup("", [STOPPED]), STOPPED]),
}


@pytest.mark.parametrize("error", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ([StopReason.CANCEL], Cancelled()),
        ([StopReason.SHUTDOWN], Released()),
        ([StopReason.LEASE_LOST], Released()),
        ([StopReason.SHUTDOWN, StopReason.CANCEL], Cancelled()),
        ([StopReason.TIMEOUT, StopReason.CANCEL], Cancelled()),
        ([StopReason.TIMEOUT, StopReason.LEASE_LOST], Released()),
    ],
)
def test_who_was_told_to_stop_and_stops_has_not_failed(attempt, monkeypatch, error, told, outcome):
    """G8, G11."""

    def handler(context):
        for reason in told:
            context._switch.tell(reason)
        raise error

    report = attempt(handler, takes_context=True)
    assert report.outcome == outcome
    assert report.started_after is not None


@pytest.mark.parametrize("error", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("told", [[StopReason.TIMEOUT], [StopReason.SHUTDOWN, StopReason.TIMEOUT]])
def test_who_stops_at_the_time_out_has_timed_out(attempt, error, told):
    """Also during a shutdown: it had its time."""

    def handler(context):
        for reason in told:
            context._switch.tell(reason)
        raise error

    outcome = attempt(handler, takes_context=True, timeout_seconds=1.5).outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.error.class_path == TIMED_OUT_CLASS
    assert outcome.error.message == "it ran for longer than its time-out of 1.5 s"
    assert "in handler" in outcome.error.traceback


@pytest.mark.parametrize(
    "error",
    [BaseExceptionGroup("", [STOPPED, ValueError()]), ExceptionGroup("", [ValueError()]), ValueError()],
    ids=["mixed group", "group", "alone"],
)
def test_another_exception_is_a_failure_also_after_being_told(attempt, error):
    def handler(context):
        context._switch.tell(StopReason.SHUTDOWN)
        raise error

    failure(attempt(handler, takes_context=True))


def test_who_stops_without_being_told_has_failed(attempt):
    failure(attempt(raising(STOPPED)))


def test_who_succeeds_after_being_told_has_succeeded(attempt):
    """G8."""

    def handler(context):
        context._switch.tell(StopReason.CANCEL)
        return "done"

    assert attempt(handler, takes_context=True).outcome == Succeeded('"done"')


@pytest.mark.parametrize(
    ("told", "lease", "outcome"),
    [
        ([StopReason.CANCEL], 60.0, Cancelled()),
        ([StopReason.SHUTDOWN], 60.0, Released()),
        ([], 0.0, Released()),
    ],
    ids=["cancel", "shutdown", "lease over"],
)
def test_who_is_to_stop_before_the_start_never_starts(attempt, told, lease, outcome):
    """G8, G10."""
    report = attempt(raising(AssertionError("it has started")), told=told, lease=lease)

    assert report.outcome == outcome
    assert report.started_after is None


# Routes.


def test_an_unknown_name_is_no_failure(attempt, monkeypatch):
    """§9.10."""
    monkeypatch.setattr(registry, "resolve", {}.get)
    job = claimed(name="shop.gone")
    switch = StopSwitch(lease_ends=60.0, clock=lambda: 0.0)
    report = Execution(job, "host:1:a", switch, claimed_at=0.0, using="default", completed=bool).run()

    assert report.outcome == Unroutable("no handler here is named 'shop.gone'")
    assert report.started_after is None


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('{"args":[1],"kwargs":{}}', "the arguments do not fit"),
        ('{"args":[],"kwargs":{"c":1}}', "the arguments do not fit"),
        ('{"args":[1,2],"kwargs":{"b":1}}', "the arguments do not fit"),
        ("{", "the payload is not of the form this version reads"),
        ("[]", "the payload is not of the form this version reads"),
        ("null", "the payload is not of the form this version reads"),
        ('{"args":{},"kwargs":{}}', "the payload is not of the form this version reads"),
        ('{"args":[],"kwargs":[]}', "the payload is not of the form this version reads"),
        ('{"args":[]}', "the payload is not of the form this version reads"),
        ("[" * 100_000, "the payload is not of the form this version reads"),
    ],
)
def test_arguments_that_do_not_fit_are_no_failure(attempt, payload, reason):
    """§9.10: an older or a newer version may have enqueued them."""

    def handler(a, b):
        raise AssertionError("it has started")

    outcome = attempt(handler, payload=payload).outcome
    assert isinstance(outcome, Unroutable)
    assert outcome.reason.startswith(reason)
