"""`run_jobs()` takes and refuses schemas as a worker does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from django_backwave import JobState
from django_backwave.models import Job
from django_backwave.testing import RunError, run_jobs
from tests.testing.handlers import note, seen

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    seen.clear()
    return


def test_a_job_of_another_schema_is_an_error_that_names_both() -> None:
    job = note.enqueue(1)
    Job.objects.update(schema="note/2")

    with pytest.raises(RunError) as caught:
        run_jobs()

    assert str(caught.value).startswith(
        f"No worker could run tests.testing.handlers.note (job {job.id}, attempt 1): the job was stored with "
        "schema 'note/2', but tests.testing.handlers.note takes only jobs stored without a schema; use code "
        "that takes it, for example with accepts=('note/2',)."
    )
    assert seen == []


def test_it_is_quarantined_in_the_end_and_never_runs() -> None:
    note.enqueue(1)
    Job.objects.update(schema="note/2")

    runs = run_jobs(until=timedelta(hours=5), raise_errors=False)

    assert {run.outcome for run in runs} == {"unroutable"}
    assert runs[-1].result.state is JobState.QUARANTINED
    assert "schema 'note/2'" in runs[-1].result.cause
    assert seen == []
