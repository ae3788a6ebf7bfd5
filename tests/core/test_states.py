"""The states of a job: the numbers that rows keep, and the one table of legal moves."""

import pytest

from django_backwave.core.states import FAILURES, MOVES, REQUEUEABLE, TERMINAL, AttemptOutcome, JobState

WAITING, READY, RUNNING, SUCCEEDED, CANCELLED, DEAD_LETTERED, QUARANTINED = JobState


def test_the_stored_numbers_never_change():
    assert {state.name: state.value for state in JobState} == {
        "WAITING": 0,
        "READY": 1,
        "RUNNING": 2,
        "SUCCEEDED": 3,
        "CANCELLED": 4,
        "DEAD_LETTERED": 5,
        "QUARANTINED": 6,
    }


def test_the_stored_outcomes_never_change():
    assert {outcome.value for outcome in AttemptOutcome} == {
        "succeeded",
        "failed",
        "cancelled",
        "released",
        "snoozed",
        "timed_out",
        "unroutable",
        "abandoned",
    }


@pytest.mark.parametrize(
    ("state", "next_states"),
    [
        (WAITING, {READY, CANCELLED}),
        (READY, {RUNNING, CANCELLED}),
        (RUNNING, {READY, SUCCEEDED, CANCELLED, DEAD_LETTERED, QUARANTINED}),
        (SUCCEEDED, set()),
        (CANCELLED, {READY}),
        (DEAD_LETTERED, {READY}),
        (QUARANTINED, {READY}),
    ],
)
def test_a_state_leads_to_these_and_no_others(state, next_states):
    assert MOVES[state] == next_states


def test_terminal_states_are_left_by_a_requeue_only():
    assert {state for state in JobState if state.is_terminal} == TERMINAL
    assert {state for state in TERMINAL if MOVES[state] == {READY}} == REQUEUEABLE
    assert {SUCCEEDED} == TERMINAL - REQUEUEABLE


def test_every_state_is_reached_from_the_two_in_which_jobs_begin():
    reached = {WAITING, READY}
    while (further := reached.union(*(MOVES[state] for state in reached))) != reached:
        reached = further

    assert reached == set(JobState)


def test_only_failed_timed_out_and_abandoned_attempts_count_as_failures():
    """G6, G11: a hand-back or a snooze costs nothing."""
    assert {outcome.value for outcome in FAILURES} == {"failed", "timed_out", "abandoned"}


def test_labels_are_words():
    assert DEAD_LETTERED.label == "dead-lettered"
    assert READY.label == "ready"
