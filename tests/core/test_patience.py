"""How a wait spends its time, on a clock of numbers."""

from __future__ import annotations

import pytest

from django_backwave.core.patience import (
    FIRST,
    LISTEN_AFTER,
    LISTENING,
    LONGEST,
    RETRY_FIRST,
    RETRY_LONGEST,
    Patience,
)


def pauses(patience: Patience, count: int, *, listening: bool = False, chance: float = 0.0) -> list[float]:
    return [patience.pause(0.0, listening=listening, chance=chance) for _ in range(count)]


def test_pauses_double_up_to_a_second() -> None:
    patience = Patience(0.0, None, may_listen=False)

    assert pauses(patience, 10) == [
        FIRST,
        *(FIRST * 2**n for n in range(1, 8)),
        LONGEST,
        LONGEST,
    ]


def test_chance_takes_up_to_a_half() -> None:
    patience = Patience(0.0, None, may_listen=False)

    assert pauses(patience, 2, chance=0.5) == [FIRST * 0.75, FIRST * 1.5]


def test_who_listens_looks_seldom_and_goes_on_where_it_stopped() -> None:
    """A connection that is lost brings back the polls, as they were."""
    patience = Patience(0.0, None, may_listen=True)
    pauses(patience, 3)

    assert pauses(patience, 2, listening=True) == [LISTENING, LISTENING]
    assert pauses(patience, 1) == [FIRST * 8]


@pytest.mark.parametrize("listening", [False, True])
def test_no_pause_goes_beyond_the_end(listening: bool) -> None:
    patience = Patience(10.0, 5.0, may_listen=True)

    assert patience.pause(14.999, listening=listening, chance=0.0) == pytest.approx(0.001)
    assert patience.pause(16.0, listening=listening, chance=0.0) == 0
    assert not patience.is_over(14.999)
    assert patience.is_over(15.0)


def test_without_a_timeout_it_is_never_over() -> None:
    assert not Patience(0.0, None, may_listen=False).is_over(1e12)


def test_a_timeout_of_nothing_is_over_at_once() -> None:
    assert Patience(7.0, 0.0, may_listen=False).is_over(7.0)


def test_it_listens_after_some_looks_and_tries_again_ever_later() -> None:
    patience = Patience(10.0, None, may_listen=True)
    assert not patience.tries_to_listen(10.0 + LISTEN_AFTER / 2)

    now, waited = 10.0 + LISTEN_AFTER, []
    for _ in range(7):
        assert patience.tries_to_listen(now)
        assert not patience.tries_to_listen(now)
        wait = next(n for n in range(1, 100) if patience_would_try(patience, now + n))
        waited.append(wait)
        now += wait

    assert waited[0] == RETRY_FIRST
    assert waited == [1, 2, 4, 8, 16, 30, RETRY_LONGEST]


def patience_would_try(patience: Patience, now: float) -> bool:
    """Ask without it counting as a try."""
    return now >= patience._listen_at


def test_where_there_is_nothing_to_hear_it_never_tries() -> None:
    assert not Patience(0.0, None, may_listen=False).tries_to_listen(1e12)
