"""Handlers whose keys are made of their arguments."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, IntEnum
from hashlib import sha256
from typing import Any

from django_backwave import job


class Size(str, Enum):  # noqa: UP042 - the older way, which formats by its name
    LARGE = "large"


class Level(IntEnum):
    HIGH = 3


@job(key="receipt:{order_id}:{copy}", queue_name="mail")
def receipt(order_id: Any, copy: Any = 1) -> Any:
    return order_id


@job(key="{number:06d}-{{}}", takes_context=True)
def padded(context: Any, number: int) -> int:
    return number


def key_of_report(title: str, **parts: Any) -> str:
    """Return a key for arguments of any length."""
    return sha256(f"{title}{sorted(parts.items())}".encode()).hexdigest()


@job(key=key_of_report, unique_for=timedelta(hours=1), on_conflict="reject")
def report(title: str, **parts: Any) -> str:
    return title


def number_of(order_id: int) -> Any:
    """Return what is no key, and fail for what has none."""
    return 7 // order_id


def reciprocal(order_id: int) -> str:
    """Return a key, and fail for what has none."""
    return str(1 / order_id)


@job(key=number_of)
def numbered(order_id: int) -> int:
    return order_id


@job
def keyless(order_id: int) -> int:
    return order_id


async def later(order_id: int) -> str:
    return str(order_id)
