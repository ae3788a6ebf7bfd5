"""The shop's pages. ``place_order`` is the one to read: an order and its job, in one transaction."""

from __future__ import annotations

from django import forms
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_backwave.models import Job
from shop.jobs import pack_parcel, send_receipt
from shop.models import Order

PRICES = {"book": 1250, "lamp": 3900, "chair": 8900}  # in cents


class OutOfStock(Exception):
    """The last one has just been sold."""


class OrderForm(forms.ModelForm):  # type: ignore[type-arg]
    item = forms.ChoiceField(choices=[(item, item) for item in PRICES])

    class Meta:
        model = Order
        fields = ("email", "item", "quantity")


@require_safe
def orders(request: HttpRequest) -> HttpResponse:
    """List the newest orders with the states of their jobs."""
    return _page(request, OrderForm(initial={"quantity": 1}))


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    """Write an order and enqueue its receipt: both, or neither.

    With ``fail`` in the form something goes wrong after both were written.
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
            order.save(update_fields=["receipt_job"])
            if "fail" in request.POST:
                raise OutOfStock(f"The last {order.item} has just been sold.")
    except OutOfStock as error:
        return _page(request, form, message=f"{error} Nothing was ordered.", status=409)
    return redirect("shop:orders")


@require_POST
def pack(request: HttpRequest, order_id: int) -> HttpResponse:
    """Start packing an order: a slow job, which can be cancelled."""
    with transaction.atomic():
        order = get_object_or_404(Order.objects.select_for_update(), pk=order_id)
        order.parcel_job = pack_parcel.enqueue(order.pk).id
        order.save(update_fields=["parcel_job"])
    return redirect("shop:orders")


@require_POST
def cancel_packing(request: HttpRequest, order_id: int) -> HttpResponse:
    """Cancel the packing of an order, and say what that did."""
    order = get_object_or_404(Order, pk=order_id, parcel_job__isnull=False)
    done = pack_parcel.get_result(str(order.parcel_job)).cancel()
    message = f"Packing order {order.pk}: {done.value}."
    return _page(request, OrderForm(initial={"quantity": 1}), message=message)


def _page(request: HttpRequest, form: OrderForm, *, message: str = "", status: int = 200) -> HttpResponse:
    newest = list(Order.objects.order_by("-pk")[:50])
    jobs = Job.objects.in_bulk(
        [job for order in newest for job in (order.receipt_job, order.parcel_job) if job]
    )
    rows = [(order, jobs.get(order.receipt_job), jobs.get(order.parcel_job)) for order in newest]
    context = {"form": form, "message": message, "rows": rows}
    return render(request, "shop/orders.html", context, status=status)
