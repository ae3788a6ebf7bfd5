"""The action: who did what to which job, queue or job name, and when."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import ACTOR_LENGTH, NAME_LENGTH, QUEUE_LENGTH
from django_backwave.models.fields import ExactCharField, InstantField


class Action(models.Model):
    """One operator action, written in the transaction of its effect. It outlives the job.

    ``actor`` is text, a user's key and name, so that it needs no user table and survives its rows.
    """

    at = InstantField(_("at"))
    actor = ExactCharField(_("actor"), max_length=ACTOR_LENGTH)
    verb = models.CharField(_("action"), max_length=20)
    job_id = models.UUIDField(_("job"), null=True, db_index=True)
    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH, blank=True, default="")
    name = ExactCharField(_("job name"), max_length=NAME_LENGTH, blank=True, default="", db_default="")
    result = models.CharField(_("result"), max_length=100, blank=True, default="")

    class Meta:
        """Named like everything else here."""

        verbose_name = _("action")
        verbose_name_plural = _("actions")
        default_permissions = ("view",)

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.actor}: {self.verb} {self.job_id or self.queue or self.name}"
