"""Run again: settled work as the next generation of its key, for an operator, recorded with its effect.

The row is copied, and no handler is asked: it also works where the code is not at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import ExpressionWrapper, F

from django_backwave.core.identity import Intent, OnConflict, Window
from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import RunAgain, RunAgainResult
from django_backwave.core.states import UNFINISHED
from django_backwave.ids import new_ids
from django_backwave.instants import to_utc
from django_backwave.models import Job, Key, Tag
from django_backwave.models.fields import ExactTextField
from django_backwave.store import clock, keys
from django_backwave.store.enqueue import NewJob
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import writing
from django_backwave.store.operate import record
from django_backwave.store.unreadable import sound_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import datetime
    from uuid import UUID

    #: A queue and a key.
    type Place = tuple[str, str]


def _itself(name: str) -> frozenset[str]:
    return frozenset({name})


def run_again(
    job_ids: Iterable[UUID],
    *,
    names: Callable[[str], frozenset[str]] = _itself,
    actor: str = "",
    using: str,
    now: datetime | None = None,
) -> dict[UUID, RunAgain]:
    """Enqueue the work of jobs once more, due now, and return what that did for each one that exists.

    A job with a key whose generations are all settled has its next generation: a new job with the payload,
    headers, tags, schema, priority and policy of this one, which stays as it is. Of several generations of
    one key the newest is run again. ``names`` gives all names of the task that has a job name. Joins the
    caller's transaction. What was done is recorded under ``actor``, if that is given, for both jobs.
    """
    with writing(using):
        ids = list(job_ids)
        busy = keys.hold(ids, using=using, now=now)
        olds = _jobs(ids, using)
        rows = _rows(olds, using)
        results = {old.pk: _result(old, rows.get(_place(old)), busy, names) for old in olds}
        allowed = [old for old in olds if results[old.pk] is RunAgainResult.ENQUEUED]
        news = _copies(allowed, rows, using)
        landed = keys.enqueue(news, using=using, now=now) if news else []
        passing("run again: jobs written")
        begun = {
            old.pk: RunAgain(RunAgainResult.ENQUEUED, end.job_id, end.generation)
            for old, end in zip(allowed, landed, strict=True)
        }
        _record(allowed, begun, actor=actor, at=clock.instant(using, now), using=using)
        refused = [old for old in olds if old.pk not in begun]
        return begun | _refusals(refused, results, rows, using)


def _result(
    old: Job, row: Key | None, busy: Collection[UUID], names: Callable[[str], frozenset[str]]
) -> RunAgainResult:
    if old.key is None:
        return RunAgainResult.NO_KEY
    if row is not None and row.name != old.name and row.name not in names(old.name):
        return RunAgainResult.KEY_TAKEN
    return RunAgainResult.KEY_BUSY if old.pk in busy else RunAgainResult.ENQUEUED


def _refusals(
    refused: list[Job], results: dict[UUID, RunAgainResult], rows: dict[Place, Key], using: str
) -> dict[UUID, RunAgain]:
    """Say of each job that was refused which generation is in the way, if there is one."""
    unfinished = _unfinished(refused, using)
    told = {}
    for old in refused:
        row = rows.get(_place(old))
        newest = (None, None) if row is None else (row.job_id, row.generation)
        told[old.pk] = RunAgain(results[old.pk], *unfinished.get(_place(old), newest))
    return told


# What is read: keys are locked, so that no generation of them begins meanwhile.


def _jobs(ids: list[UUID], using: str) -> list[Any]:
    """Return the jobs in the order in which they are to be run again, with their JSON as it is stored."""
    jobs = Job.objects.using(using).filter(pk__in=ids).order_by("pk")
    jobs = jobs.defer("payload", "output", "headers", "progress", "cause")
    return sound_rows(jobs.annotate(payload_text=_text("payload"), headers_text=_text("headers")))


def _text(column: str) -> Any:
    return ExpressionWrapper(F(column), output_field=ExactTextField())


def _place(job: Job) -> Place:
    return job.queue, job.key or ""


def _rows(jobs: Iterable[Job], using: str) -> dict[Place, Key]:
    """Return the rows of the jobs' keys."""
    ids = {Key.id_of(*_place(job)) for job in jobs if job.key is not None}
    return {(row.queue, row.key): row for row in Key.objects.using(using).filter(pk__in=ids)}


def _unfinished(jobs: Iterable[Job], using: str) -> dict[Place, tuple[UUID, int]]:
    """Return the newest unfinished generation of the jobs' keys, and of others: its job and its number."""
    places = {_place(job) for job in jobs if job.key is not None}
    found = Job.objects.using(using).filter(key__in={key for _, key in places}, state__in=UNFINISHED)
    found = found.filter(queue__in={queue for queue, _ in places}).order_by("generation")
    rows = found.values_list("queue", "key", "pk", "generation")
    return {(queue, key or ""): (pk, generation or 0) for queue, key, pk, generation in rows}


# What is written.


def _copies(olds: list[Any], rows: dict[Place, Key], using: str) -> list[NewJob]:
    """Return the jobs that do the same work again. They may start at any time: no ``expires`` is copied."""
    tags: dict[UUID, list[tuple[str, str]]] = {old.pk: [] for old in olds}
    for tag in sound_rows(Tag.objects.using(using).filter(job_id__in=tags).order_by("pk")):
        tags[tag.job_id].append((tag.key, tag.value))
    return [
        NewJob(
            id=job_id,
            name=old.name,
            queue=old.queue,
            priority=old.priority,
            payload=old.payload_text,
            run_after=None,
            max_attempts=old.max_attempts,
            backoff=Backoff.of_row(old.backoff_base, old.backoff_cap, old.backoff_jitter),
            lease_seconds=old.lease_seconds,
            headers=old.headers_text,
            tags=tuple(tags[old.pk]),
            timeout_seconds=old.timeout_seconds,
            intent=_intent(old, rows.get(_place(old))),
            schema=old.schema,
        )
        for job_id, old in zip(new_ids(len(olds)), olds, strict=True)
    ]


def _intent(old: Job, row: Key | None) -> Intent:
    """Return what the enqueue says of the key: another generation, remembered as long as the last one."""
    names = {old.name} if row is None else {old.name, row.name}
    return Intent(old.key or "", OnConflict.NEW_GENERATION, _window(row), frozenset(names))


def _window(row: Key | None) -> Window | float:
    """Return for how long a key was remembered: the row says until when, and not why."""
    if row is None or row.forget_at is None:
        return Window.FOREVER
    seconds = (to_utc(row.forget_at) - to_utc(row.enqueued_at)).total_seconds()
    return seconds if seconds > 0 else Window.UNFINISHED


def _record(olds: list[Job], begun: dict[UUID, RunAgain], *, actor: str, at: Any, using: str) -> None:
    """Write an Action for each job that was run again, and one for each that came of it."""
    told: dict[UUID, str] = {}
    for old in olds:
        _, job_id, generation = begun[old.pk]
        told[old.pk] = f"generation {generation}, job {job_id}"
        if job_id is not None:
            told[job_id] = f"of generation {old.generation}, job {old.pk}"
    record("run_again", told, actor=actor, at=at, using=using)
