"""`--sqlite`: django_backwave on one SQLite file, set up as its documentation says.

The drain is timed as everywhere, with one worker. Then four workers run while four clients enqueue one by
one: every client must come to its end, every job must run, and nobody may say "database is locked".
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from benchmarks.contestants import BACKWAVE
from benchmarks.environment import say
from benchmarks.figures import rate, table
from benchmarks.measures import drain
from benchmarks.site import Place, Site, wait_for

CONTESTANT = replace(BACKWAVE, name="django_backwave on SQLite", service="sqlite")
WORKERS, CLIENTS = 4, 4
LOCKED = "database is locked"
#: Seconds until a job that was enqueued must have run.
PATIENCE = 300.0


def measure(site: Site, *, jobs: int, enqueued: int, rounds: int) -> list[dict[str, Any]]:
    """Drain, and then work and enqueue from many processes at once; `enqueued` is for each client."""
    results = []
    for turn in range(rounds):
        result = {"case": "drain", **drain.attempt(site, CONTESTANT, 1, jobs)}
        results.append(result)
        say(f"  round {turn + 1}: drain: {rate(result.get('rate'))} jobs/s")
    try:
        results.append(together(site, enqueued))
    except Exception as error:
        site.note(f"SQLite with {WORKERS} workers failed: {str(error).strip()[-600:]}")
    return results


def together(site: Site, enqueued: int) -> dict[str, Any]:
    """Let workers and clients loose on one file; return how often one of them met a lock."""
    with site.place(CONTESTANT) as place:
        # Clients number their jobs alike: what counts is how many ran.
        stamps = place.stamps(enqueued)
        stamps.open()
        with place.workers(WORKERS) as running, ThreadPoolExecutor(CLIENTS) as pool:
            failures = [
                error for error in pool.map(lambda _: client(place, enqueued), range(CLIENTS)) if error
            ]
            done = wait_for(lambda: stamps.done() >= enqueued * CLIENTS, PATIENCE, running)
            log = place.log()
        told = "\n".join([*failures, log])
        if failures or LOCKED in told:
            site.note(f"SQLite with {WORKERS} workers: {told[-600:]}")
        result = {
            "case": "together",
            "locked": told.count(LOCKED),
            "failed clients": len(failures),
            "missing": 0 if done else enqueued * CLIENTS - stamps.done(),
        }
    met = f"{result['locked']} × {LOCKED!r}, {len(failures)} clients failed"
    say(f"  {WORKERS} workers, {CLIENTS} clients: {met}")
    return result


def client(place: Place, enqueued: int) -> str | None:
    """Enqueue from one process; return what it said if it failed."""
    try:
        place.client("each", enqueued)
    except RuntimeError as error:
        return str(error)
    return None


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    rates = drain.medians([result for result in results if result["case"] == "drain"])
    rows = [("drain with one worker, jobs/s", rate(rates.get((CONTESTANT.name, 1))))]
    for result in results:
        if result["case"] == "together":
            rows += [(f"{WORKERS} workers and {CLIENTS} clients: {what}", str(result[what])) for what in WHAT]
    return table(("SQLite", "measured"), rows)


WHAT = ("locked", "failed clients", "missing")
