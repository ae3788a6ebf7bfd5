"""Instants that Python does not have, written by hand: they are read as the nearest, or as none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.models import Max, Min

from django_backwave.instants import to_utc
from django_backwave.models import Job
from django_backwave.models.fields import by_instant
from tests.factories import ready
from tests.fuzz.garbage import write

pytestmark = pytest.mark.django_db

FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)

#: What people can write, by vendor, and what is read of it.
READ = {
    "postgresql": {
        "'-infinity'": FIRST,
        "'4713-01-01 00:00:00 BC'": FIRST,
        "'infinity'": LAST,
        "'294276-12-31'": LAST,
    },
    "sqlite": dict.fromkeys(("5", "1.5", "x'ff'", "'never'", "'2020-02-31 00:00:00'", "'0000-01-01'")),
    "mysql": dict.fromkeys(("'0000-00-00 00:00:00'", "'2020-00-00 00:00:00'")),
}[connection.vendor]
with_time_zones = pytest.mark.parametrize("use_tz", [True, False], ids=["USE_TZ on", "USE_TZ off"])


@with_time_zones
@pytest.mark.parametrize("literal", READ)
def test_an_instant_that_python_has_not_hides_no_row(settings, literal, use_tz):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Karachi"
    job = ready()
    assert write(Job, job.pk, "due_at", literal)

    read = [
        Job.objects.get(pk=job.pk).due_at,
        Job.objects.values_list("due_at", flat=True).get(),
        Job.objects.aggregate(at=Min("due_at"))["at"],
        Job.objects.aggregate(at=Max("due_at"))["at"],
    ]

    assert [at and to_utc(at) for at in read] == [READ[literal]] * 4


@with_time_zones
def test_no_instant_is_read_as_none(settings, use_tz):
    """PostgreSQL's LEAST and GREATEST ignore NULL, and would make the end of time of it."""
    settings.USE_TZ = use_tz
    job = ready(finished_at=None)

    assert Job.objects.get(pk=job.pk).finished_at is None
    assert Job.objects.values_list("finished_at", flat=True).get() is None
    assert Job.objects.aggregate(last=Max("finished_at"))["last"] is None


def test_the_order_of_an_instant_that_is_selected_names_the_bare_column():
    """What is made of the column for reading has no index."""
    rows = Job.objects.order_by(by_instant("due_at", descending=True), "pk").values_list("due_at", "pk")

    order = str(rows.query).partition("ORDER BY")[2]

    assert "CASE" not in order
    assert "due_at" in order
