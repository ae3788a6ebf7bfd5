"""``backwave_prune`` and keys: what it forgets by itself, and what with ``--keys-idle-for`` alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_backwave.models import Job, Key
from django_backwave.store import keys
from tests.store.generations import enqueue, keyed, settle

pytestmark = pytest.mark.django_db


def run_and_grow_old(*windows: str | float, days: float = 8) -> None:
    """Run a job for each window, under the keys "k0", "k1" …, so many days ago."""
    at = datetime.now(UTC) - timedelta(days=days)
    enqueue(*(keyed(f"k{number}", window=window) for number, window in enumerate(windows)), now=at)
    for _ in windows:
        settle(now=at)


def prune(*arguments: str) -> str:
    out = StringIO()
    call_command("backwave_prune", *arguments, stdout=out)
    return out.getvalue().strip()


def left() -> list[str]:
    return sorted(Key.objects.values_list("key", flat=True))


def test_what_is_over_is_forgotten_with_its_job():
    run_and_grow_old("forever", "unfinished", 3600.0, 30 * 24 * 3600.0)

    assert prune() == "Deleted 4 jobs. Forgot 2 keys."

    assert left() == ["k0", "k3"]
    assert prune() == "Deleted 0 jobs."


def test_for_ever_ends_when_nobody_has_asked_in_so_many_days():
    """A window that is not over yet is kept all the same."""
    run_and_grow_old("forever", "forever", 30 * 24 * 3600.0)
    enqueue(key="k1", now=datetime.now(UTC))

    assert prune("--keys-idle-for", "9") == "Deleted 3 jobs."
    assert prune("--keys-idle-for", "7.5") == "Deleted 0 jobs. Forgot 1 key."
    assert left() == ["k1", "k2"]
    assert prune("--keys-idle-for", "0") == "Deleted 0 jobs. Forgot 1 key."
    assert left() == ["k2"]


def test_a_key_with_a_job_is_never_forgotten():
    run_and_grow_old("forever", "unfinished", days=3)

    assert prune("--keys-idle-for", "0") == "Deleted 0 jobs."
    assert Job.objects.count() == Key.objects.count() == 2


def test_a_dry_run_counts_keys_of_which_no_job_is_left():
    run_and_grow_old("forever", "unfinished")
    assert prune("--dry-run", "--keys-idle-for", "1") == "Would delete 2 jobs."
    Job.objects.all().delete()
    Key.objects.update(settled_as=3)

    assert prune("--dry-run") == "Would delete 0 jobs. Would forget 1 key."
    assert prune("--dry-run", "--keys-idle-for", "1") == "Would delete 0 jobs. Would forget 2 keys."
    assert len(left()) == 2


def test_slice_by_slice(monkeypatch):
    monkeypatch.setattr(keys, "SLICE", 2)
    run_and_grow_old(*["forever"] * 5)

    assert prune("--keys-idle-for", "1") == "Deleted 5 jobs. Forgot 5 keys."


@pytest.mark.parametrize("given", ["-1", "x", "100001", "nan"])
def test_a_wrong_age_is_refused(given):
    with pytest.raises(CommandError, match="must be a number of days between 0 and 100,000"):
        prune(f"--keys-idle-for={given}")
