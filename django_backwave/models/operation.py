"""The operation: that a prepared enqueue was carried out, or never will be."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.ids import new_id
from django_backwave.models.fields import InstantField


class Operation(models.Model):
    """One prepared enqueue, written in the transaction of its job. ``job_id`` None: it never will be.

    The id is the operation's, fixed when it was prepared; ``digest`` says what was to be enqueued.
    ``generation`` and ``created`` are of the result that the enqueue returned.
    """

    id = models.UUIDField(_("id"), primary_key=True, default=new_id, editable=False)
    digest = models.CharField(_("digest"), max_length=64)
    job_id = models.UUIDField(_("job"), null=True)
    generation = models.PositiveIntegerField(_("generation"), null=True)
    created = models.BooleanField(_("created"), default=False)
    recorded_at = InstantField(_("recorded at"))
    deadline = InstantField(_("deadline"))

    class Meta:
        """The pruner looks for those whose deadline is long over."""

        verbose_name = _("operation")
        verbose_name_plural = _("operations")
        default_permissions = ("view",)
        indexes = (models.Index(name="backwave_operation_deadline", fields=["deadline"]),)

    def __str__(self) -> str:
        """Name the operation and what it led to."""
        return f"{self.id}: {self.job_id or 'never'}"
