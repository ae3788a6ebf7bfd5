"""The shop's pages. ``place_order`` is the one to read: an order and its jobs, in one transaction."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.tasks.exceptions import TaskResultDoesNotExist
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from django_backwave.models import Job
from shop.jobs import pack_parcel, send_receipt
from shop.lines import JobLine, OrderCard
from shop.models import Order

PRICES = {"book": 1250, "lamp": 3900, "chair": 8900}  # in cents

#: How many orders the page lists.
NEWEST = 20


class OutOfStock(Exception):
    """The last one has just been sold."""


class OrderForm(forms.ModelForm):  # type: ignore[type-arg]
    item = forms.ChoiceField(
        choices=[(item, f"{item}, {cents / 100:.2f} €") for item, cents in PRICES.items()]
    )
    quantity = forms.IntegerField(min_value=1, max_value=99)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, label_suffix="", **options)

    class Meta:
        model = Order
        fields = ("email", "item", "quantity")
        widgets = {"email": forms.EmailInput(attrs={"autocomplete": "email"})}


@never_cache
@require_safe
def orders(request: HttpRequest) -> HttpResponse:
    """Take an order, and list the newest ones with the states of their jobs."""
    return _page(request, _new_form())


@never_cache
@require_safe
def newest_orders(request: HttpRequest) -> HttpResponse:
    """Return the list alone: the page asks for it while a job is unfinished."""
    return render(request, "shop/newest.html", _newest())


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    """Write an order and enqueue its jobs: all of it, or nothing.

    With ``pack`` in the form a slow job follows from the order, too. With ``fail`` something goes
    wrong after everything was written.
    """
    form = OrderForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=400)
    try:
        with transaction.atomic():
            order = form.save(commit=False)
            order.amount = PRICES[order.item] * order.quantity
            order.save()
            order.receipt_job = send_receipt.enqueue(order.pk).id
            if "pack" in request.POST:
                order.parcel_job = pack_parcel.enqueue(order.pk).id
            order.save(update_fields=["receipt_job", "parcel_job"])
            if "fail" in request.POST:
                raise OutOfStock(f"The last {order.item} has just been sold.")
    except OutOfStock as error:
        return _page(request, form, failure=_what_is_left(order, error), status=409)
    messages.success(request, f"Order {order.pk} was placed.")
    return _to(order)


@require_POST
def pack(request: HttpRequest, order_id: int) -> HttpResponse:
    """Start packing an order: a slow job, which can be cancelled."""
    with transaction.atomic():
        order = get_object_or_404(Order.objects.select_for_update(), pk=order_id)
        earlier = Job.objects.filter(pk=order.parcel_job).first()
        if earlier is not None and not earlier.job_state.is_terminal:
            messages.warning(request, f"Order {order.pk} is being packed already.")
            return _to(order)
        order.parcel_job = pack_parcel.enqueue(order.pk).id
        order.save(update_fields=["parcel_job"])
    messages.success(request, f"Order {order.pk} will be packed.")
    return _to(order)


@require_POST
def cancel_packing(request: HttpRequest, order_id: int) -> HttpResponse:
    """Cancel the packing of an order, and say what that did."""
    order = get_object_or_404(Order, pk=order_id, parcel_job__isnull=False)
    try:
        done = pack_parcel.get_result(str(order.parcel_job)).cancel().value
    except TaskResultDoesNotExist:
        done = "finished so long ago that its job has been pruned"
    told = " The handler hears of it at its worker's next heartbeat." if done == "asked to stop" else ""
    messages.info(request, f"Packing order {order.pk}: {done}.{told}")
    return _to(order)


def _to(order: Order) -> HttpResponse:
    return redirect(f"{reverse('shop:orders')}#order-{order.pk}")


def _new_form() -> OrderForm:
    return OrderForm(initial={"email": "ada@example.com", "quantity": 1})


def _page(
    request: HttpRequest, form: OrderForm, *, failure: dict[str, Any] | None = None, status: int = 200
) -> HttpResponse:
    context = {"form": form, "failure": failure, **_newest()}
    return render(request, "shop/orders.html", context, status=status)


def _newest() -> dict[str, Any]:
    """Read the newest orders and their jobs, in two queries however many there are."""
    newest = list(Order.objects.order_by("-pk")[:NEWEST])
    ids = [job for order in newest for job in (order.receipt_job, order.parcel_job) if job]
    jobs = Job.objects.in_bulk(ids)
    now = timezone.now()
    cards = [
        OrderCard(
            order=order,
            receipt=JobLine.of(order.receipt_job, jobs, now),
            parcel=JobLine.of(order.parcel_job, jobs, now),
        )
        for order in newest
    ]
    return {"cards": cards, "most": NEWEST, "unfinished": any(card.unfinished for card in cards)}


def _what_is_left(order: Order, error: OutOfStock) -> dict[str, Any]:
    """Look again for what the view had written before it failed."""
    return {
        "error": error,
        "job": order.receipt_job,
        "orders": Order.objects.filter(pk=order.pk).count(),
        "jobs": Job.objects.filter(pk=order.receipt_job).count(),
    }
