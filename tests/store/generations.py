"""Jobs with keys for tests, and what an enqueue of one comes to."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django_backwave.core.identity import Intent, OnConflict, Verdict, Window
from django_backwave.core.outcome import Outcome
from django_backwave.core.states import JobState
from django_backwave.models import Job, Key
from django_backwave.store import keys
from django_backwave.store.claim import claim
from django_backwave.store.enqueue import NewJob
from django_backwave.store.keys import Landed
from django_backwave.store.operate import cancel
from django_backwave.store.retention import prune
from tests.factories import LEASE, NOW, SUCCEEDED, WORKER, after, new_job, report, send

NAME = "shop.send_receipt"
UNFINISHED = [JobState.READY, JobState.WAITING, JobState.RUNNING]


def keyed(
    key: str = "k",
    on_conflict: str = "return",
    window: str | float = "forever",
    names: tuple[str, ...] = (NAME,),
    **changes: Any,
) -> NewJob:
    """Return a job with a key, to be enqueued."""
    until = Window(window) if isinstance(window, str) else window
    intent = Intent(key, OnConflict(on_conflict), until, frozenset(names))
    return new_job(name=names[0], intent=intent, **changes)


def enqueue(
    *jobs: NewJob, now: datetime | None = NOW, using: str = "default", **options: Any
) -> list[tuple[Verdict, int]]:
    """Enqueue jobs in one batch, or one that the options tell; say what each came to, and its generation."""
    landed = keys.enqueue(jobs or [keyed(**options)], using=using, now=now)
    return [(end.verdict, end.generation) for end in landed]


def land(*, now: datetime | None = NOW, using: str = "default", **options: Any) -> Landed:
    """Enqueue one job, and return all of what that came to."""
    [landed] = keys.enqueue([keyed(**options)], using=using, now=now)
    return landed


def refused(**options: Any) -> Landed:
    """Enqueue a job that its key does not admit, and return what is in the way."""
    try:
        told = enqueue(**options)
    except keys.Refused as error:
        return error.landed
    raise AssertionError(f"it was admitted: {told}")


def take(queue: str = "default", *, now: datetime | None = NOW, using: str = "default") -> Any:
    """Claim the next job of a queue; None if there is none."""
    taken = claim(queue, 1, worker=WORKER, lease=LEASE, using=using, now=now)
    return taken[0] if taken else None


def settle(outcome: Outcome = SUCCEEDED, *, now: datetime = NOW, **changes: Any) -> Any:
    """Claim the next job, report its end, and return it."""
    taken = take(now=now)
    send(report(taken, outcome, **changes), now=now)
    return taken


def generations(key: str = "k") -> list[tuple[int, JobState]]:
    """Return the jobs that are there of a key, oldest generation first: number and state."""
    rows = Job.objects.filter(key=key).order_by("generation").values_list("generation", "state")
    return [(number, JobState(state)) for number, state in rows]


def remembered(key: str = "k") -> Key:
    """Return the row of a key in the queue "default"."""
    return Key.objects.get(pk=Key.id_of("default", key))


# What a transaction that may crash finds: see `crashes.py`.


def one_to_replace() -> NewJob:
    """Return a job that replaces one that waits."""
    land(now=after(-9), tags=(("shop", "north"),))
    return keyed(on_conflict="replace", priority=5, tags=(("shop", "south"),))


def one_to_run_again() -> NewJob:
    """Return a job that is the second generation of its key."""
    cancel([land(window="unfinished", now=after(-9)).job_id], using="default", now=after(-9))
    return keyed(window="unfinished", tags=(("shop", "north"),))


def one_to_send_back() -> list[UUID]:
    """Return the id of a job that was cancelled, alone in a list."""
    return list(cancel([land().job_id], using="default", now=NOW))


def one_to_forget() -> None:
    """Leave a key of which no job is left, and whose window is over."""
    one_to_run_again()
    prune(keep_done=1.0, keep_dead=1.0, using="default", now=NOW)
