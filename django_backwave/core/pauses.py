"""What operators have paused, as one worker knows it, and how far its claims have looked past paused names.

A paused queue is neither claimed from nor looked at. A paused name stands in the way: no index finds "the
first due job of any other name", so each claim looks at a bounded number of jobs and says how far it came.
The next one goes on from there. Such places are hints: they are forgotten when what is paused changes, and
a while after the end of the queue was reached, for a job may have come up before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave.core.protocol import Claim

if TYPE_CHECKING:
    from django_backwave.core.protocol import ClaimAnswered, Claimed, Paused, Place

#: Seconds after which a queue is looked through from its head again while names are paused.
LOOK_AGAIN = 30.0


class Pauses:
    """What is paused; nothing is known until the first heartbeat has read it."""

    def __init__(self) -> None:
        """Begin without knowing anything."""
        self.known = False
        self.queues: frozenset[str] = frozenset()
        self._names: tuple[str, ...] = ()
        self._past: dict[str, tuple[Place, ...]] = {}
        self._ended_at: dict[str, float] = {}

    def learn(self, event: Paused) -> bool:
        """Take over what a heartbeat has read; return whether that is news."""
        names = tuple(sorted(event.names))
        news = (self.known, self.queues, self._names) != (True, event.queues, names)
        self.known, self.queues = True, event.queues
        if names != self._names:
            self._names = names
            self._past.clear()
            self._ended_at.clear()
        return news

    def cover(self, job: Claimed) -> bool:
        """Whether a job is of a queue or a name that is paused."""
        return job.queue in self.queues or job.name in self._names

    def claim(
        self,
        queue: str,
        limit: int,
        slots: int,
        now: float,
        *,
        past: tuple[Place, ...] = (),
        also: tuple[str, ...] = (),
    ) -> Claim:
        """Return the command that claims from a queue past what is paused, and from no other one.

        If no name is paused, it looks behind the places ``past``, and in other queues ``also``.
        """
        if not self._names:
            return Claim(queue, limit, slots, past=past, also=also)
        if now - self._ended_at.get(queue, now) >= LOOK_AGAIN:
            del self._past[queue], self._ended_at[queue]
        return Claim(queue, limit, slots, self._names, self._past.get(queue, ()))

    def looked(self, event: ClaimAnswered) -> bool:
        """Keep how far a claim has looked; return whether it stopped before the end of the queue."""
        command = event.command
        if command.without != self._names or not self._names:
            return False
        self._past[command.queue] = event.past
        if event.past != command.past:
            return True
        if len(event.jobs) + event.late + event.passed < command.limit:
            self._ended_at.setdefault(command.queue, event.now)
        return False
