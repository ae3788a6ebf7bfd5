"""What the workers run here. Handlers tell what they do in a journal, a file that outlives them.

Most wait for a file to appear, so that a test decides when they go on.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

from django_backwave import GiveUp, Snooze, job
from tests.processes import append


@job
def write(journal: str, line: str) -> str:
    """Do one small thing."""
    append(journal, line)
    return line


@job
def collector() -> list[int]:
    """Return how this process looks for garbage: after how many new objects, and how many it leaves out."""
    return [gc.get_threshold()[0], gc.get_freeze_count()]


@job
def write_slowly(journal: str, line: str) -> str:
    """Take twenty milliseconds for it."""
    threading.Event().wait(0.02)
    append(journal, line)
    return line


@job(takes_context=True)
def hold(context, folder: str) -> int:
    """Go on once the file `go` exists, whatever anybody says; return the attempt's number."""
    _wait(context, folder, obedient=False)
    return context.attempt


@job(takes_context=True)
def hold_obediently(context, folder: str) -> int:
    """Go on once the file `go` exists, or stop when told to."""
    _wait(context, folder, obedient=True)
    return context.attempt


@job(takes_context=True)
def hold_then_fail(context, folder: str) -> None:
    """Go on once the file `go` exists, whatever anybody says, and fail."""
    _wait(context, folder, obedient=False)
    raise RuntimeError("it went wrong after all")


@job(takes_context=True)
def hold_the_first(context, folder: str) -> str:
    """Wait for the file `go` in the first attempt only."""
    append(Path(folder) / "journal", f"started {context.attempt} in {os.getpid()}")
    if context.attempt == 1:
        _until(Path(folder) / "go")
    append(Path(folder) / "journal", f"ended {context.attempt}")
    return f"attempt {context.attempt}"


@job(takes_context=True)
def watch_lease(context, folder: str) -> None:
    """Wait for the loss of the lease, note it, and then for the file `go`."""
    append(Path(folder) / "journal", f"started {context.attempt}")
    while context.attempt == 1 and not context.lease_lost:
        threading.Event().wait(0.01)
    append(Path(folder) / "journal", f"ended {context.attempt}")
    if context.attempt == 1:
        _until(Path(folder) / "go")


@job
def sleep_for_ever() -> None:
    """Hear nobody."""
    time.sleep(3600)


@job(takes_context=True)
def kill_yourself(context, journal: str) -> None:
    """Take the whole process along."""
    append(journal, f"started {context.attempt}")
    os.kill(os.getpid(), signal.SIGKILL)


@job(takes_context=True)
def snooze(context, journal: str) -> None:
    """Come back in an hour."""
    append(journal, f"started {context.attempt}")
    raise Snooze(3600)


@job
def fail(message: str) -> None:
    """Fail."""
    raise ValueError(message)


@job
def give_up(reason: str) -> None:
    """Never be tried again."""
    raise GiveUp(reason)


@job
def terminate_a_child() -> int | None:
    """Fork a process that sleeps, terminate it, and return how it ended; None if it did not."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    child.start()
    child.terminate()
    child.join(20)
    code = child.exitcode
    child.kill()
    return code


@job
def kill_thread(name: str) -> None:
    """Let a thread of the worker die the next time that it runs Python code."""
    [thread] = [each for each in threading.enumerate() if each.name == name]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


@job
def kill_idle_threads() -> None:
    """Let all handlers' threads but this one die the next time that they get work."""
    for thread in threading.enumerate():
        if thread.name.startswith("backwave-handler") and thread is not threading.current_thread():
            ident = ctypes.c_ulong(thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))


def _wait(context, folder: str, *, obedient: bool) -> None:
    """Note the start and, once, that somebody asks to stop; return when the file `go` is there."""
    journal = Path(folder) / "journal"
    append(journal, f"started {context.attempt}")
    told = False
    while not (Path(folder) / "go").exists():
        if context.cancel_requested and not told:
            told = True
            append(journal, "told of the cancel")
        if obedient:
            context.raise_if_stopped()
        threading.Event().wait(0.01)


def _until(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.01)
