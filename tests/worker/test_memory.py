"""How often a worker's process looks for garbage in cycles."""

from __future__ import annotations

import gc

import pytest

from django_backwave.worker.memory import COLLECT_AFTER, collect_less_often
from tests.worker.support import enqueue, read, run_worker


@pytest.fixture
def collector():
    """Leave the collector as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(
    ("chosen", "comes"),
    [(700, COLLECT_AFTER), (COLLECT_AFTER + 1, COLLECT_AFTER + 1), (0, 0)],
    ids=["Python's own", "more", "switched off"],
)
def test_it_looks_less_often_unless_the_project_has_said_so_itself(chosen, comes):
    gc.set_threshold(chosen, 7, 8)

    collect_less_often()

    assert gc.get_threshold()[:2] == (comes, 7)
    assert gc.get_freeze_count() > 10_000


@pytest.mark.process
@pytest.mark.django_db(transaction=True)
def test_a_workers_process_does_so_before_its_first_job():
    job = enqueue("collector")

    assert run_worker("--drain").code == 0

    threshold, frozen = read(job).output
    assert threshold == COLLECT_AFTER
    assert frozen > 10_000
