"""What the workers run: handlers of every kind, each of which leaves a line in the journal when it begins.

The stored name tells the checker what to expect of a job; see `checker.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from pathlib import Path

from django_backwave import Backoff, GiveUp, Snooze, job
from tests.chaos import journals

#: Faults cost tries, and nothing is to be dead-lettered just for bad luck; nor shall anybody wait for long.
PATIENT = {"max_attempts": 25, "backoff": Backoff(base=1, cap=2, jitter=0.5)}

#: What a job that fails on purpose has.
BRITTLE = {"max_attempts": 3, "backoff": Backoff(base=1, cap=2, jitter=0.5)}


@job(name="quick", takes_context=True, queue_name="quick", **PATIENT)
def quick(context) -> int:
    """Take no time: many of these are claimed ahead, and settled together."""
    return _begin(context)


@job(name="slow", takes_context=True, **PATIENT)
def slow(context, seconds: float) -> int:
    """Take some time, and stop when told to."""
    attempt = _begin(context)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.raise_if_stopped()
        threading.Event().wait(0.05)
    return attempt


@job(name="deaf", takes_context=True, **PATIENT)
def deaf(context, seconds: float) -> int:
    """Take some time, whatever anybody says: what it reports then may be stale."""
    attempt = _begin(context)
    time.sleep(seconds)
    return attempt


@job(name="quiet", takes_context=True, **PATIENT)
async def quiet(context, seconds: float) -> int:
    """Be a coroutine."""
    attempt = _begin(context)
    await asyncio.sleep(seconds)
    return attempt


@job(name="flaky", takes_context=True, **BRITTLE)
def flaky(context, seed: int) -> int:
    """Fail in about half of the attempts, always in the same ones."""
    attempt = _begin(context)
    if random.Random(f"{seed}-{attempt}").random() < 0.5:
        raise ValueError("bad luck")
    return attempt


@job(name="hopeless", takes_context=True, **PATIENT)
def hopeless(context) -> None:
    """Give up."""
    _begin(context)
    raise GiveUp("there is no hope")


@job(name="tired", takes_context=True, **PATIENT)
def tired(context) -> int:
    """Snooze at the first two attempts."""
    attempt = _begin(context)
    if attempt <= 2:
        raise Snooze(1)
    return attempt


@job(name="poison", takes_context=True, **BRITTLE)
def poison(context) -> None:
    """Take the whole process along, each time."""
    _begin(context)
    os.kill(os.getpid(), signal.SIGKILL)


@job(name="ledger", takes_context=True, atomic=True, **PATIENT)
def ledger(context) -> int:
    """Write a line in the transaction that also completes the job (G7)."""
    attempt = _begin(context)
    _write_line(context)
    return attempt


@job(name="ledger-block", takes_context=True, **PATIENT)
def ledger_block(context, seconds: float) -> None:
    """Do the same for a part of the handler only."""
    attempt = _begin(context)
    time.sleep(seconds)
    with context.atomic() as done:
        _write_line(context)
        done.output = attempt


@job(name="nothing", queue_name="soak")
def nothing() -> None:
    """Leave no trace: for a soak, which counts by the table."""


#: Stored name → how to draw its arguments.
ARGUMENTS = {
    "quick": lambda draw: (),
    "slow": lambda draw: (draw.uniform(0.1, 1.5),),
    "deaf": lambda draw: (draw.uniform(0.1, 1.5),),
    "quiet": lambda draw: (draw.uniform(0.1, 1.0),),
    "flaky": lambda draw: (draw.getrandbits(32),),
    "hopeless": lambda draw: (),
    "tired": lambda draw: (),
    "poison": lambda draw: (),
    "ledger": lambda draw: (),
    "ledger-block": lambda draw: (draw.uniform(0.0, 0.5),),
}

#: Stored name → how often it is drawn, beside the others.
WEIGHTS = {
    "quick": 60,
    "slow": 8,
    "deaf": 6,
    "quiet": 6,
    "flaky": 10,
    "hopeless": 2,
    "tired": 3,
    "poison": 0.1,
    "ledger": 15,
    "ledger-block": 5,
}

TASKS = {
    task.job_name: task
    for task in (quick, slow, deaf, quiet, flaky, hopeless, tired, poison, ledger, ledger_block)
}


def _begin(context) -> int:
    """Tell the journal, and return the attempt's number."""
    journals.append(
        Path(os.environ["BACKWAVE_CHAOS_FOLDER"]) / journals.EFFECTS,
        job=str(context.job_id),
        attempt=context.attempt,
        pid=os.getpid(),
        at=time.time(),
    )
    return context.attempt


def _write_line(context) -> None:
    from tests.chaos.models import Line  # this module is imported by processes without the ledger, too

    Line.objects.create(job_id=context.job_id, attempt=context.attempt)
