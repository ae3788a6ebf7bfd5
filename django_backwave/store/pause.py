"""Pause and resume: queues and job names of which workers claim nothing for now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django_backwave.core.limits import ACTOR_LENGTH
from django_backwave.core.protocol import PauseResult, ResumeResult
from django_backwave.models import Action, Pause
from django_backwave.store import clock
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import writing
from django_backwave.store.unreadable import sound_rows

if TYPE_CHECKING:
    from datetime import datetime
    from enum import Enum

QUEUE, NAME = Pause.Kind.QUEUE, Pause.Kind.NAME


class Pauses(NamedTuple):
    """Everything that is paused."""

    queues: frozenset[str]
    names: frozenset[str]


def pauses(*, using: str) -> Pauses:
    """Return what is paused. Each worker asks with each heartbeat."""
    rows = sound_rows(Pause.objects.using(using).only("kind", "target"))
    queues, names = (frozenset(row.target for row in rows if row.kind == wanted) for wanted in (QUEUE, NAME))
    return Pauses(queues, names)


def pause(
    kind: Pause.Kind, target: str, *, actor: str = "", using: str, now: datetime | None = None
) -> PauseResult:
    """Let workers claim nothing of a queue, or of a job name, from their next heartbeat on.

    What runs goes on. Joins the caller's transaction. Each call is recorded, for there is no other trace of a
    pause once it is over.
    """
    with writing(using):
        values = {"at": clock.instant(using, now), "actor": actor[:ACTOR_LENGTH]}
        _row, created = Pause.objects.using(using).get_or_create(kind=kind, target=target, defaults=values)
        result = PauseResult.PAUSED if created else PauseResult.ALREADY_PAUSED
        passing("pause: row written")
        _record("pause", kind, target, result, actor=actor, using=using, now=now)
    return result


def resume(
    kind: Pause.Kind, target: str, *, actor: str = "", using: str, now: datetime | None = None
) -> ResumeResult:
    """Let workers claim of a queue, or of a job name, again. As for ``pause`` each call is recorded."""
    with writing(using):
        deleted, _ = Pause.objects.using(using).filter(kind=kind, target=target).delete()
        result = ResumeResult.RESUMED if deleted else ResumeResult.NOT_PAUSED
        passing("resume: row deleted")
        _record("resume", kind, target, result, actor=actor, using=using, now=now)
    return result


def _record(
    verb: str, kind: str, target: str, result: Enum, *, actor: str, using: str, now: datetime | None
) -> None:
    column = "queue" if kind == QUEUE else "name"
    Action.objects.using(using).create(
        at=clock.instant(using, now),
        actor=actor[:ACTOR_LENGTH],
        verb=verb,
        result=result.value,
        **{column: target},
    )
