"""The decision about an enqueue with a key: a table of all that can be known of its generations."""

from __future__ import annotations

from itertools import product

import pytest

from django_backwave.core.identity import Current, Intent, OnConflict, Standing, Verdict, Window, decide

NAMES = frozenset({"shop.send_receipt", "send-receipt"})
PENDING, STARTED, SETTLED = Standing
NEW, RETURN, REPLACE, DUPLICATE, BUSY, TAKEN = Verdict


def intent(on_conflict="return", window="forever"):
    until = Window(window) if isinstance(window, str) else window
    return Intent("k", OnConflict(on_conflict), until, NAMES)


def current(standing=PENDING, *, name="send-receipt", newest=None, age=10.0):
    return Current(name, standing, newest or standing, age)


@pytest.mark.parametrize(("on_conflict", "window"), list(product(OnConflict, [*Window, 5.0])))
def test_a_key_without_a_generation_begins_one(on_conflict, window):
    assert decide(intent(on_conflict, window), None) is NEW


@pytest.mark.parametrize(
    ("on_conflict", "pending", "started", "settled"),
    [
        ("return", RETURN, RETURN, RETURN),
        ("new_generation", BUSY, BUSY, NEW),
        ("reject", DUPLICATE, DUPLICATE, DUPLICATE),
        ("replace", REPLACE, BUSY, DUPLICATE),
    ],
)
def test_within_the_window_on_conflict_decides(on_conflict, pending, started, settled):
    told = [decide(intent(on_conflict), current(standing)) for standing in Standing]

    assert told == [pending, started, settled]


@pytest.mark.parametrize("on_conflict", OnConflict)
@pytest.mark.parametrize(
    ("window", "over"),
    [
        ("forever", set()),
        ("unfinished", {SETTLED}),
        ("pending", {STARTED, SETTLED}),
        (10.0, {PENDING, STARTED, SETTLED}),  # at the very instant
        (10.1, set()),
    ],
)
def test_after_the_window_any_enqueue_begins_a_generation(on_conflict, window, over):
    for standing in Standing:
        verdict = decide(intent(on_conflict, window), current(standing, age=10.0))
        if standing in over:
            assert verdict is NEW
        else:
            assert verdict is decide(intent(on_conflict), current(standing))


def test_an_older_generation_that_is_unfinished_holds_the_key_until_it_is_settled():
    """As after a requeue, or where a window let two run at once."""
    older = current(STARTED, newest=SETTLED)

    assert decide(intent("return"), older) is RETURN
    assert decide(intent("new_generation"), older) is BUSY
    assert decide(intent("return", "unfinished"), older) is RETURN
    assert decide(intent("return", "pending"), older) is NEW


@pytest.mark.parametrize("on_conflict", OnConflict)
def test_another_jobs_key_is_taken_until_its_window_is_over(on_conflict):
    for standing in Standing:
        strange = current(standing, name="shop.charge")
        assert decide(intent(on_conflict), strange) is TAKEN
        assert decide(intent(on_conflict, 5.0), strange) is NEW


def test_a_clock_that_was_read_before_the_generation_began_ends_no_window():
    """Whoever waits for a key has read the clock before."""
    assert decide(intent("return", 1.0), current(age=-5.0)) is RETURN
