"""How far claims have come in each queue: a hint that spares the next one what is no longer there.

While an old snapshot is open somewhere, PostgreSQL keeps the index entries of all that was claimed since, and
every claim that began at the head of the queue would walk over them. A hint can hide a job that came up
before it, so it is short-lived: it goes when a claim comes back short, when jobs are handed back, and after a
second; or later, if a claim from the head has become so dear that it would take a good part of the time. A
wake-up leaves it alone: what is enqueued while others wait is due after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave.core.protocol import Place

if TYPE_CHECKING:
    from django_backwave.core.protocol import ClaimAnswered

#: Seconds after which a queue is claimed from its head again, at least and at most; and in between so many
#: times as long as such a claim has taken.
FROM_THE_HEAD_EVERY, FROM_THE_HEAD_CAP = 1.0, 15.0
SHARE = 30


class Watermarks:
    """The places of the jobs claimed last, by queue and priority."""

    def __init__(self) -> None:
        """Begin at every queue's head."""
        self._places: dict[str, dict[int, Place]] = {}
        self._until: dict[str, float] = {}

    def past(self, queue: str, now: float) -> tuple[Place, ...]:
        """Return the places behind which the next claim of a queue may look."""
        if now >= self._until.get(queue, now):
            self.drop(queue)
        return tuple(self._places.get(queue, {}).values())

    def answered(self, event: ClaimAnswered) -> None:
        """Take note of how far a claim has come; only one that took all from its first queue says so."""
        queue = event.command.queue
        if len(event.jobs) < event.command.limit or event.jobs[-1].queue != queue:
            self.drop(queue)
            return
        if queue not in self._until:
            rest = SHARE * (event.now - event.sent_at)
            self._until[queue] = event.now + min(max(FROM_THE_HEAD_EVERY, rest), FROM_THE_HEAD_CAP)
        last = {job.priority: job for job in event.jobs}  # in queue order
        places = self._places.setdefault(queue, {})
        places |= {number: Place(number, job.due_at, job.job_id) for number, job in last.items()}

    def drop(self, queue: str | None = None) -> None:
        """Begin at a queue's head again; at every queue's, if none is given."""
        if queue is None:
            self._places.clear()
            self._until.clear()
        else:
            self._places.pop(queue, None)
            self._until.pop(queue, None)
