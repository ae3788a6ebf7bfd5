"""What waits, and whether anybody serves it: late jobs, queues, names, pauses, silent workers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from django_backwave.instants import to_utc
from django_backwave.models import Pause, Worker
from django_backwave.store import clock, monitor
from django_backwave.store.doctor.results import Limits, Result, Severity, Unavailable, counted, listed
from django_backwave.store.overview import SILENCE
from django_backwave.store.pause import pauses
from django_backwave.store.unreadable import sound_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime

    from django_backwave.store.doctor.rows import Row

#: Silent workers and pauses that are looked at.
MOST = 100


def oldest_due(rows: list[Row], *, using: str, now: datetime | None) -> dict[str, float]:
    """Return for how many seconds the oldest due job of each queue has been due, without paused ones."""
    at = clock.read(using, now)
    paused = pauses(using=using)
    ages: dict[str, float] = {}
    for row in rows:
        age = (at - to_utc(row.due_at)).total_seconds()
        if age > 0 and row.queue not in paused.queues and row.name not in paused.names:
            ages[row.queue] = max(age, ages.get(row.queue, 0.0))
    return ages


def check_late(ages: dict[str, float], limits: Limits) -> Iterator[Result]:
    """Tell of queues whose oldest due job has been due for long."""
    late = [queue for queue, age in ages.items() if age > limits.due_age]
    if late:
        worst = max(late, key=lambda queue: ages[queue])
        yield Result(
            check="late-jobs",
            severity=Severity.WARNING,
            text=f"{counted(len(late), 'queue')} with a job due for more than {limits.due_age:g} s: "
            f"{listed(sorted(late))}; the oldest for {ages[worst]:,.0f} s in {worst}.",
            remedy="Start more workers, or raise --max-due-age if this is expected.",
        )


def check_served(
    ages: dict[str, float], limits: Limits, *, using: str, now: datetime | None
) -> Iterator[Result]:
    """Tell of queues with due jobs that no live worker serves."""
    workers = monitor.live_workers(using=using, now=now)
    if any(worker.queues is None for worker in workers):
        return
    served = {queue for worker in workers for queue in worker.queues or ()}
    unserved = sorted(queue for queue, age in ages.items() if age > limits.unserved and queue not in served)
    if unserved:
        yield Result(
            check="unserved-queues",
            severity=Severity.WARNING,
            text=f"{counted(len(unserved), 'queue')} with due jobs and no live worker: {listed(unserved)}.",
            remedy="Start a worker with --queue for each of them, or one without --queue.",
        )


def check_names(
    rows: list[Row], known: Collection[str] | None, *, using: str, now: datetime | None
) -> Iterator[Result]:
    """Tell of jobs, ready or running, whose names neither this code nor a live worker knows."""
    if known is None:
        raise Unavailable("the modules that define handlers cannot be imported; run manage.py check")
    workers = monitor.live_workers(using=using, now=now)
    served = {*known, *(name for worker in workers for name in worker.names)}
    unknown = Counter(row.name for row in rows if row.name not in served)
    if unknown:
        names = [f"{name} ({count:,})" for name, count in unknown.most_common()]
        yield Result(
            check="unknown-names",
            severity=Severity.WARNING,
            text=f"{counted(len(unknown), 'job name')} that neither this code nor a live worker defines, "
            f"in {unknown.total():,} of {counted(len(rows), 'job')} looked at: {listed(names)}.",
            remedy="Deploy the code, keep the former name in aliases=, or cancel the jobs.",
        )


def check_pauses(limits: Limits, *, using: str, now: datetime | None) -> Iterator[Result]:
    """Tell of what has been paused for so long that it may have been forgotten."""
    before = clock.after(clock.read(using, now), -limits.pause_age)
    old = Pause.objects.using(using).filter(at__lte=before).order_by("at")
    held = [f"{pause} since {to_utc(pause.at):%Y-%m-%d %H:%M} UTC" for pause in sound_rows(old, MOST + 1)]
    if held:
        yield Result(
            check="pauses",
            severity=Severity.WARNING,
            text=f"{counted(min(len(held), MOST), 'pause', more=len(held) > MOST)} "
            f"of more than {limits.pause_age:g} s: {listed(held)}.",
            remedy="Resume what need not wait any more: a pause ends by a resume alone.",
        )


def check_silent(limits: Limits, *, using: str, now: datetime | None) -> Iterator[Result]:
    """Tell of workers that lately fell silent and have not ended in order."""
    at = clock.read(using, now)
    lately = (clock.after(at, -limits.silent_age), clock.after(at, -SILENCE))
    rows = Worker.objects.using(using).filter(seen_at__range=lately).order_by("-seen_at")
    names = list(rows.values_list("name", flat=True)[: MOST + 1])
    if names:
        yield Result(
            check="silent-workers",
            severity=Severity.WARNING,
            text=f"{counted(min(len(names), MOST), 'worker', more=len(names) > MOST)} "
            f"not heard of for more than {SILENCE:g} s: {listed(names)}.",
            remedy="Look why they died or cannot reach the database; after an hour this is told no more.",
        )
