"""`manage.py demo` runs as a newcomer runs it, and does not say that all is well when it is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import SERVER_URLS, chosen

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.only_on("sqlite", "postgres")]

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "example_project"


def environment() -> dict[str, str]:
    """Return what a process of the shop needs to work on the database of this run."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("BACKWAVE_TEST")}
    kept |= {"PYTHONPATH": f"{ROOT}:{SHOP}", "DJANGO_SETTINGS_MODULE": "config.settings"}
    if chosen() == "sqlite":
        kept.pop("DATABASE_URL", None)
    else:
        kept["DATABASE_URL"] = os.environ[SERVER_URLS[chosen()]]
    return kept


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python from the repository's root, as `make demo` does."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def row(output: str, start: str) -> str:
    """Return the line of the table that starts so, without the spaces between its columns."""
    [found] = re.findall(rf"^{start}.*", output, re.MULTILINE)
    return " ".join(str(found).split())


def test_the_demo_shows_what_is_promised() -> None:
    done = run("example_project/manage.py", "demo")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "20 orders placed: 19 committed, 1 rolled back" in done.stdout
    assert "0 jobs lost" in done.stdout
    assert "0 orders charged twice" in done.stdout
    assert re.search(r"19 orders charged, by \d+ calls of which \d+ were repeats", done.stdout)
    assert "outcome=stale" in done.stdout
    assert "refused=succeeded" in done.stdout
    assert "2 calls, 1 key A was killed" in row(done.stdout, r"7 +send_receipt +succeeded")
    assert "2 calls, 1 key B was frozen" in row(done.stdout, r"12 +send_receipt +succeeded")
    assert "rolled back" in row(done.stdout, r"13 +- ")
    assert "cancelled" in row(done.stdout, r"3 +pack_parcel")
    assert "dead-lettered 1 abandoned D1" in row(done.stdout, r"5 +print_label")
    assert "3 abandoned D3" in done.stdout
    assert "1 abandoned E - not atomic: twice in the ledger" in row(done.stdout, r"9 +take_twice")
    assert "1 abandoned F - atomic: once in the ledger" in row(done.stdout, r"10 +take_once")
    assert [line for line in done.stdout.splitlines() if len(line) > 100] == []


FAULTS = {
    "a lost job": ("order.receipt_job = new_id(); order.save()", "have no receipt"),
    "an order charged twice": ('charge("other key")', "charged twice"),
    "an order not charged": ('Order.objects.update(receipt="")', "were not charged"),
    "an order that does not exist": ('charge("k2", order=999)', "does not exist was charged"),
    "no repeat": ("calls.pop(); calls.pop()", "shown nothing"),
    "an outcome recorded twice": ("attempt(2)", "succeeded twice"),
    "nothing": ("pass", ""),
}

SUMS = """
import sys, django; django.setup()
from unittest import mock
from django.utils import timezone
from django_backwave import JobState
from django_backwave.ids import new_id
from django_backwave.models import Attempt, Job
from shop import gateway
from shop.demo.processes import own_surroundings
from shop.demo.report import print_sums
from shop.demo.show import DemoFailed
from shop.jobs import send_receipt
from shop.models import Order

def charge(key, order=None):
    if order is None:
        order = Order.objects.get().pk
    gateway.charge(key=key, order=order, amount=1, attempt=1)

def attempt(number):
    Attempt.objects.create(
        job_id=order.receipt_job, number=number, outcome="succeeded", finished_at=timezone.now()
    )

with own_surroundings():
    order = Order.objects.create(email="a@example.com", item="lamp", amount=1, receipt="R-1")
    order.receipt_job = send_receipt.enqueue(order.pk).id
    order.save()
    Job.objects.update(state=JobState.SUCCEEDED)
    attempt(1)
    for _ in range(3):
        charge("key")
    calls = gateway.calls()
    {fault}
    fresh = {fault!r}.startswith("calls")
    with mock.patch.object(gateway, "calls", (lambda: calls) if fresh else gateway.calls):
        try:
            print_sums(placed=1, rolled_back=0)
        except DemoFailed as error:
            print("refused:", error)
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sums_notice(fault: str) -> None:
    code, complaint = FAULTS[fault]

    done = run("-c", SUMS.replace("{fault!r}", repr(code)).replace("{fault}", code))

    assert done.returncode == 0, done.stderr
    refusals = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert len(refusals) == bool(complaint)
    assert all(complaint in line for line in refusals)


def test_a_folder_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    done = run("example_project/manage.py", "demo", "--keep", str(tmp_path))

    assert done.returncode == 1
    assert "takes a new folder" in done.stderr
