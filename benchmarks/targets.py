"""What is wanted, and whether it was reached: a row for each figure that the results contain. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants import ALL
from benchmarks.figures import number, rate, ratio, table, times
from benchmarks.measures import drain, enqueue, flat, pickup, recovery, sqlite

type Results = Sequence[Mapping[str, Any]]

OURS = ("django_backwave", "django_backwave-async")
#: Drain with two processes, as multiples of others with two.
DRAIN_TWO = {
    "pgqueuer": 1.0,
    "dramatiq-rabbitmq": 2.0,
    "oban": 5.0,
    "procrastinate": 20.0,
    "django-tasks-db": 25.0,
    "django-ox": 25.0,
    "raw-psycopg": 0.35,
}
DRAIN_ONE = {"pgqueuer": 0.8}
FLAT = {flat.BACKLOG: 0.8, flat.FUTURE: 0.8, flat.QUEUES: 0.8, flat.HELD: 0.7}
ENQUEUE_ONE, ENQUEUE_BULK = 0.8, 0.8
#: Milliseconds; or so many times the best of the others in a database, if that is more.
PICKUP = {"p50": 2.5, "p99": 5.0}
PICKUP_TIMES = 1.2
#: Milliseconds: half a poll.
POLLED = pickup.POLL * 1000 / 2
SQLITE = 1500.0
MEMORY, GROWTH = 70.0, 0.02


@dataclass(frozen=True, slots=True)
class Target:
    """One figure: what is wanted of it, what was measured, and whether that is enough."""

    figure: str
    wanted: str
    measured: str
    reached: bool | None  # None: it could not be told

    @classmethod
    def at_least(cls, figure: str, wanted: float, value: float | None, write: Any) -> Target:
        """Make one that must not be less."""
        return cls(figure, f"≥ {write(wanted)}", write(value), None if value is None else value >= wanted)

    @classmethod
    def at_most(cls, figure: str, wanted: float, value: float | None, write: Any) -> Target:
        """Make one that must not be more."""
        return cls(figure, f"≤ {write(wanted)}", write(value), None if value is None else value <= wanted)


def targets(results: Mapping[str, Results]) -> list[Target]:
    """Return the figures of all measures that were taken."""
    return [target for name, results in results.items() for target in FIGURES[name](results)]


def of_drain(results: Results) -> Iterator[Target]:
    """Rates beside the others' and the limit."""
    rates = drain.medians(results)
    for ours in OURS:
        for processes, wanted in ((2, DRAIN_TWO), (1, DRAIN_ONE)):
            mine = rates.get((ours, processes))
            for other, factor in wanted.items():
                theirs = rates.get((other, processes))
                if mine is not None and theirs is not None:
                    figure = f"drain, {processes} {plural(processes, 'process')}: {ours} beside {other}"
                    yield Target.at_least(figure, factor, ratio(mine, theirs), times)


def of_enqueue(results: Results) -> Iterator[Target]:
    """Enqueue beside the bare ORM and beside pgqueuer."""
    rates = enqueue.medians(results)
    for way, other, wanted in (
        (enqueue.ONE, "django-orm", ENQUEUE_ONE),
        (enqueue.BULK, "pgqueuer", ENQUEUE_BULK),
    ):
        if (other, way) in rates and (OURS[0], way) in rates:
            share = ratio(rates[OURS[0], way], rates[other, way])
            yield Target.at_least(f"enqueue {way}, beside {other}", wanted, share, times)


def of_pickup(results: Results) -> Iterator[Target]:
    """Waits on an idle worker."""
    best = {key: best_of_databases(results, key) for key in PICKUP}
    for result in results:
        if result["contestant"] != OURS[0]:
            continue
        if result["case"] == pickup.POLLED:
            yield Target.at_most(
                "pick-up without notifications, p50", POLLED, result.get("p50"), milliseconds
            )
            continue
        for key, wanted in PICKUP.items():
            limit = max(wanted, PICKUP_TIMES * (best[key] or 0))
            yield Target.at_most(f"pick-up, {result['case']}, {key}", limit, result.get(key), milliseconds)


def best_of_databases(results: Results, key: str) -> float | None:
    """Return the shortest wait of the other queues in a database; the raw loops are none."""
    others = {
        contestant.name
        for contestant in ALL
        if contestant.service == "postgres" and not contestant.name.startswith(("django_backwave", "raw-"))
    }
    return min(
        (result[key] for result in results if result["contestant"] in others and key in result), default=None
    )


def of_flat(results: Results) -> Iterator[Target]:
    """Rates beside that of the empty table."""
    rates = flat.groups(results)
    for case, wanted in FLAT.items():
        if case in rates:
            share = ratio(rates[case], rates.get(flat.EMPTY))
            yield Target.at_least(f"drain with {FLAT_NAMES[case]}, of the empty table", wanted, share, times)


def of_sqlite(results: Results) -> Iterator[Target]:
    """The rate, and nobody who meets a lock."""
    rates = drain.medians([result for result in results if result["case"] == "drain"])
    yield Target.at_least(
        "drain on SQLite, 1 process, jobs/s", SQLITE, rates.get((sqlite.CONTESTANT.name, 1)), rate
    )
    for result in results:
        if result["case"] == "together":
            met = result["locked"] + result["failed clients"] + result["missing"]
            yield Target.at_most("SQLite, four workers and clients: failures", 0, met, whole)


def of_memory(results: Results) -> Iterator[Target]:
    """The peak and the growth."""
    for result in results:
        yield Target.at_most("peak memory of a worker", MEMORY, result["peak"], megabytes)
        yield Target.at_most(f"growth over {result['jobs']:,} jobs", GROWTH, result["growth"], percent)


def of_recovery(results: Results) -> Iterator[Target]:
    """Jobs of killed workers, and long jobs."""
    for result in results:
        if result["case"] == "killed":
            limit = result["lease"] + recovery.WANTED
            value = None if result["lost"] else result["slowest"]
            figure = f"a killed worker's jobs run again, lease {result['lease']:.0f} s"
            # A job that never came back is no unknown: it is a failure.
            target = Target.at_most(figure, limit, value, seconds)
            yield Target(figure, target.wanted, target.measured, bool(target.reached))
        else:
            yield Target.at_most("jobs longer than the lease, taken away", 0, result["taken"], whole)


def section(found: Sequence[Target]) -> str:
    """Return the table."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [(target.figure, target.wanted, target.measured, words[target.reached]) for target in found]
    return table(("figure", "wanted", "measured", "ok"), rows)


def milliseconds(value: float | None) -> str:
    """Write milliseconds."""
    return number(value, " ms")


def megabytes(value: float | None) -> str:
    """Write megabytes."""
    return number(value, " MB")


def seconds(value: float | None) -> str:
    """Write seconds."""
    return number(value, " s")


def percent(value: float | None) -> str:
    """Write a share."""
    return "–" if value is None else f"{value:.1%}"


def whole(value: float | None) -> str:
    """Write a count."""
    return number(value, digits=0)


def plural(count: int, noun: str) -> str:
    """Return the noun for so many of a thing."""
    return noun if count == 1 else f"{noun}es"


FLAT_NAMES = {
    flat.BACKLOG: "a backlog and a history",
    flat.FUTURE: "jobs due later at higher priorities",
    flat.QUEUES: f"{flat.QUEUE_NAMES} queues",
    flat.HELD: "an old snapshot held open",
}
FIGURES = {
    "drain": of_drain,
    "enqueue": of_enqueue,
    "pickup": of_pickup,
    "flat": of_flat,
    "sqlite": of_sqlite,
    "memory": of_memory,
    "recovery": of_recovery,
}
