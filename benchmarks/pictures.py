"""The names of the charts, and what they show."""

from __future__ import annotations

SIZE_CHART, SNAPSHOT_CHART = "benchmarks-size.svg", "benchmarks-snapshot.svg"
ALTERNATIVES = {
    SIZE_CHART: "Drain rate over the number of jobs in the tables",
    SNAPSHOT_CHART: "Drain rate over time, with and without an old snapshot",
}
