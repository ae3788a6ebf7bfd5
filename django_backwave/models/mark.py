"""The mark: whether an effect outside the database was begun, or done, by an earlier attempt of a job."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import MARK_LENGTH
from django_backwave.models.fields import ExactCharField, InstantField, JSONTextField
from django_backwave.models.job import Job


class Mark(models.Model):
    """One named effect of a job, as ``context.once(name)`` keeps it. ``done_at`` None: begun, maybe done."""

    # Without a constraint in the database: an insert would lock the job's row.
    job = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        db_constraint=False,
        db_index=False,  # the unique constraint's index serves
        related_name="marks",
        verbose_name=_("job"),
    )
    name = ExactCharField(_("name"), max_length=MARK_LENGTH)
    attempt = models.PositiveIntegerField(_("attempt"))
    begun_at = InstantField(_("begun at"))
    done_at = InstantField(_("done at"), null=True)
    result = JSONTextField(_("result"), null=True)

    class Meta:
        """Each effect has one mark."""

        verbose_name = _("mark")
        verbose_name_plural = _("marks")
        default_permissions = ("view",)
        constraints = (models.UniqueConstraint(name="backwave_mark", fields=["job", "name"]),)

    def __str__(self) -> str:
        """Name the effect."""
        return f"{self.job_id} {self.name}"
