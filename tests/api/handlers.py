"""Handlers in a module that discovery does not know, as somebody might write them in a view."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_backwave import Backoff, job


@job
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [args, kwargs]


@job(
    name="send-receipt",
    aliases=["shop.send_receipt"],
    queue_name="mail",
    priority=7,
    max_attempts=5,
    backoff=Backoff(base=1, cap=9),
    retry_on=OSError,
    give_up_on=(TimeoutError,),
    lease=timedelta(seconds=90),
    takes_context=True,
)
def send_receipt(context: Any, order_id: int, *, copy: bool = False) -> int:
    return order_id


def plain(order_id: int) -> int:
    return order_id


def plain_with_context(context: Any, order_id: int) -> int:
    return order_id


async def coroutine() -> None: ...


def generator() -> Any:
    yield
