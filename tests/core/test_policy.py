"""How long to wait before the next try."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_backwave.core.policy import Backoff, routing_delay

shares = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("failures", "delay"), [(1, 2), (2, 4), (3, 8), (7, 128), (8, 256), (9, 300), (10, 300)]
)
def test_each_failure_doubles_the_delay_up_to_the_cap(failures, delay):
    assert Backoff(base=2, cap=300).delay(failures, jitter=0.0) == delay


@pytest.mark.parametrize("failures", [0, -5])
def test_fewer_failures_than_one_count_as_one(failures):
    assert Backoff(base=7).delay(failures, jitter=0.0) == 7


@pytest.mark.parametrize("backoff", [Backoff(base=0), Backoff(cap=0), Backoff(base=0.001), Backoff(jitter=1)])
def test_nothing_is_due_again_sooner_than_a_second(backoff):
    assert backoff.delay(1, jitter=0.999) == 1.0


def test_chance_takes_away_no_more_than_the_share_of_the_jitter():
    backoff = Backoff(base=100, cap=100, jitter=0.5)

    assert backoff.delay(1, jitter=0.0) == 100
    assert backoff.delay(1, jitter=0.5) == 75
    assert Backoff(base=100, jitter=0).delay(1, jitter=0.9) == 100


def test_failures_past_any_number_neither_overflow_nor_pass_the_cap():
    assert Backoff(base=10**9, cap=10**9).delay(10**6, jitter=0.0) == 10**9
    assert Backoff(base=1e-9, cap=300).delay(2**31, jitter=0.0) == 300


@given(
    st.builds(Backoff, base=st.floats(0, 10**9), cap=st.floats(0, 10**9), jitter=st.floats(0, 1)),
    st.integers(0, 2**31),
    shares,
)
def test_any_delay_lies_between_a_second_and_the_cap_and_never_shrinks(backoff, failures, jitter):
    delay = backoff.delay(failures, jitter=jitter)

    assert 1.0 <= delay <= max(1.0, backoff.cap)
    assert backoff.delay(failures + 1, jitter=jitter) >= delay


@pytest.mark.parametrize("name", ["base", "cap", "jitter"])
@pytest.mark.parametrize("value", [True, None, "2", 1j])
def test_what_is_no_number_is_refused(name, value):
    message = f"Backoff {name} must be a number of seconds, got {value!r}."
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Backoff(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("base", -0.1, 10**9),
        ("base", float("nan"), 10**9),
        ("base", float("inf"), 10**9),
        ("cap", -1, 10**9),
        ("cap", 10**9 + 1, 10**9),
        ("jitter", 1.01, 1),
        ("jitter", -0.01, 1),
        ("jitter", float("nan"), 1),
    ],
)
def test_numbers_that_give_no_sensible_delay_are_refused(name, value, most):
    message = f"Backoff {name} must be between 0 and {most}, got {value!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Backoff(**{name: value})


@pytest.mark.parametrize(("waited", "delay"), [(0, 5), (4, 5), (20, 20), (59, 59), (60, 60), (10**6, 60)])
def test_an_unroutable_job_is_offered_again_more_and_more_rarely(waited, delay):
    assert routing_delay(waited, jitter=0.0) == delay
    assert 0.8 * delay <= routing_delay(waited, jitter=0.999) < delay
