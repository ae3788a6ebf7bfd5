"""Handlers that write by the project's own alias, whichever their worker has.

Load with BACKWAVE_TEST_MODULES.
"""

from __future__ import annotations

from django.db import transaction

from django_backwave import job
from django_backwave.exceptions import NotOnce
from tests.app.models import Entry


@job(name="aliases.later")
def later() -> None:
    """Be enqueued by others."""


@job(name="aliases.write", atomic=True, takes_context=True)
def write(context) -> None:
    """Write and enqueue; only the second attempt succeeds."""
    Entry.objects.create(key=f"attempt {context.attempt}", value="written")
    later.enqueue()
    if context.attempt == 1:
        raise RuntimeError("after the write")


@job(name="aliases.block", takes_context=True)
def block(context) -> None:
    """Do the same in a block."""
    with context.atomic():
        write.func(context)


@job(name="aliases.once", takes_context=True)
def once(context) -> str:
    """Ask for a mark within a transaction, which must be refused, and without one."""
    with context.once("charge") as effect:
        effect.result = "charged"
    with transaction.atomic():
        try:
            with context.once("refund"):
                return "begun"
        except NotOnce:
            return "refused"
