"""Arrays as text: whatever is in a batch, PostgreSQL reads back what was put in."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from django_backwave.ids import new_id
from django_backwave.store import arrays

on_postgres = pytest.mark.only_on("postgres")
pytestmark = pytest.mark.django_db

HOSTILE = [
    "", " ", "NULL", "null", "{}", "{", "}", "a,b", ",", '"', '""', "'", "''", "\\", "\\\\", '\\"', '"\\',
    "\\n", "\n", "\r\n", "\t", "$1", "%", "%s", "%(now)s", "{NULL}", "a\\,b", '{"a": "\\"b\\""}', " lead",
    "trail ", "é", "日本", "🎉", "\x01", "\x7f", "\u2028", "\ufeff", "e\u0301", "x" * 100_000,
]  # fmt: skip

#: Whatever a worker may write: NUL and lone surrogates are cleaned before they reach the store.
storable = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def through(text: str, kind: str) -> list:
    """Return the elements of an array as PostgreSQL reads it from its text."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT each FROM unnest(%s::{kind}[]) WITH ORDINALITY AS t(each, n) ORDER BY n",  # noqa: S608
            [text],
        )
        return [each for (each,) in cursor.fetchall()]


@on_postgres
class TestRoundTrip:
    @pytest.mark.parametrize("kind", ["text", "varchar"])
    def test_hostile_texts(self, kind):
        assert through(arrays.texts([*HOSTILE, None, "last"]), kind) == [*HOSTILE, None, "last"]

    @pytest.mark.parametrize("value", HOSTILE[:-1], ids=ascii)
    def test_each_hostile_text_by_itself(self, value):
        assert through(arrays.texts([value]), "text") == [value]

    @pytest.mark.parametrize(
        "write", [arrays.texts, arrays.numbers, arrays.flags, arrays.instants, arrays.uuids]
    )
    def test_nothing(self, write):
        kind = {
            "texts": "text",
            "numbers": "int",
            "flags": "bool",
            "instants": "timestamptz",
            "uuids": "uuid",
        }
        assert through(write([]), kind[write.__name__]) == []

    def test_nothing_but_null(self):
        for write, kind in (
            (arrays.texts, "text"),
            (arrays.numbers, "float8"),
            (arrays.instants, "timestamptz"),
        ):
            assert through(write([None]), kind) == [None]

    def test_numbers(self):
        exact = [0, -1, 2**31 - 1, None, -(2**31)]
        assert through(arrays.numbers(exact), "int") == exact

    def test_floats_to_the_last_bit(self):
        values = [
            0.1,
            1 / 3,
            1e-300,
            1e300,
            5e-324,
            2.0**53 + 2,
            -0.0,
            1.7976931348623157e308,
            math.inf,
            -math.inf,
        ]
        back = through(arrays.numbers(values), "float8")
        assert [each.hex() for each in back] == [each.hex() for each in values]

    def test_flags(self):
        assert through(arrays.flags([True, False, True]), "bool") == [True, False, True]

    def test_instants_to_the_microsecond_from_any_zone(self):
        instants = [
            datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC),
            datetime(2026, 3, 1, 12, tzinfo=UTC),
            None,
            datetime(2026, 10, 25, 2, 30, 0, 999_999, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
            datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=14))),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1, 1, 2, tzinfo=UTC),
        ]
        assert through(arrays.instants(instants), "timestamptz") == instants

    def test_uuids(self):
        ids = [UUID(int=0), UUID(int=1), UUID(int=2**128 - 1), *(new_id() for _ in range(9))]
        assert through(arrays.uuids(ids), "uuid") == ids


@on_postgres
class TestAnything(TestCase):
    few = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.differing_executors])

    @few
    @given(st.lists(st.none() | storable))
    def test_texts(self, values):
        assert through(arrays.texts(values), "text") == values

    @few
    @given(st.lists(st.none() | st.floats(allow_nan=False)))
    def test_floats(self, values):
        back = through(arrays.numbers(values), "float8")
        assert [each and each.hex() for each in back] == [each and each.hex() for each in values]


FIRST = '"2026-03-01T00:00:00+00:00"'


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (arrays.texts(["a", None, 'b"\\']), '{"a",NULL,"b\\"\\\\"}'),
        (arrays.texts(['a"', 'a"']), '{"a\\"","a\\""}'),
        (arrays.texts([None, None]), "{NULL,NULL}"),
        (arrays.texts([]), "{}"),
        (arrays.numbers([1, None, 0.5]), "{1,NULL,0.5}"),
        (arrays.numbers([2, 2]), "{2,2}"),
        (arrays.numbers([0.0, -0.0]), "{0.0,-0.0}"),
        (arrays.flags([True, False]), "{t,f}"),
        (arrays.uuids([UUID(int=255)]), "{000000000000000000000000000000ff}"),
        (arrays.instants([datetime(2026, 3, 1, tzinfo=UTC), None]), '{"2026-03-01T00:00:00+00:00",NULL}'),
        (arrays.instants([None, *[datetime(2026, 3, 1, tzinfo=UTC)] * 2]), f"{{NULL,{FIRST},{FIRST}}}"),
    ],
)
def test_what_is_written(text, written):
    assert text == written
