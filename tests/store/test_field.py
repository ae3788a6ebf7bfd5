"""Fields: instants in UTC, text byte for byte and JSON as it was given, on every database (G10)."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from django.core import serializers
from django.db import connection
from django.db.models import F, Max
from hypothesis import given, settings
from hypothesis import strategies as st

from django_backwave.models import Job
from django_backwave.models.fields import (
    EncodedJSON,
    ExactCharField,
    InstantField,
    JSONTextField,
    decode_json,
    encode_json,
    to_rim,
    to_utc,
)
from tests.factories import NOW, ready

pytestmark = pytest.mark.django_db

JSON = {
    "large float": [1e22, 1e16, 1.7976931348623157e308],
    "small float": [5e-324, 0.1, 1 / 3],
    "float that is whole": [1.0, 100.0],
    "negative zero": [-0.0, 0.0],
    "big integer": [2**53 + 1, 2**64, -(10**40)],
    "key order": {"b": 1, "a": {"z": 1, "y": 2}},
    "emoji": {"🎉": "naïve ☃ 𝄞"},
    "escapes": 'quote " backslash \\ slash / newline \n tab \t',
    "NUL, escaped": "a\0b",
    "percent": "100 % of %s and %(name)s",
    "trailing space": "x ",
    "lone values": [None, True, False, "", [], {}],
}


@pytest.mark.parametrize("value", JSON.values(), ids=JSON)
@pytest.mark.parametrize("encoded", [False, True], ids=["value", "text"])
def test_json_comes_out_as_it_went_in(value, encoded):
    """A job's arguments and output are the same after the database had them, to the last bit."""
    job = ready()
    Job.objects.update(output=EncodedJSON(encode_json(value)) if encoded else value)

    output = Job.objects.get(pk=job.pk).output

    assert repr(output) == repr(value)  # tells 1 from 1.0 and from True, and 0.0 from -0.0


@settings(max_examples=50, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_encoding_loses_nothing(value):
    """Whatever JSON can say is the same after encoding and decoding."""
    assert repr(decode_json(encode_json(value))) == repr(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_json_is_refused(value):
    """NaN and infinities are no JSON, and never reach the database."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json(value)


def test_no_output_is_no_json_null():
    """A job without an output and one whose handler returned None are told apart."""
    without, null = ready(), ready()
    Job.objects.filter(pk=null.pk).update(output=EncodedJSON("null"))

    assert list(Job.objects.filter(output=None)) == [without]
    assert Job.objects.get(pk=null.pk).output is None


@pytest.mark.parametrize("use_tz", [True, False], ids=["USE_TZ on", "USE_TZ off"])
def test_rows_survive_dump_and_load(settings, use_tz):
    """`dumpdata` and `loaddata` give back the very row, whatever USE_TZ says."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Karachi"
    job = ready(output={"a": [1e22]}, finished_at=NOW)
    before = Job.objects.values().get()
    text = serializers.serialize("json", [job])
    Job.objects.all().delete()

    for loaded in serializers.deserialize("json", text):
        loaded.save()

    assert Job.objects.values().get() == before


@pytest.mark.parametrize("field", ["name", "queue", "worker"])
def test_text_compares_byte_for_byte(field):
    """Names, queues and workers are told apart by case, accents, trailing spaces and composition."""
    texts = ["order:a", "order:A", "order:a ", "order:\u00e4", "order:a\u0308", " order:a", "\U0001f389"]
    jobs = {text: ready(**{field: text}) for text in texts}

    for text, job in jobs.items():
        assert list(Job.objects.filter(**{field: text})) == [job]
    assert list(Job.objects.order_by(field).values_list(field, flat=True)) == sorted(texts, key=str.encode)


def test_exact_text_keeps_its_bytes():
    """Text comes out as it went in, also what another collation would change."""
    text = "naïve 🎉 𝄞 \t\r\n trailing  "
    job = ready(cause=text)

    assert Job.objects.get(pk=job.pk).cause == text


WINTER = datetime(2026, 1, 15, 12, 0, 0, 123456, tzinfo=UTC)
INSTANTS = {
    "in UTC": WINTER,
    "in another zone": WINTER.astimezone(timezone(timedelta(hours=5, minutes=30))),
    "whole second": WINTER.replace(microsecond=0),
    "first hour of an hour that comes twice": datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
    "second hour of an hour that comes twice": datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
    "beside an hour that never comes": datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
    "long ago": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
}
zones = pytest.mark.parametrize("zone", ["UTC", "Asia/Karachi", "Europe/Berlin"])
use_tz_or_not = pytest.mark.parametrize("use_tz", [True, False], ids=["USE_TZ on", "USE_TZ off"])


@zones
@use_tz_or_not
@pytest.mark.parametrize("instant", INSTANTS.values(), ids=INSTANTS)
def test_instants_come_out_as_they_went_in(settings, instant, use_tz, zone):
    """An instant is the same after the database had it, at every hour of the year, in every way."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    job = ready()
    Job.objects.update(finished_at=instant)

    read = [
        Job.objects.get(pk=job.pk).finished_at,
        Job.objects.values_list("finished_at", flat=True).get(),
        Job.objects.annotate(again=F("finished_at")).get().again,
        Job.objects.aggregate(last=Max("finished_at"))["last"],
    ]

    assert [to_utc(value) for value in read] == [instant] * 4
    assert {value.tzinfo for value in read} == ({UTC} if use_tz else {None})
    assert Job.objects.filter(finished_at=instant).count() == 1
    assert Job.objects.filter(finished_at__gt=instant).count() == 0
    assert Job.objects.filter(finished_at__lt=instant + timedelta(microseconds=1)).count() == 1


@zones
@use_tz_or_not
def test_a_row_saved_again_stays(settings, use_tz, zone):
    """G10: what users read and save again is the same instant, also in an hour that comes twice."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    ready()
    for instant in INSTANTS.values():
        Job.objects.update(finished_at=instant)

        job = Job.objects.get()
        job.save()

        assert to_utc(Job.objects.get().finished_at) == instant


@zones
@use_tz_or_not
def test_instants_are_stored_in_order(settings, use_tz, zone):
    """Instants sort by time, with and without a fraction of a second, across a change of clocks."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    start = datetime(2026, 10, 24, 23, 0, tzinfo=UTC)
    instants = [start + timedelta(minutes=30 * n, microseconds=n % 3) for n in range(8)]
    jobs = {instant: ready(run_after=instant) for instant in reversed(instants)}

    found = Job.objects.order_by("due_at").values_list("pk", flat=True)

    assert list(found) == [jobs[instant].pk for instant in instants]


def test_users_see_djangos_custom(settings):
    """Without USE_TZ users see naive local time, and with it aware instants in UTC."""
    settings.TIME_ZONE = "Asia/Karachi"
    settings.USE_TZ = False
    assert to_rim(NOW) == datetime(2026, 3, 1, 17)
    assert to_utc(datetime(2026, 3, 1, 17)) == NOW
    settings.USE_TZ = True
    assert to_rim(NOW) is NOW


@pytest.mark.parametrize("given", ["2026-03-01T12:00:00Z", "2026-03-01 17:00:00+05:00"])
def test_text_means_an_instant(given):
    """Fixtures and the admin's filters give instants as text."""
    ready()

    assert Job.objects.filter(due_at=given).count() == 1


@pytest.mark.parametrize("field", [ExactCharField(max_length=9), JSONTextField(), InstantField()], ids=repr)
def test_migrations_can_write_the_field(field):
    """A field is made again from what a migration says of it, without a vendor's collation."""
    name, path, args, options = field.deconstruct()

    again = type(field)(*args, **options)

    assert path.startswith("django_backwave.models.fields.")
    assert "db_collation" not in options
    assert (name, again.deconstruct()) == (None, field.deconstruct())


def test_no_instant():
    """A column without an instant stays without."""
    assert InstantField().get_prep_value(None) is None
    assert InstantField().get_db_prep_value(None, connection) is None
    assert isinstance(InstantField().get_prep_value(datetime(2026, 3, 1, tzinfo=UTC)), datetime)
    assert isinstance(InstantField().get_prep_value(date(2026, 3, 1).isoformat() + "T00Z"), datetime)
