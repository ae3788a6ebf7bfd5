"""``backwave_worker --reload``: code changes, and the worker starts anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_backwave.core.states import JobState
from tests import processes
from tests.processes import LIFE, wait_until
from tests.worker.support import outcomes, read, started, wait_for_state

pytestmark = [pytest.mark.process, pytest.mark.django_db(transaction=True)]


def test_a_change_starts_the_worker_anew_and_hands_back_what_ran(tmp_path):
    """G11: an edit costs no failure, and nobody waits for a lease to lapse."""
    module = tmp_path / "edited.py"
    module.write_text("from django_backwave import job\n\n\n@job\ndef first(): ...\n")
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
        "BACKWAVE_TEST_DEBUG": "yes",
        "BACKWAVE_TEST_MODULES": "edited",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    # The reloader itself is killed at the end: the worker below it must notice.
    with processes.worker("--reload", **environment) as process:
        assert process.wait_for("action=worker_started", "edited.first")
        held = started(tmp_path / "held", "hold_obediently")

        module.write_text(module.read_text() + "\n\n@job\ndef second(): ...\n")

        wait_until(lambda: noticed(process, module), deadline=LIFE, what=process)
        process.wait_for("action=worker_started", "edited.second")
        held.wait_for("started 2")
        held.go()
        row = wait_for_state(held.job, JobState.SUCCEEDED)
        [first, *_, second] = [pid_of(line) for line in process.said("action=worker_started")]
        assert first != second
    assert (row.failures, outcomes(held.job)) == (0, [(1, "released"), (2, "succeeded")])
    wait_until(lambda: not alive(second), deadline=LIFE, what=f"the end of process {second}")
    assert read(held.job).output == 2


def noticed(process: processes.Process, module: Path) -> bool:
    """Touch the module until the reloader, which looks once a second, has seen two different times."""
    if process.said("edited.py changed, reloading"):
        return True
    os.utime(module)
    return False


def pid_of(line: str) -> int:
    found = re.search(r"worker=[^:]+:(\d+):", line)
    assert found, line
    return int(found[1])


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not waited for counts as ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_for_development_only():
    with pytest.raises(CommandError, match="--reload is for development: it needs DEBUG = True"):
        call_command("backwave_worker", "--reload")
