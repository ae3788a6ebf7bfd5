"""Outcome and numbers in, the one thing to write out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_backwave.core.outcome import (
    TIMED_OUT_CLASS,
    Abandoned,
    Cancelled,
    Decision,
    ErrorInfo,
    Failed,
    Numbers,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
    Unroutable,
    decide,
    timed_out,
)
from django_backwave.core.policy import Backoff
from django_backwave.core.states import FAILURES, MOVES, AttemptOutcome, JobState

GRACE = 3600.0
ERROR = ErrorInfo(class_path="shop.errors.NoStock", message="no stock\nof lamps", traceback="…")
CAUSE = "NoStock: no stock"


def numbers(failures=0, max_attempts=3, unroutable_for=None):
    backoff = Backoff(base=8, cap=100, jitter=0.5)
    return Numbers(
        failures=failures, max_attempts=max_attempts, backoff=backoff, unroutable_for=unroutable_for
    )


def decision(state, outcome, **values):
    return Decision(state=JobState[state], outcome=AttemptOutcome(outcome), **values)


TABLE = {
    "success": (
        Succeeded("7"),
        numbers(failures=2),
        decision("SUCCEEDED", "succeeded", failures=2, output="7", recorded=True),
    ),
    "first failure": (
        Failed(ERROR),
        numbers(),
        decision("READY", "failed", failures=1, due_in=8, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "second failure": (
        Failed(ERROR),
        numbers(failures=1),
        decision("READY", "failed", failures=2, due_in=16, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "last failure": (
        Failed(ERROR),
        numbers(failures=2),
        decision("DEAD_LETTERED", "failed", failures=3, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "failure beyond the last": (
        Failed(ERROR),
        numbers(failures=7),
        decision("DEAD_LETTERED", "failed", failures=8, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "final failure": (
        Failed(ERROR, final=True),
        numbers(),
        decision("DEAD_LETTERED", "failed", failures=1, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "failure that says when to try again": (
        Failed(ERROR, delay=90.5),
        numbers(failures=1),
        decision("READY", "failed", failures=2, due_in=90.5, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "last failure that says when to try again": (
        Failed(ERROR, delay=90.5),
        numbers(failures=2),
        decision("DEAD_LETTERED", "failed", failures=3, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "time-out": (
        TimedOut(ERROR),
        numbers(),
        decision("READY", "timed_out", failures=1, due_in=8, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "last time-out": (
        TimedOut(ERROR),
        numbers(failures=2),
        decision("DEAD_LETTERED", "timed_out", failures=3, cause=CAUSE, error=ERROR, recorded=True),
    ),
    "cancelled": (
        Cancelled(),
        numbers(failures=1),
        decision("CANCELLED", "cancelled", failures=1, cause="cancel requested"),
    ),
    "released": (Released(), numbers(failures=2), decision("READY", "released", failures=2)),
    "snoozed": (
        Snoozed(90.0),
        numbers(failures=2),
        decision("READY", "snoozed", failures=2, due_in=90.0, recorded=True),
    ),
    "snoozed too briefly": (
        Snoozed(0.01),
        numbers(),
        decision("READY", "snoozed", failures=0, due_in=1.0, recorded=True),
    ),
    "first unroutable": (
        Unroutable("no such name"),
        numbers(),
        decision(
            "READY",
            "unroutable",
            failures=0,
            due_in=5.0,
            cause="no such name",
            unroutable=True,
            recorded=True,
        ),
    ),
    "still unroutable": (
        Unroutable("no such name"),
        numbers(unroutable_for=30.0),
        decision("READY", "unroutable", failures=0, due_in=30.0, cause="no such name", unroutable=True),
    ),
    "unroutable for the whole grace": (
        Unroutable("no such name"),
        numbers(failures=1, unroutable_for=GRACE),
        decision("QUARANTINED", "unroutable", failures=1, cause="no such name", unroutable=True),
    ),
    "first abandoned": (
        Abandoned(again=False),
        numbers(),
        decision("READY", "abandoned", failures=1, due_in=0.0, cause="lease lapsed", recorded=True),
    ),
    "abandoned again": (
        Abandoned(again=True),
        numbers(failures=1),
        decision("READY", "abandoned", failures=2, due_in=16, cause="lease lapsed", recorded=True),
    ),
    "abandoned for the last time": (
        Abandoned(again=True),
        numbers(failures=2),
        decision("DEAD_LETTERED", "abandoned", failures=3, cause="lease lapsed", recorded=True),
    ),
}


@pytest.mark.parametrize(("outcome", "given_numbers", "expected"), TABLE.values(), ids=TABLE)
def test_each_outcome_has_its_decision(outcome, given_numbers, expected):
    assert decide(outcome, given_numbers, jitter=0.0, unroutable_grace=GRACE) == expected


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("", "shop.errors.NoStock"),
        ("  \n ", "shop.errors.NoStock"),
        ("\n\nno stock", "NoStock: no stock"),
        ("x" * 500, f"NoStock: {'x' * 200}"),
    ],
)
def test_the_cause_is_one_short_line(message, cause):
    error = ErrorInfo(class_path=ERROR.class_path, message=message, traceback="")

    assert decide(Failed(error), numbers(), jitter=0.0, unroutable_grace=GRACE).cause == cause


def test_jitter_shortens_every_delay_that_depends_on_chance():
    outcomes = (Failed(ERROR), Abandoned(again=True), Unroutable("no such name"))
    due_ins = [decide(each, numbers(), jitter=0.5, unroutable_grace=GRACE).due_in for each in outcomes]

    assert due_ins == [6.0, 6.0, 4.5]


def test_a_time_out_tells_how_long_it_was():
    plain, silent = timed_out(30.0).error, timed_out(0.25, still_running=True).error
    traced = timed_out(30.0, traceback="Traceback: …").error

    assert plain.message == "it ran for longer than its time-out of 30 s"
    assert plain.traceback == f"{TIMED_OUT_CLASS}: {plain.message}\n"
    assert "0.25 s, and its code still runs" in silent.message
    assert (traced.message, traced.traceback) == (plain.message, "Traceback: …")


outcomes = st.one_of(
    st.builds(Succeeded, st.just("null")),
    st.builds(Failed, st.just(ERROR), st.booleans(), st.none() | st.floats(0, 10**9)),
    st.just(timed_out(30)),
    st.builds(Abandoned, st.booleans()),
    st.builds(Unroutable, st.text()),
    st.just(Cancelled()),
    st.builds(Snoozed, st.floats(0, 10**9)),
    st.just(Released()),
)
any_numbers = st.builds(
    numbers,
    st.integers(0, 100),
    st.integers(1, 100),
    st.none() | st.floats(0, 10**6),
)


@given(outcomes, any_numbers, st.floats(0, 1, exclude_max=True), st.floats(0.001, 10**6))
def test_every_decision_is_a_legal_move_and_consistent(outcome, given_numbers, jitter, grace):
    """A due time exists for READY only; only a failure counts; output only of a success (G5, G6)."""
    decision = decide(outcome, given_numbers, jitter=jitter, unroutable_grace=grace)

    assert decision.state in MOVES[JobState.RUNNING]
    assert decision.failures - given_numbers.failures == (decision.outcome in FAILURES)
    assert decision.due_in is None or (decision.state is JobState.READY and decision.due_in >= 0)
    assert (decision.output is not None) == (decision.state is JobState.SUCCEEDED)
    used_up = decision.outcome in FAILURES and decision.failures >= given_numbers.max_attempts
    assert not used_up or decision.state is JobState.DEAD_LETTERED
