"""What a run amounts to, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from tests.chaos.evidence import Effect, Evidence, by_job


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a run. ``recovery`` is in seconds, None if no killed attempt had to be repeated."""

    transactions: Mapping[str, int]
    states: Mapping[str, int]
    faults: Mapping[str, int]
    executions: int
    duplicates: int
    stale: int
    recovery: float | None
    ledger: int
    memory: float

    def __str__(self) -> str:
        recovery = "none was needed" if self.recovery is None else f"{self.recovery:.1f} s"
        return "\n".join(
            (
                f"transactions               {_listed(self.transactions)}",
                f"jobs                       {_listed(self.states)}",
                f"faults                     {_listed(self.faults)}",
                f"handlers begun             {self.executions:,}",
                f"  whose attempt was lost   {self.duplicates:,}",
                f"stale reports refused      {self.stale:,}",
                f"lines in the ledger        {self.ledger:,}",
                f"longest recovery           {recovery}",
                f"largest worker process     {self.memory:.0f} MB",
            )
        )


def figures(evidence: Evidence, *, faults: Iterable[str], kills: Mapping[int, float], stale: int) -> Figures:
    """Return the figures. ``kills``: process → when it was killed, by the machine's clock."""
    return Figures(
        transactions=Counter(each.outcome for each in evidence.transactions),
        states=Counter(job.state for job in evidence.jobs),
        faults=Counter(faults),
        executions=len(evidence.effects),
        duplicates=_duplicates(evidence),
        stale=stale,
        recovery=max(recoveries(evidence, kills).values(), default=None),
        ledger=len(evidence.ledger),
        memory=max(evidence.peaks.values(), default=0.0),
    )


def _duplicates(evidence: Evidence) -> int:
    """Return how many handlers began in an attempt that had to be repeated through no fault of theirs."""
    lost = {(each.job, each.number) for each in evidence.attempts if each.outcome == "abandoned"}
    return sum((effect.job, effect.attempt) in lost for effect in evidence.effects)


def recoveries(evidence: Evidence, kills: Mapping[int, float]) -> dict[UUID, float]:
    """Return the jobs that ran in a killed process, each with the longest time until it ran again."""
    lost = {(each.job, each.number) for each in evidence.attempts if each.outcome == "abandoned"}
    found: dict[UUID, float] = {}
    for job_id, effects in by_job(evidence.effects).items():
        effects.sort(key=lambda effect: effect.attempt)
        for effect, again in pairwise(effects):
            if (job_id, effect.attempt) in lost and effect.at < kills.get(effect.pid, 0.0):
                found[job_id] = max(found.get(job_id, 0.0), _between(effect, again, kills))
    return found


def _between(effect: Effect, again: Effect, kills: Mapping[int, float]) -> float:
    return again.at - kills[effect.pid]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items())) or "none"
