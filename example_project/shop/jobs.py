"""The shop's jobs. Workers find this module by its name."""

from __future__ import annotations

import os
import signal
import time

from django_backwave import Backoff, GiveUp, JobContext, job
from shop import gateway
from shop.models import Order


@job(
    queue_name="receipts",
    max_attempts=5,
    backoff=Backoff(base=2, cap=300),
    takes_context=True,
)
def send_receipt(context: JobContext, order_id: int) -> dict[str, str]:
    """Charge an order's amount and keep the receipt.

    It may run twice: a worker may die, or lose its lease, after the gateway was called. So the call
    carries a key that is the same in every attempt, and the gateway charges once for each key. The
    write to the order may be repeated as it is: it is the same value each time.
    """
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        raise GiveUp(f"order {order_id} has been deleted")
    receipt = gateway.charge(
        key=context.idempotency_key("charge"),
        order=order.pk,
        amount=order.amount,
        attempt=context.attempt,
    )
    Order.objects.filter(pk=order.pk).update(receipt=receipt)
    return {"receipt": receipt}


@job(queue_name="parcels", takes_context=True)
def pack_parcel(context: JobContext, order_id: int, steps: int = 300) -> dict[str, int]:
    """Pack an order slowly, step by step, and look before each step whether to stop.

    ``raise_if_stopped`` ends the handler when somebody has cancelled the job, when the lease is
    lost, and when the worker shuts down.
    """
    for _ in range(steps):
        context.raise_if_stopped()
        time.sleep(0.1)
    return {"order": order_id, "steps": steps}


@job(queue_name="labels", max_attempts=3, backoff=Backoff(base=1, jitter=0), lease=1)
def print_label(order_id: int) -> None:
    """Kill the process that runs it, as a bug in a driver written in C would.

    No handler can report that. The lease lapses, which counts as a failure; after ``max_attempts``
    of them the job is dead-lettered and kills no more workers.
    """
    os.kill(os.getpid(), signal.SIGKILL)
