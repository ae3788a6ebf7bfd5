"""``backwave_prune``: what it deletes, and what it only counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_backwave.core.states import JobState
from django_backwave.management.commands import backwave_prune
from django_backwave.models import Attempt, Job
from tests.factories import ready

pytestmark = pytest.mark.django_db


def ended(state: JobState, days: float) -> Job:
    """Return a job that ended some days ago, with an attempt."""
    job = ready(now=None)
    at = datetime.now(UTC) - timedelta(days=days)
    Job.objects.filter(pk=job.pk).update(state=state.value, finished_at=at)
    Attempt.objects.create(job_id=job.pk, number=1, worker="w", finished_at=at, outcome="succeeded")
    return job


def prune(*arguments: str) -> str:
    out = StringIO()
    call_command("backwave_prune", *arguments, stdout=out)
    return out.getvalue().strip()


def test_the_settings_ages_are_the_defaults(settings):
    settings.BACKWAVE = {"KEEP_DONE": timedelta(days=7), "KEEP_DEAD": None}
    old = ended(JobState.SUCCEEDED, days=8)
    kept = [ended(JobState.CANCELLED, days=6), ended(JobState.DEAD_LETTERED, days=400), ready(now=None)]

    assert prune() == "Deleted 1 job."

    assert set(Job.objects.values_list("pk", flat=True)) == {job.pk for job in kept}
    assert not Attempt.objects.filter(job_id=old.pk).exists()


def test_ages_may_be_given():
    ended(JobState.SUCCEEDED, days=2)
    ended(JobState.QUARANTINED, days=2)

    assert prune("--done-days", "1", "--dead-days", "1.5") == "Deleted 2 jobs."


def test_a_dry_run_deletes_nothing():
    ended(JobState.SUCCEEDED, days=8)

    assert prune("--dry-run") == "Would delete 1 job."
    assert Job.objects.count() == 1


def test_it_goes_on_until_nothing_old_is_left(monkeypatch):
    monkeypatch.setattr(backwave_prune, "SLICE", 2)
    monkeypatch.setattr(
        backwave_prune.prune, "__kwdefaults__", {**backwave_prune.prune.__kwdefaults__, "limit": 2}
    )
    for _ in range(5):
        ended(JobState.SUCCEEDED, days=8)

    assert prune() == "Deleted 5 jobs."


def test_a_wrong_age_is_refused():
    with pytest.raises(CommandError, match="must be a number of days between 0 and 100,000, got '-1'"):
        prune("--done-days=-1")
