"""Faults: which may happen, how often in this run, and to whom they do happen.

Each is addressed by its kind and by what it acts on, and decided by a stream of that address alone. So a list
of addresses is all that a replay needs, and leaving one out changes no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.simulation.streams import Stream, Streams

#: Kind → how often it happens where it may, from a mild run to a storm.
KINDS: dict[str, tuple[float, float]] = {
    # To one store call of a worker.
    "refused": (0.01, 0.06),  # the connection failed before anything was done
    "broken": (0.01, 0.06),  # it broke between two statements
    "reply-lost": (0.01, 0.08),  # it broke after COMMIT
    "late": (0.01, 0.05),  # given up on, and carried out all the same, later
    "crash": (0.002, 0.015),  # the process dies before, within or after it
    "slow-call": (0.02, 0.15),  # its statements come one by one, slowly
    # To a worker.
    "heartbeat-lost": (0.05, 0.3),
    "freeze": (0.3, 0.9),  # stopped for a while, often longer than its leases
    "kill": (0.2, 0.7),
    "loss": (0.05, 0.2),  # never to come back
    "clock": (0.2, 0.7),  # its own clock jumps
    "cut": (0.2, 0.7),  # the database is out of its reach
    "stop": (0.2, 0.7),  # SIGTERM, as in a deploy
    "old-code": (0.2, 0.6),  # it does not know all names
    "recycle": (0.1, 0.4),  # --max-jobs
    "hint-lost": (0.2, 0.8),
    "hint-doubled": (0.1, 0.5),
    # To everybody.
    "outage": (0.3, 0.9),
    "stranger": (0.3, 0.9),  # somebody holds a job's row
    "operator": (0.3, 0.9),  # cancels, requeues, moves, pauses
    # To an attempt.
    "fail": (0.05, 0.3),
    "give-up": (0.01, 0.05),
    "snooze": (0.02, 0.1),
    "slow": (0.05, 0.25),  # it takes longer than a lease
    "deaf": (0.1, 0.5),  # it does not stop when told
    "collision": (0.05, 0.4),  # an operator, or a stranger, comes to its job just then
    "poison": (0.03, 0.1),  # to a job: its handler kills the process
    # To a client.
    "rollback": (0.1, 0.4),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What fixes a run. ``only``: the addresses of the faults that happen; None: what the seed draws."""

    seed: int
    database: str
    only: tuple[str, ...] | None = None
    name: str = ""

    def to_json(self) -> str:
        """Return the plan as text."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, indent=1) + "\n"

    @classmethod
    def of_file(cls, path: Path) -> Plan:
        """Read a plan."""
        values: dict[str, Any] = json.loads(path.read_text())
        only = values["only"]
        return cls(**{**values, "only": None if only is None else tuple(only)})

    def with_only(self, only: list[str]) -> Plan:
        """Return the same run with these faults and no others."""
        return replace(self, only=tuple(only))


class Faults:
    """Decides about faults, and remembers which have happened."""

    def __init__(self, plan: Plan, streams: Streams, *, open_: Callable[[], bool]) -> None:
        self._only = None if plan.only is None else frozenset(plan.only)
        self._streams = streams
        self._open = open_
        self._rates = _rates(streams.of("swarm"))
        self.fired: dict[str, None] = {}

    def happens(self, kind: str, *target: object) -> Stream | None:
        """Return the stream of a fault's details if it happens to this target, else None."""
        address = ":".join(map(str, (kind, *target)))
        stream = self._streams.of("fault", address)
        hit = stream.chance(self._rates[kind]) if self._only is None else address in self._only
        if self._only is not None:
            stream.unit()  # what it would have been decided by
        if not hit or not self._open():
            return None
        self.fired[address] = None
        return stream


def _rates(swarm: Stream) -> dict[str, float]:
    """Let each seed have some kinds and not others, from none at all to all of them at their worst."""
    weather = swarm.unit()
    share = 0.0 if weather < 0.04 else 1.0 if weather > 0.9 else 0.45
    rates = {}
    for kind, (least, most) in KINDS.items():
        on, strength = swarm.chance(share), swarm.between(least, most)
        rates[kind] = strength if on else 0.0
    if weather > 0.9:
        rates["loss"] = min(rates["loss"], 0.05)
    return rates
