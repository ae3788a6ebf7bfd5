"""Every contestant that is a backend of `django.tasks`, ours too; settings choose it by BENCH_APP."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import django
from django.core.management import call_command
from django.db import connection, transaction

django.setup()

from benchmarks.project import tasks  # noqa: E402 - it needs the settings

TASK = tasks.async_noop if os.environ.get("BENCH_ASYNC") else tasks.noop


def prepare() -> None:
    """Create the tables."""
    call_command("migrate", verbosity=0)


def connect() -> None:
    """Connect."""
    connection.ensure_connection()


def enqueue(number: int) -> None:
    """Enqueue one job."""
    TASK.enqueue(number)


def together() -> AbstractContextManager[None]:
    """Return a transaction, for those without a bulk interface."""
    return transaction.atomic()
