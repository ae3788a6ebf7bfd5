"""The shop's jobs. Workers find this module by its name."""

from __future__ import annotations

import os
import signal
import time

from django.db.models import F

from django_backwave import Backoff, GiveUp, JobContext, job
from shop import gateway, middle
from shop.models import Entry, Order, Stock


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


# How many steps of a tenth of a second it takes to pack a parcel; SHOP_STEPS in the environment changes that.
STEPS = int(os.environ.get("SHOP_STEPS", "300"))


@job(queue_name="parcels", takes_context=True)
def pack_parcel(context: JobContext, order_id: int, steps: int = STEPS) -> dict[str, int]:
    """Pack an order slowly, step by step; say before each step how far it is, and look whether to stop.

    ``raise_if_stopped`` ends the handler when somebody has cancelled the job, when the lease is
    lost, and when the worker shuts down.
    """
    for step in range(steps):
        context.raise_if_stopped()
        context.progress(step, steps, "packing")
        time.sleep(0.1)
    return {"order": order_id, "steps": steps}


@job(queue_name="stock", atomic=True, max_attempts=100, backoff=Backoff(base=1, cap=1))
def take_once(order_id: int) -> None:
    """Take an order's pieces from the stock, and enter that in the ledger: exactly once (G7).

    Both writes and the job's own success are one transaction. Whatever happens to the worker, an
    attempt that does not succeed leaves nothing behind, so nothing here has to bear a repeat.
    """
    _take(order_id)


@job(queue_name="stock", max_attempts=100, backoff=Backoff(base=1, cap=1))
def take_twice(order_id: int) -> None:
    """Do the same without ``atomic``, to show what at-least-once allows.

    A worker that dies after the writes and before the record of its success leaves them there, and
    the next attempt writes them again.
    """
    _take(order_id)


def _take(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    Stock.objects.filter(item=order.item).update(pieces=F("pieces") - order.quantity)
    Entry.objects.create(order=order, pieces=order.quantity)
    middle.stay()


@job(queue_name="labels", max_attempts=3, backoff=Backoff(base=1, jitter=0), lease=1)
def print_label(order_id: int) -> None:
    """Kill the process that runs it, as a bug in a driver written in C would.

    No handler can report that. The lease lapses, which counts as a failure; after ``max_attempts``
    of them the job is dead-lettered and kills no more workers.
    """
    os.kill(os.getpid(), signal.SIGKILL)
