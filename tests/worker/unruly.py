"""Handlers that make trouble for their process, and trouble at its start; for `test_supervisor.py`.

BACKWAVE_TEST_UNFIT     a file: while it exists, this module cannot be imported
BACKWAVE_TEST_KILL_AT   a failpoint: who passes there first kills its process …
BACKWAVE_TEST_KILLED    … and leaves this file
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from django_backwave import job
from django_backwave.store import failpoint

if Path(os.environ.get("BACKWAVE_TEST_UNFIT", "/nowhere/unfit")).exists():
    raise RuntimeError("unfit for work")

hoarded: list[bytearray] = []


@job
def hoard(megabytes: int) -> int:
    """Take memory and keep it; return the process."""
    hoarded.append(bytearray(os.urandom(1) * (megabytes * 2**20)))
    return os.getpid()


@job
def leave() -> None:
    """End the process as if all were well, which no worker has decided."""
    os._exit(0)


def _kill_once() -> None:
    try:
        Path(os.environ["BACKWAVE_TEST_KILLED"]).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


if "BACKWAVE_TEST_KILL_AT" in os.environ:
    failpoint.arm(os.environ["BACKWAVE_TEST_KILL_AT"], _kill_once)
