"""Each oracle bites: the system is broken on purpose, and the simulator says so, by a seed that replays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.databases import chosen
from tests.simulation.faults import Plan
from tests.simulation.oracles import ORACLES
from tests.simulation.runs import Result, run
from tests.simulation.sabotage import SABOTAGES, Sabotage

pytestmark = [pytest.mark.slow, pytest.mark.only_on("sqlite", "postgres")]

#: Seeds within which a sabotage must be noticed.
ENOUGH = 60

#: Those of this run's database; where the simulator has none, all of them are skipped.
HERE = [sabotage for sabotage in SABOTAGES if chosen() in sabotage.databases] or SABOTAGES


def first_failure(database: Any, first: int) -> Result:
    for seed in range(first, first + ENOUGH):
        result = run(Plan(seed, database.name), database)
        if result.violation is not None:
            return result
    raise AssertionError(f"no oracle has noticed anything in {ENOUGH} runs")


@pytest.mark.parametrize("sabotage", HERE, ids=[sabotage.name for sabotage in HERE])
def test_an_oracle_notices(database: Any, sabotage: Sabotage) -> None:
    """What the sabotage breaks is told by the oracle that watches over it, and again in a replay."""
    with sabotage.broken():
        failed = first_failure(database, sabotage.first)
        again = run(failed.plan, database)

    assert failed.violation is not None
    assert failed.violation.oracle in sabotage.oracles, failed.violation
    assert (again.violation, again.digest) == (failed.violation, failed.digest)


def test_every_oracle_is_proven() -> None:
    """No oracle is without a sabotage, on this database, that it must notice."""
    proven = {sabotage.oracles[0] for sabotage in HERE if len(sabotage.oracles) == 1}

    assert ORACLES.keys() - proven == set()
