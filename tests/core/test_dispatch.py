"""The rotation of queues: nobody starves."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from django_backwave.core.dispatch import Rotation


def rotation(*names):
    turns = Rotation()
    turns.add(names)
    return turns


def test_it_is_false_as_long_as_no_queue_is_due():
    turns = Rotation()
    assert not turns

    turns.add(["mail"])
    assert turns

    turns.drop("mail")
    assert not turns


def test_queues_take_turns():
    turns = rotation("mail", "reports", "thumbnails")

    assert [turns.next() for _ in range(4)] == ["mail", "reports", "thumbnails", "mail"]


def test_a_queue_named_again_keeps_its_turn():
    turns = rotation("mail", "reports")
    turns.next()
    turns.add(["mail", "reports", "mail"])

    assert [turns.next() for _ in range(3)] == ["reports", "mail", "reports"]


def test_a_new_queue_comes_after_those_that_wait_already():
    turns = rotation("mail", "reports")
    turns.next()
    turns.add(["thumbnails"])

    assert [turns.next() for _ in range(3)] == ["reports", "mail", "thumbnails"]


def test_dropping_an_unknown_queue_changes_nothing():
    turns = rotation("mail")
    turns.drop("reports")

    assert turns.next() == "mail"


@settings(max_examples=30, deadline=None)
@given(st.sets(st.text(max_size=3), min_size=1, max_size=8), st.integers(1, 5), st.data())
def test_every_queue_gets_as_many_turns_as_any_other(names, rounds, data):
    """However often busy queues are named again between the turns."""
    turns = rotation(*sorted(names))
    served = Counter()
    for _ in range(rounds * len(names)):
        served[turns.next()] += 1
        turns.add(data.draw(st.lists(st.sampled_from(sorted(names)), max_size=3)))

    assert set(served.values()) == {rounds}
    assert served.keys() == names


def test_who_was_served_along_with_another_goes_to_the_end_of_the_round():
    turns = rotation("mail", "reports", "thumbnails", "backups")
    turns.next()

    turns.served(["reports", "thumbnails", "gone"])

    assert [turns.next() for _ in range(5)] == ["backups", "mail", "reports", "thumbnails", "backups"]
