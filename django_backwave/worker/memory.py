"""How much memory this process uses."""

from __future__ import annotations

import os
import resource
import sys

#: Bytes in a megabyte, as ``--max-memory`` counts them.
MEGABYTE = 2**20

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
