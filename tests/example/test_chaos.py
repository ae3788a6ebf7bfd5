"""The shop's orders under chaos (G7): exact with an atomic job, and not without.

`make chaos` runs 500 orders; here are fewer, so that it takes seconds.
"""

from __future__ import annotations

import re

import pytest

from tests.example.test_demo import run

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.only_on("sqlite", "postgres")]

ORDERS, HITS = 100, 5


def test_an_atomic_jobs_ledger_is_exact_and_anothers_is_not() -> None:
    done = run("example_project/manage.py", "chaos", "--orders", str(ORDERS), "--hits", str(HITS))

    assert done.returncode == 0, done.stdout + done.stderr
    [atomic], [careless] = (re.findall(rf"^ +{word} .*", done.stdout, re.MULTILINE) for word in ("yes", "no"))
    orders, kills, hits, _freezes, _abandoned, entries, twice, off = map(int, atomic.split()[1:9])
    assert orders == entries >= ORDERS
    assert kills >= hits >= HITS
    assert (twice, off) == (0, 0)
    orders, _kills, hits, _freezes, _abandoned, entries, twice, off = map(int, careless.split()[1:9])
    assert hits >= HITS
    assert twice > 0
    assert off > 0
    assert entries > orders


CHECK = """
import django; django.setup()
from shop.chaos import Tally
from shop.demo.show import DemoFailed

good = dict(orders=9, kills=5, hits=5, entries=9)
for atomic, changes in (
    (True, {}),
    (True, {"twice": 1}),
    (True, {"entries": 10}),
    (True, {"off": 1}),
    (True, {"missing": 1}),
    (True, {"unfinished": 1}),
    (True, {"hits": 4}),
    (False, {}),
    (False, {"twice": 1}),
):
    try:
        Tally("run", **good | changes).check(atomic=atomic, hits=5)
        print("shown")
    except DemoFailed as error:
        print("refused:", error)
"""


def test_a_run_that_shows_nothing_fails() -> None:
    done = run("-c", CHECK)

    assert done.returncode == 0, done.stderr
    verdicts = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert verdicts == ["shown", *["refused"] * 7, "shown"]
