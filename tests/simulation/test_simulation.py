"""Runs of the simulator: none fails, each replays exactly, and a failing one is minimised and told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.databases import chosen
from tests.simulation.command import PLANS, minimised
from tests.simulation.faults import Plan
from tests.simulation.report import EDGES, SITUATIONS_OF, Coverage, failure
from tests.simulation.runs import Result, run
from tests.simulation.shrink import shrink
from tests.simulation.streams import Streams

#: Seeds of one database that each run of the tests takes.
SEEDS = range(24)

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.slow
@pytest.mark.only_on("sqlite", "postgres")
def test_no_oracle_finds_anything(database: Any, seed: int) -> None:
    """A run of each seed ends without a finding; if not, its seed and its last steps are told."""
    result = run(Plan(seed, database.name), database)

    assert result.violation is None, "\n".join([*result.trace[-30:], *failure(result)])


@pytest.mark.slow
@pytest.mark.only_on("sqlite", "postgres")
def test_what_was_found_once_is_found_no_more(database: Any) -> None:
    """Each plan of this database that has failed before is clean now."""
    kept = [
        plan for path in sorted(PLANS.glob("*.json")) if (plan := Plan.of_file(path)).database == chosen()
    ]

    results = [run(plan, database) for plan in kept]

    assert results
    for result in results:
        assert result.violation is None, "\n".join([*result.trace[-30:], *failure(result)])


@pytest.mark.slow
@pytest.mark.only_on("sqlite", "postgres")
def test_a_seed_replays_exactly(database: Any) -> None:
    """Two runs of one seed take the same steps at the same instants."""
    first, again = (run(Plan(5, database.name), database) for _ in range(2))

    assert first.trace == again.trace
    assert first.digest == again.digest


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.only_on("sqlite")
def test_a_replay_depends_on_no_hash_seed() -> None:
    """Processes with different hash seeds print the same hash of the trace."""

    def replay(hash_seed: str) -> str:
        return subprocess.check_output(
            [sys.executable, "-m", "tests.simulation", "--seed", "6", "--database", "sqlite"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            text=True,
        )

    first = replay("1")

    assert "trace" in first
    assert first == replay("2")


@pytest.mark.slow
@pytest.mark.only_on("sqlite")
def test_the_list_of_its_faults_is_all_that_a_run_needs(database: Any) -> None:
    """A run with the faults that a seed drew, given as a list, is that seed's run."""
    drawn = run(Plan(9, database.name), database)

    assert run(drawn.plan.with_only(drawn.faults), database).trace == drawn.trace


def test_a_fault_left_out_leaves_the_others_as_they_are() -> None:
    """What an address draws depends on the seed and on the address, and on nothing that was drawn before."""
    first, second = Streams(7), Streams(7)
    first.of("fault", "freeze:0:0").unit()

    assert first.of("fault", "fail:3:1").unit() == second.of("fault", "fail:3:1").unit()


def test_shrinking_leaves_what_it_takes_to_fail() -> None:
    """Of a hundred faults, the two that make the failure together are left."""
    faults = [str(number) for number in range(100)]

    assert shrink(faults, lambda some: {"17", "64"} <= set(some), budget=500) == ["17", "64"]


def test_shrinking_ends_with_nothing_if_no_fault_is_needed() -> None:
    """What fails by itself needs no fault."""
    assert shrink(["a", "b", "c"], lambda _: True) == []


@pytest.mark.slow
@pytest.mark.only_on("sqlite")
def test_a_failure_is_minimised_and_told(database: Any) -> None:
    """What is told of a failing run is its seed, how to replay it, and few of its faults."""
    from tests.simulation.sabotage import SABOTAGES

    [sabotage] = [each for each in SABOTAGES if each.name == "a success can be sent back"]
    with sabotage.broken():
        result = next(
            result
            for seed in range(60)
            if (result := run(Plan(seed, database.name), database)).violation is not None
        )
        faults = minimised(result, database)
        told = list(failure(result, faults=faults))
        again = run(result.plan.with_only(faults), database)

    assert told[0].startswith(f"FAILED sqlite seed {result.plan.seed}: legal-moves: ")
    assert told[1] == f"replay: python -m tests.simulation --seed {result.plan.seed} --database sqlite"
    assert told[3:] == [f"  {fault}" for fault in faults]
    assert len(faults) <= len(result.faults) // 2
    assert again.violation is not None
    assert again.violation.oracle == "legal-moves"


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """A plan that was kept is read as it was."""
    plan = Plan(2**64 - 1, "sqlite", ("freeze:0:1", "fail:3:2"), name="two rivals")
    (tmp_path / "plan.json").write_text(plan.to_json())

    assert Plan.of_file(tmp_path / "plan.json") == plan


def test_coverage_names_what_was_never_met() -> None:
    """A situation of either database, or a move of the table, that no run has met is named."""
    coverage = Coverage()
    seen = dict.fromkeys(SITUATIONS_OF["sqlite"] - {"lease swept"}, 1)
    edges = dict.fromkeys(EDGES - {(1, 2)}, 1)
    coverage.add(_result(seen, edges))

    assert coverage.missing() == ["sqlite: lease swept", "move: ready → running"]


def _result(situations: dict[str, int], edges: dict[tuple[int, int], int]) -> Result:
    plan = Plan(1, "sqlite")
    return Result(plan, None, "", 1.0, 1, [], situations, edges, [])
