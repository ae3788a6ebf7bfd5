"""The jobs of a run and what their handlers do, each by a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django_backwave.core.policy import Backoff
from django_backwave.store.enqueue import NewJob
from tests.simulation.clock import SECOND, at
from tests.simulation.streams import Streams

QUEUES = ("mail", "reports")

#: Old code does not know the second of these names.
NAMES = ("plain", "new")

#: plain: returns. atomic: writes its ledger row and its success in one transaction. block: that, and goes on.
KINDS = ("plain", "plain", "atomic", "block")

#: Seconds after which clients, operators and faults are done.
HORIZON = 32.0


@dataclass(frozen=True, slots=True)
class Spec:
    """One job to be. ``at``: the second in which it is enqueued; ``tagged``: its handler tags it."""

    number: int
    at: float
    kind: str
    tagged: bool
    job: NewJob

    @property
    def atomic(self) -> bool:
        """Whether a row of the ledger belongs to its success."""
        return self.kind != "plain"


def workload(streams: Streams) -> list[Spec]:
    """Return the jobs of a run."""
    size = streams.of("workload")
    bursts = [size.between(0.0, HORIZON * 0.7) for _ in range(size.among(1, 4))]
    return [_spec(number, bursts, streams) for number in range(size.among(6, 26))]


def _spec(number: int, bursts: list[float], streams: Streams) -> Spec:
    draw = streams.of("job", number)
    when = draw.pick(bursts) if draw.chance(0.7) else draw.between(0.0, HORIZON * 0.8)
    later = draw.between(0.0, 12.0) if draw.chance(0.2) else None
    expires = draw.between(0.5, 20.0) if draw.chance(0.12) else None
    job = NewJob(
        id=job_id(number, streams),
        name=draw.pick((*NAMES, NAMES[0])),
        queue=draw.pick(QUEUES),
        priority=draw.pick((0, 0, 5, -3)),
        payload='{"args":[],"kwargs":{}}',
        run_after=None if later is None else at(round((when + later) * SECOND)),
        max_attempts=draw.pick((1, 2, 3, 3, 4)),
        backoff=Backoff(base=1.0, cap=4.0, jitter=0.5),
        lease_seconds=draw.pick((None, None, 2.0, 9.0)),
        timeout_seconds=draw.pick((None, None, None, 1.0, 4.0)),
        expires=None if expires is None else at(round((when + expires) * SECOND)),
    )
    return Spec(number, when, draw.pick(KINDS), draw.chance(0.3), job)


def job_id(number: int, streams: Streams) -> UUID:
    """Return a job's id: they rise, as those of one process do."""
    draw = streams.of("id", number)
    return UUID(int=((number + 1) << 96) | (draw.bits() << 32) | (draw.bits() >> 32))


def run_time(number: int, attempt: int, streams: Streams) -> float:
    """Return for how many seconds an attempt's handler runs."""
    draw = streams.of("run-time", number, attempt)
    kind = draw.unit()
    if kind < 0.6:
        return draw.between(0.0005, 0.02)
    return draw.between(0.1, 1.5) if kind < 0.92 else draw.between(2.0, 6.0)
