"""`--enqueue`: how many jobs a client enqueues in a second, one by one and in bulk.

Each figure is of one client process and one connection, on an empty table. The clock starts after 50 jobs
that are not counted, for the one by one; the bulk is the first call of its process, as it would be in a
script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import Contestant
from benchmarks.environment import say
from benchmarks.figures import median, rate, table
from benchmarks.site import Site

ONE, BULK = "one by one", "bulk"


def measure(
    site: Site, contestants: Sequence[Contestant], *, singly: int, bulk: int, rounds: int
) -> list[dict[str, Any]]:
    """Enqueue in both ways, each contestant in turn, so many rounds."""
    results = []
    for turn in range(rounds):
        for contestant in contestants:
            for way, action, jobs in ((ONE, "timed", singly), (BULK, "bulk", bulk)):
                result = attempt(site, contestant, way, action, jobs)
                results.append(result)
                say(f"  round {turn + 1}: {contestant.name}, {way}: {rate(result['rate'])} jobs/s")
    return results


def attempt(site: Site, contestant: Contestant, way: str, action: str, jobs: int) -> dict[str, Any]:
    """Do one run; the rate is None if the contestant cannot, or if it failed, which is noted."""
    seconds = None
    try:
        with site.place(contestant) as place:
            seconds = place.client(action, jobs)
    except Exception as error:
        site.note(f"{contestant.name}, enqueue {way}, failed: {str(error).strip()[-600:]}")
    return {
        "contestant": contestant.name,
        "way": way,
        "jobs": jobs,
        "rate": jobs / seconds if seconds else None,
    }


def medians(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], float | None]:
    """Return the median rate for each contestant and way."""
    groups: dict[tuple[str, str], list[float | None]] = {}
    for result in results:
        groups.setdefault((result["contestant"], result["way"]), []).append(result["rate"])
    return {group: median(values) for group, values in groups.items()}


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    found = medians(results)
    names = dict.fromkeys(result["contestant"] for result in results)
    rows = [(name, rate(found.get((name, ONE))), rate(found.get((name, BULK)))) for name in names]
    return table(("contestant", "one by one, jobs/s", "bulk, jobs/s"), rows)
