"""What the shop sells, and to whom."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """One customer's order. Its receipt is written by a job."""

    email = models.EmailField("customer's e-mail address")
    item = models.CharField(max_length=100)
    quantity = models.PositiveSmallIntegerField(default=1)
    amount = models.PositiveIntegerField("amount in cents")
    created_at = models.DateTimeField(auto_now_add=True)

    # The number that the payment gateway gave to the charge; empty until it is charged.
    receipt = models.CharField(max_length=50, blank=True, default="")

    # The ids of this order's jobs. No foreign keys: finished jobs are pruned, orders stay.
    receipt_job = models.UUIDField(null=True, editable=False)
    parcel_job = models.UUIDField(null=True, editable=False)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"order {self.pk}: {self.quantity} x {self.item}"

    @property
    def price(self) -> str:
        return f"{self.amount / 100:.2f} €"


class Stock(models.Model):
    """How many pieces of an item are left."""

    item = models.CharField(max_length=100, unique=True)
    pieces = models.IntegerField()

    class Meta:
        ordering = ("item",)

    def __str__(self) -> str:
        return f"{self.pieces} x {self.item}"


class Entry(models.Model):
    """A line of the ledger: so many pieces left the stock for an order.

    Nothing here keeps an order from being entered twice: that is what an atomic job does.
    """

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="entries")
    pieces = models.IntegerField()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.pieces} for {self.order}"
