"""`--pickup`: how long a job waits for an idle worker.

One worker, one client, a job at a time with random pauses between them. The wait is from the instant at
which the enqueue call returned to the client, after its commit, to the handler's first line; below nothing
it counts as nothing. The worker of django_backwave is given no `--queue`; it is measured on an empty table,
with a queue name that nobody used before for each job, and without notifications, where the pauses are
longer than a poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contestants import BACKWAVE, Contestant
from benchmarks.environment import say
from benchmarks.figures import number, percentile, table
from benchmarks.site import START, Site, wait_for

EMPTY, FRESH, POLLED = "empty table", "queues never used before", "without notifications"
#: Jobs at the beginning that are not counted.
WARM_UP = 5
#: Seconds that the last jobs may take.
LATE = 10.0
#: Seconds between two polls of django_backwave, by default.
POLL = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One way to measure: `share` of the jobs, with pauses of `least` to `most` seconds."""

    name: str
    least: float = 0.1
    most: float = 0.4
    share: float = 1.0
    environment: dict[str, str] = field(default_factory=dict)


CASES = (
    Case(EMPTY),
    Case(FRESH, environment={"BENCH_FRESH_QUEUES": "1"}),
    Case(POLLED, least=1.2 * POLL, most=2.2 * POLL, share=0.2, environment={"BENCH_BACKWAVE_NOTIFY": "0"}),
)


def measure(site: Site, contestants: Sequence[Contestant], *, jobs: int) -> list[dict[str, Any]]:
    """Measure each contestant, and ours in all ways."""
    results = []
    for contestant in contestants:
        ours = contestant.app == BACKWAVE.app
        for case in CASES if ours else CASES[:1]:
            result = attempt(site, contestant, case, jobs)
            results.append(result)
            told = result.get("error") or f"p50 {result['p50']:.1f} ms, p99 {result['p99']:.1f} ms"
            say(f"  {contestant.name}, {case.name}: {told}")
    return results


def attempt(site: Site, contestant: Contestant, case: Case, jobs: int) -> dict[str, Any]:
    """Do one run; one that fails is a result as well."""
    known = {"contestant": contestant.name, "case": case.name}
    try:
        waits = run(site, contestant, case, max(int(jobs * case.share), 10))
    except Exception as error:
        site.note(f"{contestant.name}, pick-up, {case.name}, failed: {str(error).strip()[-600:]}")
        return known | {"error": f"failed: {type(error).__name__}"}
    return known | {"p50": percentile(waits, 0.5), "p99": percentile(waits, 0.99), "jobs": len(waits)}


def run(site: Site, contestant: Contestant, case: Case, jobs: int) -> list[float]:
    """Return how many milliseconds each job waited."""
    with site.place(contestant, **case.environment) as place:
        stamps = place.stamps(1 + WARM_UP + jobs)
        stamps.open()
        with place.workers(1) as running:
            place.client("each", 1)
            if not wait_for(lambda: stamps.at(0) > 0, START, running):
                raise TimeoutError(f"The worker did not run a first job.\n{running.tail()}")
            instants = place.client("spaced", WARM_UP + jobs, 1, case.least, case.most)
            if not wait_for(stamps.all_ran, LATE, running):
                raise TimeoutError(f"{stamps.done()} of {stamps.jobs} jobs ran.\n{running.tail()}")
        return [
            max(0, stamps.at(position) - after) / 1e6
            for position, (_, after) in enumerate(instants, start=1)
            if position > WARM_UP
        ]


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    rows = [
        (
            f"{result['contestant']}, {result['case']}",
            number(result.get("p50"), digits=1),
            number(result.get("p99"), digits=1),
            str(result.get("jobs", result.get("error"))),
        )
        for result in results
    ]
    return table(("contestant", "p50, ms", "p99, ms", "jobs"), rows)
