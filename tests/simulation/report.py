"""What to tell of runs: failures with their seed, and what all of them have covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from django_backwave.core.states import MOVES, JobState
from tests.simulation.runs import Result

#: Every move of the table, but for those of WAITING: nothing makes a job wait for others yet.
EDGES = frozenset(
    (old.value, new.value) for old, news in MOVES.items() for new in news if old is not JobState.WAITING
)

#: What a few hundred seeds must have met, on either database.
SITUATIONS = frozenset(
    {
        "a worker was cut off",
        "a worker's own clock jumped",
        "atomic job completed: atomic",
        "atomic job completed: block",
        "atomic job refused by the fence",
        "call carried out after it was given up",
        "call refused",
        "cancel took effect: dead",
        "cancel took effect: release",
        "cancel took effect: settle",
        "cancel took effect: sweep",
        "cancelled before it ran",
        "claimed ahead of a free slot",
        "commit in doubt",
        "connection broke within a call",
        "died after a commit",
        "died within a call",
        "enqueue rolled back",
        "frozen past the lease",
        "handler overdue",
        "heartbeat learns that a lease is lost",
        "heartbeat lost",
        "lease of a dead worker disposed of",
        "lease swept",
        "notification doubled",
        "notification lost",
        "operator: cancel",
        "operator: change",
        "operator: pause",
        "operator: pause-name",
        "operator: requeue",
        "operator: reschedule",
        "operator: run-now",
        "outcome: abandoned",
        "outcome: cancelled",
        "outcome: failed",
        "outcome: released",
        "outcome: snoozed",
        "outcome: succeeded",
        "outcome: timed_out",
        "outcome: unroutable",
        "reply lost after a commit",
        "somebody came to a running job",
        "success came before the cancel",
        "told to stop before it began",
        "told to stop: cancel requested",
        "told to stop: lease lost",
        "told to stop: time-out",
        "told to stop: worker is shutting down",
        "too late to start: found by a claim",
        "too late to start: found by a sweep",
        "unknown claim released",
        "unroutable",
        "verdict: applied",
        "verdict: cancelled",
        "verdict: landed",
        "verdict: stale",
        "withdrawn before it began",
        "worker ended in order",
        "worker ended with code running",
        "worker stuck",
    }
)

#: What only locks on rows bring about.
SITUATIONS_OF = {
    "sqlite": SITUATIONS,
    "postgres": SITUATIONS | {"a stranger held a row", "verdict: locked", "waited for a lock"},
}


class Coverage:
    """Counts over many runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.seconds = 0.0
        self.faults = 0
        self.situations: dict[str, Counter[str]] = {"sqlite": Counter(), "postgres": Counter()}
        self.edges: Counter[tuple[int, int]] = Counter()
        self.failures: list[Result] = []

    def add(self, result: Result) -> None:
        """Count a run."""
        self.runs += 1
        self.seconds += result.seconds
        self.faults += len(result.faults)
        self.situations[result.plan.database].update(result.situations)
        self.edges.update(result.edges)
        if result.violation is not None:
            self.failures.append(result)

    def missing(self) -> list[str]:
        """Return what the runs have not met: situations by database, and moves of the table."""
        databases = [name for name, seen in self.situations.items() if seen]
        gaps = [
            f"{name}: {situation}"
            for name in databases
            for situation in sorted(SITUATIONS_OF[name] - self.situations[name].keys())
        ]
        return gaps + [f"move: {_move(edge)}" for edge in sorted(EDGES - self.edges.keys())]

    def lines(self) -> Iterable[str]:
        """Yield a table of what was met."""
        yield f"{self.runs} runs, {self.faults} faults, {self.seconds / 3600:.1f} virtual hours"
        for edge in sorted(EDGES):
            yield f"{self.edges[edge]:9} {_move(edge)}"
        yield f"{'sqlite':>9} {'postgres':>9}"
        for situation in sorted(SITUATIONS_OF["postgres"]):
            counts = (f"{seen[situation]:9}" for seen in self.situations.values())
            yield f"{' '.join(counts)} {situation}"


def failure(result: Result, *, faults: list[str] | None = None) -> Iterable[str]:
    """Yield what to tell of a run that failed; ``faults``: the minimised list."""
    assert result.violation is not None
    plan = result.plan
    yield f"FAILED {plan.database} seed {plan.seed}: {result.violation.oracle}: {result.violation.text}"
    yield f"replay: python -m tests.simulation --seed {plan.seed} --database {plan.database}"
    if faults is not None:
        yield f"it fails with these {len(faults)} of {len(result.faults)} faults:"
        yield from (f"  {fault}" for fault in faults)


def _move(edge: tuple[int, int]) -> str:
    return f"{JobState(edge[0]).label} → {JobState(edge[1]).label}"
