"""Retention: what ended long ago is deleted, with exactly what hangs on it, in bounded slices."""

from __future__ import annotations

import pytest
from django.db.models.signals import post_delete

from django_backwave.core.states import TERMINAL, JobState
from django_backwave.models import Attempt, Job, Worker
from django_backwave.store import retention
from django_backwave.store.retention import WORKER_SILENCE, prune_workers
from tests.app.models import Export, Invoice
from tests.factories import NOW, WORKER, after, claimed, new_job, outcomes, ready
from tests.store.races import locked

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

DONE, DEAD = 100.0, 1000.0  # seconds that jobs of the two classes are kept


def prune(*, keep_done=DONE, keep_dead=DEAD, limit=100, now=NOW):
    return retention.prune(keep_done=keep_done, keep_dead=keep_dead, limit=limit, using="default", now=now)


def ended(state, ago):
    """Return a job with one attempt that ended some seconds ago."""
    job = ready(state=state, finished_at=after(-ago))
    Attempt.objects.create(
        job_id=job.pk, number=1, worker=WORKER, finished_at=after(-ago), outcome="succeeded"
    )
    return job


def left():
    return set(Job.objects.values_list("pk", flat=True))


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_age_and_class_decide(state):
    """A job is deleted once it ended longer ago than its class is kept, and not an instant before."""
    keep = DONE if state in (JobState.SUCCEEDED, JobState.CANCELLED) else DEAD
    ended(state, keep + 0.000001)
    young = ended(state, keep)

    assert prune() == 1
    assert left() == {young.pk}
    assert prune(now=after(0.000001)) == 1


def test_a_class_may_be_kept_for_ever():
    """None keeps a class of jobs for ever, and only that one."""
    done, dead = ended(JobState.SUCCEEDED, 10**6), ended(JobState.DEAD_LETTERED, 10**6)

    assert prune(keep_done=None, keep_dead=None) == 0
    assert prune(keep_dead=None) == 1
    assert left() == {dead.pk}
    ended(JobState.CANCELLED, 10**6)
    assert prune(keep_done=None) == 1
    assert done.pk not in left()


def test_what_has_not_ended_stays():
    """G2: no job is ever pruned before it ended, however old it is."""
    waiting, due = ready(state=JobState.WAITING), ready()
    running = claimed()

    assert prune(now=after(10**8)) == 0
    assert left() == {waiting.pk, due.pk, running.job_id}


def test_bounded_oldest_first():
    """A prune deletes so many jobs at most, the oldest of a state before the others."""
    jobs = [ended(JobState.SUCCEEDED, 200 + seconds) for seconds in (5, 9, 1, 7)]
    dead = ended(JobState.QUARANTINED, 5000)

    assert prune(limit=3) == 3
    assert left() == {jobs[2].pk, dead.pk}
    assert prune(limit=2) == 2
    assert prune(limit=2) == 0


def test_attempts_go_with_exactly_their_jobs():
    """A job's history goes with it, and nobody else's."""
    old, young = ended(JobState.SUCCEEDED, 101), ended(JobState.SUCCEEDED, 99)

    prune()

    assert (outcomes(old), outcomes(young)) == ([], [(1, "succeeded")])


def test_what_hangs_on_a_job_goes_by_its_own_rule():
    """Another app's rows that point at a pruned job are treated as their on_delete says."""
    old, young = ended(JobState.SUCCEEDED, 101), ended(JobState.SUCCEEDED, 99)
    of_old, of_young = Export.objects.create(job=old), Export.objects.create(job=young)

    assert prune() == 1

    of_old.refresh_from_db()
    of_young.refresh_from_db()
    assert (of_old.job_id, of_young.job_id) == (None, young.pk)


def test_signals_of_deletion_are_sent():
    """Whoever listens for deleted jobs hears of pruned ones: they go through Django's collector."""
    ended(JobState.SUCCEEDED, 101)
    heard = []

    def listen(instance, **_):
        heard.append(instance)

    post_delete.connect(listen, sender=Job)
    try:
        prune()
    finally:
        post_delete.disconnect(listen, sender=Job)

    assert len(heard) == 1


def test_the_real_clock_prunes():
    """G10: without a virtual clock the database's tells what is old."""
    ready(state=JobState.SUCCEEDED, finished_at=after(-(10**9)))
    young = ready(state=JobState.SUCCEEDED, now=None)
    Job.objects.filter(pk=young.pk).update(finished_at=young.enqueued_at)

    assert prune(now=None) == 1
    assert left() == {young.pk}


def test_a_few_statements_a_slice(django_assert_max_num_queries):
    """G12: the number of statements grows with the classes, not with the jobs."""
    for _ in range(30):
        ended(JobState.SUCCEEDED, 101)

    with django_assert_max_num_queries(22):
        assert prune() == 30


@committing
def test_a_locked_job_delays_no_prune():
    """A job whose row somebody has locked waits for the next prune; the others do not."""
    stuck, free = ended(JobState.SUCCEEDED, 102), ended(JobState.SUCCEEDED, 101)

    with locked(stuck):
        assert prune() == 1

    assert free.pk not in left()
    assert prune() == 1
    assert Attempt.objects.count() == 0


def test_silent_workers_are_forgotten():
    """The row of a worker goes after a day of silence; it holds no job, whatever it says."""
    for name, silence in (("gone", WORKER_SILENCE + 1), ("there", WORKER_SILENCE)):
        Worker.objects.create(
            name=name, host="h", pid=1, started_at=NOW, names=[], concurrency=1, version="1",
            seen_at=after(-silence),
        )  # fmt: skip
    job = claimed(worker="gone")

    assert prune_workers(using="default", now=NOW) == 1
    assert [worker.name for worker in Worker.objects.all()] == ["there"]
    assert Job.objects.get(pk=job.job_id).state == JobState.RUNNING


def test_ids_are_never_used_again():
    """A pruned job's id belongs to no later job."""
    job = ended(JobState.SUCCEEDED, 101)
    prune()

    assert new_job().id > job.pk


def test_a_protected_job_stays_and_the_others_go():
    """A foreign key with PROTECT keeps its job, and stops no prune."""
    kept, gone = ended(JobState.SUCCEEDED, 102), ended(JobState.SUCCEEDED, 101)
    Invoice.objects.create(job_id=kept.pk)

    assert prune() == 1

    assert kept.pk in left()
    assert gone.pk not in left()
