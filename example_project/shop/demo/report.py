"""The end of the demo: what became of each order and job and why, and sums that must hold.

Everything is read from the database and from the gateway's file, after all workers have stopped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from django_backwave import JobState
from django_backwave.models import Attempt, Job
from shop import gateway
from shop.demo.processes import Workers
from shop.demo.show import DemoFailed
from shop.models import Order

COLUMNS = (("order", 5), ("job", 12), ("state", 13), ("attempts", 14), ("gateway", 14), ("why", 31))


def customer(number: int) -> str:
    """Return the e-mail address by which the demo finds its n-th order again."""
    return f"customer-{number}@example.com"


def print_table(placed: int, notes: Mapping[UUID, Iterable[str]], workers: Workers) -> None:
    """Print a row for each order placed, and one for each job that is no receipt."""
    by_customer = {order.email: order for order in Order.objects.all()}
    numbers = {by_customer[customer(n)].pk: n for n in range(1, placed + 1) if customer(n) in by_customer}
    jobs = Job.objects.prefetch_related("attempts").in_bulk()
    calls = _calls_by_order()

    _print_row([name for name, _ in COLUMNS])
    _print_row(["-" * width for _, width in COLUMNS])
    for n in range(1, placed + 1):
        order = by_customer.get(customer(n))
        if order is None:
            _print_row([str(n), "-", "-", "-", "-"], ["rolled back: neither order", "nor job exists"])
            continue
        job = jobs.pop(order.receipt_job)
        _print_job(str(n), job, calls[order.pk], notes.get(job.pk, ()), workers)
    for job in sorted(jobs.values(), key=lambda job: job.enqueued_at):
        number = str(numbers[job.payload["args"][0]])
        _print_job(number, job, [], notes.get(job.pk, ()), workers)


def _print_job(
    number: str, job: Job, calls: list[dict[str, Any]], notes: Iterable[str], workers: Workers
) -> None:
    attempts = sorted(job.attempts.all(), key=lambda attempt: attempt.number)
    keys = len({call["key"] for call in calls})
    _print_row(
        [number, job.name.rpartition(".")[2], job.job_state.label],
        list(notes) or [job.cause],
        attempts=[
            f"{attempt.number} {attempt.outcome:<9} {workers.label_of(attempt.worker)}"
            for attempt in attempts
        ],
        gateway=f"{_count(len(calls), 'call')}, {_count(keys, 'key')}" if calls else "-",
    )


def _print_row(
    cells: list[str],
    notes: list[str] | None = None,
    *,
    attempts: list[str] | None = None,
    gateway: str = "",
) -> None:
    """Print a row of as many lines as its longest column has."""
    if attempts is not None:
        cells = [*cells, "", gateway]
    attempts = attempts if attempts is not None else cells[3:4]
    notes = notes if notes is not None else cells[5:]
    for i in range(max(1, len(attempts), len(notes))):
        left = cells if i == 0 else [""] * 5
        line = [*left[:3], _item(attempts, i), left[4], _item(notes, i)]
        padded = [f"{cell:<{width}}" for cell, (_, width) in zip(line, COLUMNS, strict=True)]
        print(("  ".join(padded)).rstrip())


def _item(values: list[str], index: int) -> str:
    return values[index] if index < len(values) else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def print_sums(placed: int, rolled_back: int) -> None:
    """Add up, and raise DemoFailed if a sum is not what was promised."""
    orders = list(Order.objects.all())
    succeeded = set(Job.objects.filter(state=JobState.SUCCEEDED).values_list("pk", flat=True))
    calls = gateway.calls()
    charges = defaultdict(int)
    for call in calls:
        charges[call["order"]] += call["charged"]
    unfinished = [order for order in orders if order.receipt_job not in succeeded]
    uncharged = [order for order in orders if charges[order.pk] == 0 or not order.receipt]
    charged_twice = [order for order, count in charges.items() if count > 1]
    charged = sum(1 for count in charges.values() if count)
    repeats = sum(1 for call in calls if not call["charged"])

    print(f"{placed:>4} orders placed: {len(orders)} committed, {rolled_back} rolled back")
    print(f"{charged:>4} orders charged, by {len(calls)} calls of which {repeats} were repeats")
    print(f"{len(unfinished):>4} jobs lost")
    print(f"{len(charged_twice):>4} orders charged twice")

    _require(len(orders) == placed - rolled_back, "not every order that was accepted is there")
    _require(not unfinished, f"these orders have no receipt: {unfinished}")
    _require(not uncharged, f"these orders were not charged: {uncharged}")
    _require(charged == len(orders), "an order that does not exist was charged")
    _require(not charged_twice, f"these orders were charged twice: {charged_twice}")
    _require(repeats >= 2, "the gateway saw no repeats, so the demo has shown nothing")
    _require(not _recorded_twice(), f"recorded as succeeded twice: {_recorded_twice()}")


def _recorded_twice() -> list[UUID]:
    times: dict[UUID, int] = defaultdict(int)
    for attempt in Attempt.objects.filter(outcome="succeeded"):
        times[attempt.job_id] += 1
    return [job for job, count in times.items() if count > 1]


def _calls_by_order() -> dict[int, list[dict[str, Any]]]:
    calls: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for call in gateway.calls():
        calls[call["order"]].append(call)
    return calls


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoFailed(otherwise)
