"""Time-outs, expiry and asked-for retries as users write them, and what is refused."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

import django_backwave
from django_backwave import Backoff, Retry, job
from django_backwave.exceptions import BackWaveError, InvalidJob, TimedOut
from django_backwave.jobs import BackWaveTask
from django_backwave.models import Job
from tests.api import handlers

AT = datetime(2030, 1, 1, 12, tzinfo=UTC)
ECHO = "tests.api.handlers.echo"


def only_row():
    [row] = Job.objects.all()
    return row


# timeout=


@pytest.mark.parametrize(
    ("given", "seconds"), [(1, 1.0), (2.5, 2.5), (timedelta(minutes=5), 300.0), (None, None)]
)
def test_a_time_out_is_seconds_or_a_timedelta(given, seconds):
    task = BackWaveTask(func=handlers.plain, name="timed", timeout=given)

    assert task.timeout == seconds


@pytest.mark.parametrize(
    "value", [0, 0.5, -1, timedelta(milliseconds=999), 10**9, float("nan"), float("inf"), "60", True]
)
@pytest.mark.parametrize("option", ["timeout", "expires"])
def test_other_values_are_refused(option, value):
    with pytest.raises(InvalidJob) as caught:
        handlers.echo.using(**{option: value})

    assert str(caught.value).startswith(
        f"{option} of {ECHO} must be from 1 to 1,000,000,000 seconds or a timedelta, got "
    )


@pytest.mark.django_db
def test_a_time_out_is_stored_with_the_job():
    handlers.echo.using(timeout=timedelta(seconds=90)).enqueue()

    assert only_row().timeout_seconds == 90.0
    assert handlers.echo.get_result(str(only_row().pk)).task.timeout == 90.0


@pytest.mark.django_db
def test_without_one_none_is_stored():
    handlers.echo.enqueue()

    assert (only_row().timeout_seconds, only_row().expires_at) == (None, None)


# expires=


def test_expires_belongs_to_an_enqueue():
    with pytest.raises(TypeError, match=r"takes no option 'expires'. Write using\(expires=...\)."):
        job(expires=60)(handlers.plain)


@pytest.mark.django_db
def test_an_instant_is_stored_with_the_job():
    result = handlers.echo.using(expires=AT).enqueue()

    assert only_row().expires_at == AT
    assert handlers.echo.get_result(result.id).task.expires == AT


@pytest.mark.django_db
@pytest.mark.parametrize("given", [90, timedelta(seconds=90)])
def test_seconds_count_from_the_enqueue(given):
    """G10: by the database's clock."""
    handlers.echo.using(expires=given).enqueue()
    django_backwave.enqueue_many(handlers.echo.using(expires=given), [((), {}), ((), {})])

    for row in Job.objects.all():
        assert row.expires_at - row.enqueued_at == timedelta(seconds=90)


@pytest.mark.django_db
def test_seconds_count_from_each_enqueue_of_one_task():
    task = handlers.echo.using(expires=90)
    task.enqueue(), task.enqueue()

    first, second = Job.objects.order_by("pk")
    assert second.expires_at - first.expires_at == second.enqueued_at - first.enqueued_at


@pytest.mark.django_db
def test_an_instant_that_is_over_is_no_error():
    """The clocks of the machines may differ; the job never runs."""
    handlers.echo.using(expires=timezone.now() - timedelta(days=1)).enqueue()

    assert only_row().expires_at < only_row().enqueued_at


def test_a_naive_instant_is_refused():
    with pytest.raises(InvalidJob) as caught:
        handlers.echo.using(expires=AT.replace(tzinfo=None))

    assert str(caught.value).startswith(
        f"expires of {ECHO} must be an aware datetime, because USE_TZ is True; got datetime.datetime(2030, "
    )


def test_an_instant_that_does_not_exist_is_refused():
    far = datetime.max.replace(tzinfo=timezone.get_fixed_timezone(-600))

    with pytest.raises(InvalidJob, match=rf"expires of {ECHO} must be an instant that exists in UTC"):
        handlers.echo.using(expires=far)


@pytest.mark.django_db
def test_without_time_zones_it_is_naive_and_local(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Karachi"
    with pytest.raises(InvalidJob, match="must be a naive datetime in TIME_ZONE, because USE_TZ is False"):
        handlers.echo.using(expires=AT)

    result = handlers.echo.using(expires=datetime(2030, 1, 1, 17)).enqueue()
    later = handlers.echo.using(expires=90).enqueue()

    settings.USE_TZ = True
    assert Job.objects.get(pk=result.id).expires_at == AT
    row = Job.objects.get(pk=later.id)
    assert row.expires_at - row.enqueued_at == timedelta(seconds=90)


@pytest.mark.django_db
@pytest.mark.parametrize("expires", [AT, AT - timedelta(seconds=1)])
def test_a_job_that_would_expire_before_it_is_due_is_refused(expires):
    task = handlers.echo.using(run_after=AT, expires=expires)

    with pytest.raises(
        InvalidJob, match=rf"expires of {ECHO} must be later than run_after, or the job never"
    ):
        task.enqueue()
    handlers.echo.using(run_after=AT, expires=AT + timedelta(seconds=1)).enqueue()
    assert only_row().due_at == AT


def test_it_survives_pickling():
    task = handlers.echo.using(timeout=9, expires=AT)

    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301 - our own bytes


# Retry


@pytest.mark.parametrize(("after", "seconds"), [(1, 1.0), (2.5, 2.5), (timedelta(minutes=5), 300.0)])
def test_a_retry_says_when(after, seconds):
    assert Retry(after=after).seconds == Retry(after).seconds == seconds


@pytest.mark.parametrize(
    ("after", "error", "told"),
    [
        (0.5, ValueError, "Retry takes at least 1 second and less than 10**9, got 0.5."),
        (timedelta(0), ValueError, "Retry takes at least 1 second"),
        (float("nan"), ValueError, "Retry takes at least 1 second"),
        (10**9, ValueError, "Retry takes at least 1 second"),
        ("60", TypeError, "Retry takes seconds or a timedelta, got '60'."),
        (True, TypeError, "Retry takes seconds or a timedelta, got True."),
        (None, TypeError, "Retry takes seconds or a timedelta, got None."),
    ],
)
def test_a_retry_without_a_sensible_delay_is_refused_in_the_handler(after, error, told):
    with pytest.raises(error) as caught:
        Retry(after=after)

    assert str(caught.value).startswith(told)


def test_a_retry_tells_its_reason():
    assert str(Retry(after=60, reason="no answer")) == "no answer"
    assert str(Retry(after=60)) == "again in 60 s"


def test_a_retry_is_never_final():
    """Whatever the options say of exceptions: the handler knows better."""
    for options in ({"retry_on": OSError}, {"give_up_on": Exception}):
        task = BackWaveTask(func=handlers.plain, name="final", backoff=Backoff(), **options)
        assert not task.is_final(Retry(after=60))
        assert task.is_final(ValueError())


def test_a_time_out_is_an_error_of_ours():
    assert issubclass(TimedOut, BackWaveError)
