"""`python -m benchmarks`: measure, and write a report to build/bench."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment, options, report, server
from benchmarks.contestants import BACKWAVE, Contestant
from benchmarks.measures import drain, enqueue, flat, memory, pickup, recovery, sqlite
from benchmarks.paths import ROOT
from benchmarks.processes import SOURCE
from benchmarks.site import Site

type Measure = Callable[[Site, Sequence[Contestant], argparse.Namespace], list[dict[str, Any]]]


def of_drain(site: Site, chosen: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the contestants that have workers."""
    return drain.measure(site, [one for one in chosen if one.worker], jobs=given.jobs, rounds=given.rounds)


def of_enqueue(site: Site, chosen: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the contestants that enqueue in a way of their own."""
    enqueuing = [one for one in chosen if one.enqueues]
    return enqueue.measure(site, enqueuing, singly=given.singly, bulk=given.bulk, rounds=given.rounds)


def of_pickup(site: Site, chosen: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the contestants that have workers."""
    return pickup.measure(site, [one for one in chosen if one.worker], jobs=given.waits)


def of_flat(site: Site, _: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure django_backwave."""
    sizes = flat.Sizes(given.flat_jobs, given.ready, given.finished, given.future, given.seconds)
    return flat.measure(site, sizes, rounds=given.rounds)


def of_sqlite(site: Site, _: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure django_backwave."""
    return sqlite.measure(site, jobs=given.sqlite_jobs, enqueued=given.sqlite_jobs // 10, rounds=given.rounds)


def of_memory(site: Site, _: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure django_backwave."""
    return memory.measure(site, jobs=given.memory_jobs)


def of_recovery(site: Site, _: Sequence[Contestant], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure django_backwave."""
    return recovery.measure(site, lease=float(given.lease))


MEASURES: Mapping[str, Measure] = {
    "drain": of_drain,
    "enqueue": of_enqueue,
    "pickup": of_pickup,
    "flat": of_flat,
    "sqlite": of_sqlite,
    "memory": of_memory,
    "recovery": of_recovery,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status."""
    given = options.parse(arguments)
    if given.publish:
        report.publish()
        return 0
    # So that a `kill` unwinds as Ctrl-C does: processes end, databases go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if given.source:
        os.environ[SOURCE] = str(Path(given.source).resolve())
    environment.ensure()
    with (
        server.databases(given.postgres_url) as databases,
        tempfile.TemporaryDirectory(prefix="backwave-bench-") as folder,
    ):
        brokers = reachable(given)
        site = Site(databases=databases, brokers=brokers, folder=Path(folder), concurrency=given.concurrency)
        run(site, given)
    print(report.REPORT.read_text())
    return 0


def run(site: Site, given: argparse.Namespace) -> None:
    """Take all measures, and write the report after each."""
    wanted = given.chosen if set(given.measures) & set(options.COMPARING) else [BACKWAVE]
    chosen = [one for one in wanted if site.serves(one)]
    absent = [one.name for one in wanted if one not in chosen]
    data = report.load() if given.add else report.nothing()
    report.know(data, facts(site, chosen, absent))
    for name in given.measures:
        environment.say(f"{name}: {options.MEASURES[name]}")
        site.notes.clear()
        results = MEASURES[name](site, chosen, given)
        report.record(data, name, results, sizes=given.sizes[name], notes=site.notes)


def reachable(given: argparse.Namespace) -> dict[str, str]:
    """Return the brokers that answer."""
    brokers = {"rabbitmq": given.rabbitmq_url, "redis": given.redis_url}
    return {name: url for name, url in brokers.items() if server.answers(url)}


def facts(site: Site, chosen: Sequence[Contestant], absent: Sequence[str]) -> dict[str, Any]:
    """Return what must be known of the machine, the server and the contestants."""
    packages = [package for contestant in chosen for package in contestant.packages]
    return {
        "machine": environment.machine(),
        "postgres": site.databases.settings(),
        "versions": {"django_backwave": environment.revision(Path(os.environ.get(SOURCE, ROOT)))}
        | environment.versions(["Django", "psycopg", *packages]),
        "contestants": [contestant.name for contestant in chosen],
        "missing": f"{', '.join(absent)}: no broker answered" if absent else "",
    }


if __name__ == "__main__":
    sys.exit(main())
