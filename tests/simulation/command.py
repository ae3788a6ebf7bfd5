"""The simulator's command line.

python -m tests.simulation --seeds 300             seeds 0 to 299, each on its database
python -m tests.simulation --seed 17 --verbose     one run, with its trace
python -m tests.simulation --minutes 10            seeds that nobody has tried, for ten minutes
python -m tests.simulation --plan FILE             a plan that was kept
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.simulation.streams import SEEDS

PLANS = Path(__file__).parent / "plans"

_opened: dict[str, Any] = {}


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; return 1 if an oracle has found something."""
    options = _options(arguments)
    with ExitStack() as stack:
        _provide(options, stack)
        _set_up()
        if options.seed is not None or options.plan is not None:
            return _one(options)
        return _many(options)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate whole systems.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=_seed, help="replay one run, with its trace's hash")
    what.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    what.add_argument("--minutes", type=float, help="new seeds for so long; 0: until stopped")
    what.add_argument("--plan", type=Path, help="replay a plan kept in a file")
    parser.add_argument("--from", dest="start", type=_seed, default=0, help="the first of the seeds (0)")
    parser.add_argument("--database", choices=("sqlite", "postgres"), help="for all; else half and half")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="(one for each core)")
    parser.add_argument("--keep", action="store_true", help="keep the plan of a run that fails, minimised")
    parser.add_argument("--coverage", action="store_true", help="fail if something was never met")
    parser.add_argument("--verbose", action="store_true", help="print the whole trace")
    return parser.parse_args(arguments)


def _seed(text: str) -> int:
    seed = int(text, 0)
    if not 0 <= seed < SEEDS:
        raise argparse.ArgumentTypeError(f"a seed lies between 0 and 2**64 - 1, got {text}")
    return seed


def database_of(seed: int) -> str:
    """Return the database of a seed, where none is asked for."""
    return "postgres" if seed % 2 else "sqlite"


def _provide(options: argparse.Namespace, stack: ExitStack) -> None:
    """Start a PostgreSQL server, if one is needed and none is given."""
    name = "BACKWAVE_TEST_POSTGRES_URL"
    needed = options.database != "sqlite" or options.plan is not None
    if needed and not os.environ.get(name):
        from tests.postgres import PostgresServer

        os.environ[name] = stack.enter_context(PostgresServer()).url("postgres")


def _set_up() -> None:
    import django

    os.environ["BACKWAVE_TEST_DATABASE"] = "sqlite"  # what `default` is does not matter: nobody uses it
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()


def opened(name: str) -> Any:
    """Return a database of this process; it is made at the first use."""
    from tests.simulation.database import InMemory, Postgres

    if name not in _opened:
        for other in list(_opened):
            _opened.pop(other).close()  # they share an alias
        _opened[name] = InMemory() if name == "sqlite" else Postgres(os.environ["BACKWAVE_TEST_POSTGRES_URL"])
    return _opened[name]


def _run(plan: Any) -> Any:
    from tests.simulation.runs import run

    result = run(plan, opened(plan.database))
    return result if result.violation else replace(result, trace=[])


def _one(options: argparse.Namespace) -> int:
    from tests.simulation.faults import Plan
    from tests.simulation.report import failure
    from tests.simulation.runs import run

    if options.plan is not None:
        plan = Plan.of_file(options.plan)
    else:
        plan = Plan(options.seed, options.database or database_of(options.seed))
    result = run(plan, opened(plan.database))
    if options.verbose:
        _say(result.trace)
    _say([f"{plan.database} seed {plan.seed}: {len(result.faults)} faults, trace {result.digest}"])
    if result.violation is None:
        return 0
    if not options.verbose:
        _say(result.trace[-30:])
    _say(failure(result, faults=minimised(result, opened(plan.database))))
    return 1


def minimised(result: Any, database: Any) -> list[str]:
    """Return the smallest list of faults with which the same oracle speaks."""
    from tests.simulation.runs import run
    from tests.simulation.shrink import shrink

    def fails(faults: list[str]) -> bool:
        again = run(result.plan.with_only(faults), database).violation
        return again is not None and again.oracle == result.violation.oracle

    return shrink(result.faults, fails) if fails(result.faults) else result.faults


def _plans(options: argparse.Namespace) -> Iterator[Any]:
    from tests.simulation.faults import Plan

    if options.minutes is None:
        seeds: Iterator[int] = islice(count(options.start), options.seeds)
    else:
        until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        seeds = iter(lambda: secrets.randbits(64) if time.monotonic() < until else -1, -1)
    for seed in seeds:
        yield Plan(seed, options.database or database_of(seed))


def _many(options: argparse.Namespace) -> int:
    from tests.simulation.report import Coverage

    began, coverage = time.monotonic(), Coverage()
    told: set[str] = set()  # by which oracles: of each, the first failure is minimised
    with suppress(KeyboardInterrupt):
        for result in _results(options):
            coverage.add(result)
            if result.violation is not None:
                new = result.violation.oracle not in told
                told.add(result.violation.oracle)
                _tell(result, keep=options.keep, minimise=new)
            if coverage.runs % 500 == 0:
                _say([f"{coverage.runs} runs, {len(coverage.failures)} failed"])
    _say(coverage.lines())
    _say([f"{coverage.runs / (time.monotonic() - began):.2f} runs/s, {len(coverage.failures)} failed"])
    missing = coverage.missing()
    _say(f"never met: {each}" for each in missing)
    return int(bool(coverage.failures) or (options.coverage and bool(missing)))


def _results(options: argparse.Namespace) -> Iterator[Any]:
    """Yield results as they come, from as many processes as there may be, each on one database."""
    names = [options.database] if options.database else ["sqlite", "postgres"]
    size = max(1, options.processes // len(names))
    plans = _plans(options)
    with ExitStack() as stack:
        pools = {name: ProcessPoolExecutor(size, get_context("spawn"), _be_a_child) for name in names}
        for pool in pools.values():
            stack.callback(pool.shutdown, cancel_futures=True)
        waiting: deque[Any] = deque()
        for plan in plans:
            waiting.append(pools[plan.database].submit(_run, plan))
            while len(waiting) > 8 * len(names) * size:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _be_a_child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _set_up()


def _tell(result: Any, *, keep: bool, minimise: bool) -> None:
    from tests.simulation.report import failure

    faults = minimised(result, opened(result.plan.database)) if minimise else None
    _say(result.trace[-12:])
    _say(failure(result, faults=faults))
    if keep:
        plan = replace(result.plan.with_only(faults or result.faults), name=result.violation.text)
        (PLANS / f"{plan.database}-{plan.seed}.json").write_text(plan.to_json())


def _say(lines: Any) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
