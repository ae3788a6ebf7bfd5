"""django-ox, with its own bulk interface."""

from __future__ import annotations

from django_ox.bulk import enqueue_many as ox_enqueue_many

from benchmarks.apps.django_tasks import TASK, connect, enqueue, prepare

__all__ = ["connect", "enqueue", "enqueue_many", "prepare"]


def enqueue_many(numbers: list[int]) -> None:
    """Enqueue jobs in one transaction."""
    ox_enqueue_many(TASK, [((number,), {}) for number in numbers])
