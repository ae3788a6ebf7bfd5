"""A client: enqueues inside transactions, of which a third roll back, and keeps a journal of it.

    python -m tests.chaos.client JOURNAL SEED

What it intends it writes down before the end of the transaction, and what came of it afterwards. It ends
once there is a file `stop` beside the journal.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import django

#: Seconds between two transactions, on average.
PAUSE = 0.1


class RolledBack(Exception):
    """Ends a transaction that shall not be."""


class Client:
    """Works through transactions drawn from a seed."""

    def __init__(self, journal: Path, seed: str) -> None:
        self._journal = journal
        self._draw = random.Random(seed)
        self._number = 0

    def run(self) -> None:
        """Enqueue until told to stop."""
        from tests.chaos import journals

        stop = self._journal.with_name("stop")
        while not stop.exists():
            self._number += 1
            outcome = self._transaction()
            journals.append(self._journal, end=self._number, outcome=outcome)
            threading.Event().wait(self._draw.expovariate(1 / PAUSE))

    def _transaction(self) -> str:
        """Try one transaction, and return what is known of it."""
        from django.db import Error, connection, transaction

        from tests.chaos import journals

        commit = self._draw.random() < 2 / 3
        batches = [self._drawn() for _ in range(self._draw.randint(1, 3))]
        asked = False
        try:
            with transaction.atomic():
                jobs = [job for batch in batches for job in self._enqueue(*batch)]
                journals.append(self._journal, begin=self._number, commit=commit, jobs=jobs)
                asked = commit
                if not commit:
                    raise RolledBack
        except RolledBack:
            return "rolled back"
        except Error:
            # The connection died. If that was in COMMIT, nobody can say what became of the transaction.
            with suppress(Error):
                connection.close()
            return "unknown" if asked else "rolled back"
        return "committed"

    def _drawn(self) -> tuple[str, int, dict[str, Any]]:
        """Draw a kind of job, how many, and options."""
        from tests.chaos.handlers import WEIGHTS

        [kind] = self._draw.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        many = self._draw.randint(2, 8) if kind == "quick" and self._draw.random() < 0.4 else 1
        options: dict[str, Any] = {"priority": self._draw.choice([0, 0, 0, 10])}
        if self._draw.random() < 0.1:
            options["run_after"] = self._draw.uniform(0.2, 3.0)
        elif self._draw.random() < 0.05:
            options["expires"] = self._draw.uniform(1.0, 3.0)
        return kind, many, options

    def _enqueue(self, kind: str, many: int, options: dict[str, Any]) -> list[dict[str, Any]]:
        """Enqueue jobs of a kind, and return what the journal says of each."""
        from datetime import timedelta

        from django.utils import timezone

        from django_backwave import enqueue_many
        from tests.chaos.handlers import ARGUMENTS, TASKS

        expires = "expires" in options
        if "run_after" in options:
            options["run_after"] = timezone.now() + timedelta(seconds=options["run_after"])
        task = TASKS[kind].using(**options)
        calls = [(ARGUMENTS[kind](self._draw), {}) for _ in range(many)]
        results = enqueue_many(task, calls) if many > 1 else [task.enqueue(*calls[0][0])]
        return [{"id": result.id, "kind": kind, "expires": expires} for result in results]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.settings")
    django.setup()
    Client(Path(sys.argv[1]), sys.argv[2]).run()
