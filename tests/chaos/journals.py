"""Journals: files that outlive the processes which write them, whatever is killed and when.

Each entry is one line of JSON, appended whole and flushed to the disk before the writer goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EFFECTS = "effects.jsonl"


def append(path: Path, **entry: Any) -> None:
    """Append one entry, and return when it is on the disk."""
    line = json.dumps(entry, separators=(",", ":")) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a journal. What its writer was killed in the middle of has never been said."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
