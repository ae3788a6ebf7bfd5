"""Plain functions; the fixture `define` makes tasks of them, each time for the backend of the test."""

from __future__ import annotations

from typing import Any

#: A name that Python allows and that no column of 32 characters would hold.
LONG = "prepare_the_monthly_statement_of_a_customer_and_send_it_by_mail_" * 3


def add(a: int, b: int = 0) -> int:
    return a + b


def give(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


def fail(message: str = "no stock") -> None:
    raise ValueError(message)


def attempt(context: Any, *, double: bool = False) -> list[Any]:
    return [context.attempt, context.task_result.id, double]


async def later(value: int) -> int:
    return value + 1


def without_context(order_id: int) -> int:
    return order_id


def unserialisable() -> Any:
    return {1, 2}


exec(f"def {LONG}(): return 'sent'")  # noqa: S102 - a line of that length is none that we want to read
