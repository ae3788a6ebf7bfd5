"""`--flat`: whether workers of django_backwave keep their speed whatever else is in the tables.

Two workers drain a share of the jobs that are due, and the rate is that of the first so many jobs from the
opening of the gate on, as their stamps are counted every 5 ms. The base is the same number of jobs in
tables with nothing else, measured in turn with each of the others.

- backlog: more and more jobs that are due and that have finished, up to the sizes asked for; each finished
  job has its attempt. The tables are vacuumed and analysed before each run, as autovacuum would have done
  long since.
- future: jobs due tomorrow, at ten higher priorities.
- queues: the jobs that are due lie in 500 queues; the workers are given no `--queue`.
- snapshot: a minute of load, once with a transaction held open elsewhere since before the first job, once
  without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.contestants import BACKWAVE
from benchmarks.environment import say
from benchmarks.figures import median, rate, ratio, table, times
from benchmarks.measures.drain import PATIENCE, open_gate
from benchmarks.rows import Rows
from benchmarks.site import Place, Site, wait_for

PROCESSES = 2
#: Jobs that are due beyond those measured, so that the end of a queue is not part of the rate.
SPARE = 1.2
EMPTY, BACKLOG, FUTURE, QUEUES = "empty", "backlog", "future", "queues"
HELD, FREE = "snapshot held", "no snapshot held"
SHARES = (0.01, 0.1, 1.0)
QUEUE_NAMES = 500
#: Seconds between two points of the run over time.
STEP = 0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    jobs: int
    ready: int
    finished: int
    future: int
    seconds: float


def measure(site: Site, sizes: Sizes, *, rounds: int) -> list[dict[str, Any]]:
    """Measure all cases in turn with the empty table; a case that fails is noted and left out."""
    results: list[dict[str, Any]] = []
    for case in (backlog, future, queues):
        try:
            for result in case(site, sizes, rounds):
                results += [result, empty(site, sizes)]
        except Exception as error:
            site.note(f"flat, {case.__name__}, failed: {str(error).strip()[-600:]}")
    base = median(result["rate"] for result in results if result["case"] == EMPTY)
    for case in (FREE, HELD):
        try:
            results.append(over_time(site, sizes, case, base or 0))
        except Exception as error:
            site.note(f"flat, {case}, failed: {str(error).strip()[-600:]}")
    return results


def empty(site: Site, sizes: Sizes) -> dict[str, Any]:
    """Nothing else in the tables."""
    with fresh(site) as rows:
        rows.ready(int(sizes.jobs * SPARE))
        return drained(site, rows, EMPTY, sizes.jobs)


def backlog(site: Site, sizes: Sizes, rounds: int) -> Iterator[dict[str, Any]]:
    """Growing numbers of jobs that are due and finished."""
    with fresh(site) as rows:
        for share in SHARES:
            rows.finished(int(sizes.finished * share) - rows.made_finished)
            for _ in range(rounds):
                missing = int(sizes.ready * share) - due(rows.place)
                rows.ready(max(missing, int(sizes.jobs * SPARE) - due(rows.place), 0))
                yield drained(site, rows, BACKLOG, sizes.jobs)


def future(site: Site, sizes: Sizes, rounds: int) -> Iterator[dict[str, Any]]:
    """Jobs that are due tomorrow, at higher priorities."""
    with fresh(site) as rows:
        rows.future(sizes.future)
        for _ in range(rounds):
            rows.ready(int(sizes.jobs * SPARE))
            yield drained(site, rows, FUTURE, sizes.jobs)


def queues(site: Site, sizes: Sizes, rounds: int) -> Iterator[dict[str, Any]]:
    """The jobs lie in many queues."""
    for _ in range(rounds):
        with fresh(site) as rows:
            rows.ready(int(sizes.jobs * SPARE), queue=f"'queue-' || n % {QUEUE_NAMES}")
            yield drained(site, rows, QUEUES, sizes.jobs)


def over_time(site: Site, sizes: Sizes, case: str, base: float) -> dict[str, Any]:
    """Load for so many seconds; return the rate as a whole, at the end, and step by step."""
    with fresh(site) as rows:
        rows.ready(int(max(base * sizes.seconds, sizes.jobs) * SPARE))
        rows.place.settle_down()
        stamps = rows.place.stamps(rows.made_ready)
        held = snapshot(rows.place) if case == HELD else nullcontext()
        with held, rows.place.workers(PROCESSES) as running:
            begin = open_gate(site, rows.place, stamps, running, PROCESSES)
            points = [(0.0, 0)]
            while points[-1][0] < sizes.seconds and points[-1][1] < rows.made_ready:
                time.sleep(STEP)
                points.append(((time.monotonic_ns() - begin) / 1e9, stamps.done()))
                running.raise_if_dead()
    rates = [
        ((later[0] + earlier[0]) / 2, (later[1] - earlier[1]) / (later[0] - earlier[0]))
        for earlier, later in pairwise(points)
    ]
    last = [value for instant, value in rates if instant > points[-1][0] * 5 / 6]
    result = {
        "case": case,
        "rate": points[-1][1] / points[-1][0],
        "rate_at_end": median(last),
        "seconds": points[-1][0],
        "over_time": rates,
    }
    say(f"  {case}: {rate(result['rate'])} jobs/s, {rate(result['rate_at_end'])} in the last sixth")
    return result


def drained(site: Site, rows: Rows, case: str, jobs: int) -> dict[str, Any]:
    """Drain so many of the jobs that are due; return the rate and what else was there."""
    place = rows.place
    place.settle_down()
    ready = due(place)
    stamps = place.stamps(rows.made_ready)
    with place.workers(PROCESSES) as running:
        begin = open_gate(site, place, stamps, running, PROCESSES)
        if not wait_for(lambda: stamps.done() >= jobs, PATIENCE, running):
            raise TimeoutError(f"{stamps.done()} of {jobs} jobs ran in {PATIENCE} s.\n{running.tail()}")
        result = {
            "case": case,
            "rate": jobs / (time.monotonic_ns() - begin) * 1e9,
            "ready": ready,
            "finished": rows.made_finished,
            "future": rows.made_future,
        }
    say(f"  {case}, {ready:,} due, {rows.made_finished:,} finished: {rate(result['rate'])} jobs/s")
    return result


@contextmanager
def fresh(site: Site) -> Iterator[Rows]:
    """Make a place with models to copy."""
    with site.place(BACKWAVE) as place:
        rows = Rows(place)
        rows.prepare()
        yield rows


@contextmanager
def snapshot(place: Place) -> Iterator[None]:
    """Hold a transaction open that still sees the tables as they are now."""
    with place.connection() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM pg_class LIMIT 1")
        yield


def due(place: Place) -> int:
    """Return how many jobs are due."""
    with place.connection() as connection:
        query = "SELECT count(*) FROM django_backwave_job WHERE state = 1 AND due_at <= clock_timestamp()"
        return connection.execute(query).fetchone()[0]


def groups(results: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the median rate of each case; of the backlog, the one over the largest tables."""
    largest = max((result["finished"] for result in results if result["case"] == BACKLOG), default=0)
    rates: dict[str, list[float]] = {}
    for result in results:
        if result["case"] != BACKLOG or result["finished"] == largest:
            rates.setdefault(result["case"], []).append(result["rate"])
    return {case: median(values) for case, values in rates.items()}


def curve(results: Sequence[dict[str, Any]]) -> list[tuple[int, int, float | None]]:
    """Return (due, finished, median rate) for each size of the backlog, the empty table first."""
    sizes: dict[int, list[dict[str, Any]]] = {}
    for result in results:
        if result["case"] in (EMPTY, BACKLOG):
            sizes.setdefault(result["finished"], []).append(result)
    return [
        (max(result["ready"] for result in mine), finished, median(result["rate"] for result in mine))
        for finished, mine in sorted(sizes.items())
    ]


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    found = groups(results)
    base = found.get(EMPTY)
    rows = [
        (f"{ready:,} due, {finished:,} finished", rate(value), times(ratio(value, base)))
        for ready, finished, value in curve(results)
    ]
    for result in {result["case"]: result for result in results}.values():
        case = result["case"]
        if case == FUTURE:
            rows.append(
                (f"{result['future']:,} due tomorrow", rate(found[case]), times(ratio(found[case], base)))
            )
        elif case == QUEUES:
            rows.append((f"{QUEUE_NAMES} queues", rate(found[case]), times(ratio(found[case], base))))
        elif case in (HELD, FREE):
            told = f"{case} over {result['seconds']:.0f} s"
            end = result["rate_at_end"]
            rows.append((told, rate(result["rate"]), times(ratio(result["rate"], base))))
            rows.append((f"{told}, last sixth", rate(end), times(ratio(end, base))))
    return table(("two workers", "jobs/s", "of the empty table"), rows)
