"""`--drain`: how fast workers finish jobs that were enqueued beforehand.

The jobs are in the table before the workers start. The first job of each process waits at a gate, which
opens when all processes have come: from that instant it is timed, until the last handler has run *and* the
contestant's own table says that no job is unfinished. The table is asked every 5 ms, and only once the last
handler has run. Brokers keep no record of what is done, so that for them the last handler's stamp is the
end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.contestants import Contestant
from benchmarks.environment import say
from benchmarks.figures import median, number, rate, ratio, table, times
from benchmarks.processes import Workers
from benchmarks.site import LOOK, Place, Site, wait_at_gate, wait_for
from benchmarks.stamps import Stamps

#: Seconds for the jobs of one run, before it is given up.
PATIENCE = 300.0
#: Seconds for the record of the last jobs, after the last handler has run.
SETTLE = 30.0
LIMIT = "raw-psycopg"


@dataclass(frozen=True, slots=True)
class Drain:
    """One run: jobs per second, and what must be known to believe it."""

    contestant: str
    processes: int
    jobs: int
    seconds: float
    rate: float
    settled_after: float | None  # seconds from the last handler to the last record
    runs: int  # of handlers; more than jobs if some ran twice
    memory: list[float]  # peak MB of each worker with its children


def measure(site: Site, contestants: Sequence[Contestant], *, jobs: int, rounds: int) -> list[dict[str, Any]]:
    """Drain with one and with two workers, each contestant in turn, so many rounds."""
    results = []
    for turn in range(rounds):
        for contestant in contestants:
            for processes in (1, 2):
                result = attempt(site, contestant, processes, jobs)
                results.append(result)
                told = result.get("error", f"{result.get('rate', 0):,.0f} jobs/s")
                say(f"  round {turn + 1}: {contestant.name}, {processes} process(es): {told}")
    return results


def attempt(site: Site, contestant: Contestant, processes: int, jobs: int) -> dict[str, Any]:
    """Do one run; one that fails is a result as well, and stops none of the others."""
    try:
        return asdict(run(site, contestant, processes, min(jobs, contestant.jobs or jobs)))
    except Exception as error:
        site.note(f"{contestant.name} with {processes} process(es) failed: {str(error).strip()[-600:]}")
        return {
            "contestant": contestant.name,
            "processes": processes,
            "error": f"failed: {type(error).__name__}",
        }


def run(site: Site, contestant: Contestant, processes: int, jobs: int) -> Drain:
    """Do one run."""
    with site.place(contestant) as place:
        stamps = place.stamps(jobs)
        place.client("fill", jobs)
        place.settle_down()
        with place.workers(processes) as running:
            begin = open_gate(site, place, stamps, running, processes)
            if not wait_for(stamps.all_ran, PATIENCE, running):
                raise TimeoutError(f"{stamps.done()} of {jobs} jobs ran in {PATIENCE} s.\n{running.tail()}")
            last = stamps.last()
            end = settled(place) if contestant.unfinished else last
            return Drain(
                contestant=contestant.name,
                processes=processes,
                jobs=jobs,
                seconds=(end - begin) / 1e9,
                rate=jobs / (end - begin) * 1e9,
                settled_after=(end - last) / 1e9 if contestant.unfinished else None,
                runs=stamps.done(),
                memory=[peak for peak, _ in running.memory()],
            )


def open_gate(site: Site, place: Place, stamps: Stamps, running: Workers, processes: int) -> int:
    """Wait for all processes and open the gate; return the instant in nanoseconds."""
    wanted = processes * place.contestant.at_gate
    came = wait_at_gate(place, stamps, running, wanted)
    if not came:
        raise TimeoutError(f"No worker took a job.\n{running.tail()}")
    if came < wanted:
        site.note(f"{place.contestant.name}: {came} of {wanted} processes had a job when the gate opened")
    return stamps.open()


def settled(place: Place) -> int:
    """Wait until the contestant's table has recorded all jobs; return the instant in nanoseconds."""
    deadline = time.monotonic() + SETTLE
    with place.any_connection() as connection:
        while time.monotonic() < deadline:
            (unfinished,) = connection.execute(place.contestant.unfinished).fetchone()
            if not unfinished:
                return time.monotonic_ns()
            time.sleep(LOOK)
    raise TimeoutError(f"Jobs whose handlers have run were not recorded as done within {SETTLE} s.")


def medians(results: Sequence[dict[str, Any]], key: str = "rate") -> dict[tuple[str, int], float]:
    """Return the median of a number for each contestant and count of processes."""
    groups: dict[tuple[str, int], list[float]] = {}
    for result in results:
        if key in result:
            groups.setdefault((result["contestant"], result["processes"]), []).append(result[key])
    return {group: median(values) for group, values in groups.items()}


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table: rates, what two processes bring, the share of the limit, and memory."""
    found = medians(results)
    rows = []
    for name in dict.fromkeys(result["contestant"] for result in results):
        one, two = found.get((name, 1)), found.get((name, 2))
        mine = [result for result in results if result["contestant"] == name and "rate" in result]
        spread = [result["rate"] for result in mine if result["processes"] == 2]
        rows.append(
            (
                name,
                rate(one),
                rate(two),
                f"{rate(min(spread))} … {rate(max(spread))}" if spread else "–",
                times(ratio(two, found.get((LIMIT, 2)))),
                number(median(peak for result in mine for peak in result["memory"]), digits=0),
            )
        )
    head = ("contestant", "1 process", "2 processes", "lowest … highest", "of raw-psycopg", "MB a worker")
    return table(head, rows)
