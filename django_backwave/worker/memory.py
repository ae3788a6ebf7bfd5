"""How much memory this process uses, and how often it looks for what it no longer needs."""

from __future__ import annotations

import gc
import os
import resource
import sys

#: Bytes in a megabyte, as ``--max-memory`` counts them.
MEGABYTE = 2**20

#: New objects after which Python looks for garbage in cycles, in a worker's process. By its own default it
#: looks after a tenth of that, over and over through the jobs that are held, which are no garbage.
COLLECT_AFTER = 20_000

_STATM = "/proc/self/statm"


def resident() -> int:
    """Return the bytes of memory that are resident now; the most there ever were, where nobody tells that.

    Linux tells. Elsewhere a process learns only of its peak, so that one which gave memory back still counts
    as large.
    """
    try:
        with open(_STATM) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def collect_less_often() -> None:
    """Look for garbage in cycles less often, and not among what is there by now: modules, settings, models.

    A project that has chosen a higher number itself, or switched the search off, keeps what it chose.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER, *older)
