"""`--memory`: what one worker process of django_backwave holds in memory, and whether it grows.

One worker drains jobs on PostgreSQL, and its resident set is read twice a second: the peak when 100,000
jobs have run, and how much more than after the first tenth it holds at the end. The peaks of the others
stand in the table of `--drain`, over fewer jobs; there, the pages that forked processes share are counted
for each of them. The mapped file of the stamps, 8 bytes a job, is the harness's and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.environment import say
from benchmarks.figures import median, number, table
from benchmarks.measures.drain import open_gate
from benchmarks.measures.flat import fresh
from benchmarks.site import Site

#: Jobs after which the peak is read.
PEAK_AT = 100_000
#: Shares of the run: the warm-up, and what is taken as its end.
WARM_UP, END = 0.1, 0.9
#: Seconds between two looks, and for a run.
STEP, PATIENCE = 0.5, 1800.0


def measure(site: Site, *, jobs: int) -> list[dict[str, Any]]:
    """Drain so many jobs with one worker."""
    with fresh(site) as rows:
        rows.ready(jobs)
        rows.place.settle_down()
        stamps = rows.place.stamps(jobs)
        with rows.place.workers(1) as running:
            open_gate(site, rows.place, stamps, running, 1)
            samples: list[tuple[int, float, float]] = []
            deadline = time.monotonic() + PATIENCE
            while not samples or (samples[-1][0] < jobs and time.monotonic() < deadline):
                time.sleep(STEP)
                running.raise_if_dead()
                samples.append((stamps.done(), *running.memory(stamps.path)[0]))
    done = min(samples[-1][0], jobs)
    if done < jobs:
        site.note(f"memory: only {done:,} of {jobs:,} jobs ran in {PATIENCE:.0f} s")
    result = summary(samples) | {"jobs": done}
    say(f"  peak {result['peak']:.1f} MB, growth {result['growth']:.1%} over {done:,} jobs")
    return [result]


def summary(samples: Sequence[tuple[int, float, float]]) -> dict[str, Any]:
    """Return the peak and the growth of (jobs done, peak MB, MB) in the order of time."""
    total = samples[-1][0]
    early = [peak for done, peak, _ in samples if done <= PEAK_AT] or [samples[0][1]]
    warm = median(now for done, _, now in samples if WARM_UP * total <= done <= 2 * WARM_UP * total)
    end = median(now for done, _, now in samples if done >= END * total)
    return {
        "peak": max(early),
        "growth": end / warm - 1 if warm and end else 0.0,
        "samples": [list(sample) for sample in samples],
    }


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    rows = [(f"{result['jobs']:,}", number(result["peak"]), f"{result['growth']:+.1%}") for result in results]
    return table(("jobs", f"peak up to {PEAK_AT:,}, MB", "growth after the first tenth"), rows)
