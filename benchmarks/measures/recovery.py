"""`--recovery`: what becomes of the jobs of a worker that is killed, and of long jobs on one that lives.

One worker has a full house of jobs that sleep, and another one waits. The first is killed by SIGKILL:
measured is the time until each of its jobs has started again. Then two workers run jobs that last three
leases: counted are those that start more than once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import BACKWAVE
from benchmarks.environment import say
from benchmarks.figures import number, table
from benchmarks.site import START, Place, Site, wait_for

#: Seconds beyond the lease within which the jobs must have started again; how long to wait for the last.
WANTED, PATIENCE = 5.0, 30.0
LONG = 3


def measure(site: Site, *, lease: float) -> list[dict[str, Any]]:
    """Do both; a part that fails is noted and left out."""
    results = []
    for part in (killed, long):
        try:
            results.append(part(site, lease))
        except Exception as error:
            site.note(f"recovery, {part.__name__}, failed: {str(error).strip()[-600:]}")
    return results


def killed(site: Site, lease: float) -> dict[str, Any]:
    """Kill a worker; return how long its jobs were without one."""
    with site.place(BACKWAVE) as place, place.workers(1, "--lease", str(lease)) as running:
        jobs = site.concurrency
        victim = running.first()
        place.client("sleepers", jobs, 600.0)
        expect(wait_for(lambda: runs(place, 1) == jobs, START, running), "the jobs to start", running.tail())
        place.start(running, "survivor", "--lease", str(lease))
        # As soon as the other one has come to its first claim; a start-up is not what is measured.
        time.sleep(lease)
        at = time.monotonic()
        running.kill(victim)
        wait_for(lambda: runs(place, 2) == jobs, lease + PATIENCE, running)
        again = [lines[1] - at for lines in starts(place) if len(lines) > 1]
        running.kill_all()
    result = {
        "case": "killed",
        "lease": lease,
        "slowest": max(again, default=None),
        "lost": jobs - len(again),
    }
    say(f"  killed: the last of {jobs} jobs started again after {number(result['slowest'], ' s')}")
    return result


def long(site: Site, lease: float) -> dict[str, Any]:
    """Run jobs for longer than the lease; return how many started more than once."""
    with site.place(BACKWAVE) as place, place.workers(2, "--lease", str(lease)) as running:
        jobs = site.concurrency
        place.client("sleepers", jobs, LONG * lease)
        expect(wait_for(lambda: runs(place, 1) == jobs, START, running), "the jobs to start", running.tail())
        # A second start is waited for until each job has ended, and one lease more.
        wait_for(lambda: runs(place, 2) > 0, (LONG + 1) * lease, running)
        taken = runs(place, 2)
        running.kill_all()
    say(f"  jobs of {LONG} leases: {taken} of {jobs} started more than once")
    return {"case": "long", "lease": lease, "taken": taken, "jobs": jobs}


def starts(place: Place) -> list[list[float]]:
    """Return, for each job, the instants at which it started."""
    files = sorted(place.folder.glob("*.txt"))
    return [[float(line.split()[0]) for line in file.read_text().splitlines()] for file in files]


def runs(place: Place, times: int) -> int:
    """Return how many jobs started at least so many times."""
    return sum(len(lines) >= times for lines in starts(place))


def expect(came: bool, what: str, log: str) -> None:
    """Raise TimeoutError unless it came."""
    if not came:
        raise TimeoutError(f"Waited in vain for {what}.\n{log}")


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    rows = []
    for result in results:
        lease = f"lease {result['lease']:.0f} s"
        if result["case"] == "killed":
            rows.append((f"{lease}: all jobs of a killed worker run again", number(result["slowest"], " s")))
        else:
            rows.append((f"{lease}: jobs of {LONG} leases that ran more than once", str(result["taken"])))
    return table(("recovery", "measured"), rows)
