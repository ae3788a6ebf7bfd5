"""A stand-in for a payment gateway, as real ones work: it charges once for each idempotency key.

Each call becomes one line of JSON in ``settings.GATEWAY_FILE``. A key that was seen before gets the
answer of its first call, and nothing is charged again. The file is what the outside world has seen:
no rollback in the shop's database takes a line back.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings

#: The longest time, in seconds, for which ``hold`` keeps an answer back.
LONGEST_HOLD = 120.0


def charge(*, key: str, order: int, amount: int, attempt: int) -> str:
    """Charge an amount, once for each key, and return the number of the receipt."""
    with _exclusive(settings.GATEWAY_FILE) as file:
        earlier = next((call for call in _read(file) if call["key"] == key), None)
        receipt = earlier["receipt"] if earlier else f"R-{len(_read(file)) + 1:04d}"
        call = {
            "key": key,
            "order": order,
            "amount": amount,
            "receipt": receipt,
            "charged": earlier is None,
            "attempt": attempt,
            "pid": os.getpid(),
        }
        os.write(file, (json.dumps(call) + "\n").encode())
        os.fsync(file)
    if earlier is None:
        _wait_while_held(order)
    return str(receipt)


def calls() -> list[dict[str, Any]]:
    """Return every call so far, in order; ``charged`` is false for a repeated key."""
    if not settings.GATEWAY_FILE.exists():
        return []
    with _exclusive(settings.GATEWAY_FILE) as file:
        return _read(file)


def hold(*orders: int) -> None:
    """Answer the first call for each of these orders late: charge at once, but keep the caller.

    A slow gateway is what makes double charges: the money is gone, and nobody has been told. With no
    order given, everybody who waits gets the answer.
    """
    held = _held_file()
    new = held.with_suffix(".new")
    new.write_text(json.dumps(orders))
    new.replace(held)


def _wait_while_held(order: int) -> None:
    deadline = time.monotonic() + LONGEST_HOLD
    while time.monotonic() < deadline and order in _held():
        time.sleep(0.05)


def _held() -> list[int]:
    file = _held_file()
    return list(json.loads(file.read_text())) if file.exists() else []


def _held_file() -> Path:
    return Path(f"{settings.GATEWAY_FILE}.held")


@contextmanager
def _exclusive(path: Path) -> Iterator[int]:
    """Open the file for appending, and keep every other process out of it."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)  # which gives up the lock as well


def _read(file: int) -> list[dict[str, Any]]:
    lines = os.pread(file, os.fstat(file).st_size, 0).decode().splitlines()
    return [json.loads(line) for line in lines]
