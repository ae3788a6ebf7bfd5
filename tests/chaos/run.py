"""One run: workers and clients under faults, then peace, then the comparison."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.stage import Stage, stage

#: Seconds after the last fault in which every job must have ended.
DRAIN = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is made of."""

    database: str
    seconds: float
    seed: int
    workers: int = 3
    processes: int = 2
    clients: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it: the figures as text, and what must not have been."""

    figures: str
    complaints: list[str]


def run(plan: Plan, folder: Path) -> Outcome:
    """Make a run in a folder; what every process said and wrote lies there afterwards."""
    with stage(plan.database, folder, plan.workers + plan.clients) as made:
        return _run(plan, made)


def _run(plan: Plan, made: Stage) -> Outcome:
    # These import models, for which Django must know the settings that the stage has made.
    from tests.chaos.checker import check
    from tests.chaos.evidence import collect
    from tests.chaos.figures import figures
    from tests.chaos.fleet import Fleet
    from tests.chaos.monkey import Monkey

    fleet = Fleet(made, workers=plan.workers, processes=plan.processes, clients=plan.clients, seed=plan.seed)
    with fleet:
        monkey = Monkey(fleet, plan.seed)
        try:
            monkey.run(plan.seconds)
            fleet.stop_clients()
            drained = _drain(fleet)
            fleet.stop_workers()
        finally:
            fleet.write_logs(made.folder)
        evidence = collect(made.folder)
        evidence.ends = list(fleet.complaints())
        evidence.peaks = fleet.peaks
        stale = len(fleet.said("action=attempt_ended", "outcome=stale"))
        told = figures(evidence, faults=monkey.done, kills=monkey.kills, stale=stale)
    return Outcome(
        figures=f"{told}\ndrained after the faults   {drained:.1f} s",
        complaints=[*check(evidence), *_empty(evidence.jobs)],
    )


def _empty(jobs: list) -> list[str]:
    return [] if jobs else ["not one job was enqueued"]


def _drain(fleet) -> float:
    """Wait until every job has ended, or for as long as that may take; return the seconds."""
    from django_backwave.core.states import TERMINAL
    from django_backwave.models import Job

    begin = time.monotonic()
    ended = [state.value for state in TERMINAL]
    while Job.objects.exclude(state__in=ended).exists() and time.monotonic() - begin < DRAIN:
        fleet.tend()
        threading.Event().wait(0.1)
    return time.monotonic() - begin
