"""Payloads: what is accepted comes back equal, what is not is refused before any SQL."""

from __future__ import annotations

import sys
from collections import UserDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from django_backwave import payload
from django_backwave.core.jsontext import decode_json
from django_backwave.exceptions import InvalidArguments, InvalidJob

WHERE = "shop.jobs.pay"

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
HUGE = 10**5000  # pytest cannot name a test after it
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**60, max_value=2**14_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def types(value):
    """Return a value's types beside it, for 1 == 1.0 == True."""
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    if isinstance(value, list):
        return [types(item) for item in value]
    return type(value), repr(value)


@given(args=st.lists(JSON, max_size=3), kwargs=st.dictionaries(TEXT, JSON, max_size=3))
@hypothesis_settings(deadline=None)
def test_what_is_accepted_comes_back_equal(args, kwargs):
    text = payload.encode_arguments(WHERE, args, kwargs)

    assert types(decode_json(text)) == types({"args": args, "kwargs": kwargs})


@given(JSON)
@hypothesis_settings(deadline=None)
def test_an_output_comes_back_equal(value):
    assert types(decode_json(payload.encode_output(WHERE, value))) == types(value)


@pytest.mark.parametrize(
    ("given_", "comes_back"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (b"caf\xc3\xa9", "café"),
        (UserDict(a=1), {"a": 1}),
        (range(3), [0, 1, 2]),
    ],
)
def test_what_django_turns_into_json_is_turned(given_, comes_back):
    """As with every backend of Django's tasks: tuples become lists, UTF-8 bytes become strings."""
    text = payload.encode_arguments(WHERE, [given_], {})

    assert decode_json(text)["args"] == [comes_back]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (date(2026, 3, 1), "Unsupported type date (datetime.date(2026, 3, 1))"),
        (Decimal("1.5"), "Unsupported type Decimal (Decimal('1.5'))"),
        ({1, 2}, "Unsupported type set ({1, 2})"),
        (float("nan"), "Number that JSON does not have (nan)"),
        (float("-inf"), "Number that JSON does not have (-inf)"),
        ("a\0b", "NUL character ('a\\x00b')"),
        ("a\ud800", "Lone surrogate ('a\\ud800')"),
        (b"\xff", "Bytes that are not UTF-8 (b'\\xff')"),
        ({1: 2}, "Dict key that is not a string (1)"),
        ({None: 2}, "Dict key that is not a string (None)"),
        ({"a\0": 2}, "NUL character ('a\\x00')"),
        ([{"a": [float("inf")]}], "Number that JSON does not have (inf)"),
        (nested(101), "Lists or dicts nested deeper than 100 levels"),
        (HUGE, "Integer of 16,610 bits (at most 14,284)"),
        (-HUGE, "Integer of 16,610 bits (at most 14,284)"),
        ("x" * 200 + "\0", f"NUL character ('{'x' * 76}...)"),
    ],
    ids=count(),
)
def test_what_is_not_json_is_refused(value, told):
    """The message says what and where; nothing is silently changed."""
    for args, kwargs, place in (([0, value], {}, "args[1]"), ([], {"a": value}, "kwargs['a']")):
        with pytest.raises(InvalidArguments) as caught:
            payload.encode_arguments(WHERE, args, kwargs)

        assert str(caught.value) == (
            f"{told} in {place} of {WHERE}. Jobs take and return JSON: None, booleans, numbers, strings, "
            "lists, dicts with string keys. Pass a model instance's primary key, a date's isoformat(), "
            "a Decimal's str()."
        )
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)


def test_a_value_that_contains_itself_is_refused():
    value: list = []
    value.append(value)

    with pytest.raises(InvalidArguments, match="nested deeper than 100 levels in args"):
        payload.encode_arguments(WHERE, [value], {})


def test_a_hundred_levels_are_accepted():
    value = nested(100)

    assert decode_json(payload.encode_arguments(WHERE, [value], {}))["args"] == [value]


def test_the_largest_integer_can_be_read_back():
    value = 2**payload.LARGEST_INTEGER_BITS - 1

    assert decode_json(payload.encode_arguments(WHERE, [value], {}))["args"] == [value]


def test_a_process_that_allows_fewer_digits_says_so():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        with pytest.raises(InvalidArguments, match=r"The payload of shop\.jobs\.pay is not JSON: Exc"):
            payload.encode_arguments(WHERE, [10**1000], {})
    finally:
        sys.set_int_max_str_digits(before)


def test_a_broken_repr_breaks_no_message():
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(InvalidArguments, match=r"Unsupported type .*Broken "):
        payload.encode_arguments(WHERE, [Broken()], {})


def test_a_payload_may_have_as_many_bytes_as_the_settings_say(settings):
    """Bytes of UTF-8, not characters."""
    settings.BACKWAVE = {"MAX_PAYLOAD": 100}
    frame = len('{"args":[""],"kwargs":{}}')

    payload.encode_arguments(WHERE, ["é" * ((100 - frame) // 2)], {})
    with pytest.raises(InvalidJob) as caught:
        payload.encode_arguments(WHERE, ["é" * ((100 - frame) // 2 + 1)], {})

    assert str(caught.value) == (
        f"The payload of {WHERE} is 101 bytes of JSON, more than 100. Store the data elsewhere and hand "
        "over its key, or raise BACKWAVE['MAX_PAYLOAD']."
    )


def test_a_payload_has_256_kib_by_default():
    payload.encode_arguments(WHERE, ["x" * 262_000], {})
    with pytest.raises(InvalidJob, match="is 262,169 bytes of JSON, more than 262,144"):
        payload.encode_arguments(WHERE, ["x" * 262_144], {})


def test_an_output_has_a_limit_of_its_own(settings):
    settings.BACKWAVE = {"MAX_OUTPUT": 3}

    with pytest.raises(InvalidJob, match=r"The output of shop\.jobs\.pay is 4 bytes of JSON, more "):
        payload.encode_output(WHERE, True)
    with pytest.raises(InvalidArguments, match=r"Unsupported type set \(\{1\}\) in the output of"):
        payload.encode_output(WHERE, {1})


def test_an_instant_is_stored_in_utc():
    at = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5)))

    assert payload.instant_of(at, WHERE) == datetime(2026, 3, 1, 7, tzinfo=UTC)
    assert payload.instant_of(None, WHERE) is None


def test_without_time_zones_a_local_time_becomes_the_right_instant(settings):
    """Five hours ahead of UTC."""
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Karachi"

    at = payload.instant_of(datetime(2026, 3, 1, 12), WHERE)

    assert at == datetime(2026, 3, 1, 7, tzinfo=UTC)


def test_without_time_zones_an_aware_time_is_refused(settings):
    settings.USE_TZ = False

    with pytest.raises(InvalidJob) as caught:
        payload.instant_of(datetime(2026, 3, 1, 12, tzinfo=UTC), WHERE)

    assert str(caught.value) == (
        f"run_after of {WHERE} must be a naive datetime in TIME_ZONE, because USE_TZ is False; got "
        "datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.timezone.utc). Convert it with "
        "django.utils.timezone.make_naive()."
    )


@pytest.mark.parametrize(
    "at",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_an_instant_out_of_range_is_refused(at):
    with pytest.raises(InvalidJob, match="must be an instant that exists in UTC, between the years 1"):
        payload.instant_of(at, WHERE)


@pytest.mark.parametrize("at", [datetime.min, datetime.max])
def test_a_local_time_out_of_range_is_refused(settings, at):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Karachi" if at is datetime.min else "America/New_York"

    with pytest.raises(InvalidJob, match="must be an instant that exists in UTC"):
        payload.instant_of(at, WHERE)


@pytest.mark.parametrize("at", [date(2026, 3, 1), timedelta(hours=1), 60, "2026-03-01"])
def test_a_run_after_must_be_a_datetime(at):
    with pytest.raises(InvalidJob, match=r"must be a datetime, got .* For a delay add a timedelta to"):
        payload.check_run_after(at, WHERE)
