"""The pause: a queue or a job name of which workers claim nothing for now."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import ACTOR_LENGTH, NAME_LENGTH
from django_backwave.models.fields import ExactCharField, InstantField


class Pause(models.Model):
    """One paused queue or job name. Workers read these rows with each heartbeat."""

    class Kind(models.TextChoices):
        """What is paused."""

        QUEUE = "queue", _("queue")
        NAME = "name", _("job name")

    kind = models.CharField(_("kind"), max_length=5, choices=Kind)
    target = ExactCharField(_("queue or job name"), max_length=NAME_LENGTH)
    at = InstantField(_("since"))
    actor = ExactCharField(_("actor"), max_length=ACTOR_LENGTH, blank=True, default="")

    class Meta:
        """Each thing is paused once."""

        verbose_name = _("pause")
        verbose_name_plural = _("queues and pauses")
        default_permissions = ("view",)
        constraints = (models.UniqueConstraint(name="backwave_pause", fields=["kind", "target"]),)

    def __str__(self) -> str:
        """Say what is paused."""
        return f"{self.kind} {self.target}"
