"""The tag: a word on a job, to find it by. A label has an empty key."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import TAG_KEY_LENGTH, TAG_VALUE_LENGTH
from django_backwave.models.fields import ExactCharField
from django_backwave.models.job import Job


class Tag(models.Model):
    """One key and value of a job, given at enqueue or written with an attempt's outcome, under the fence."""

    # Without a constraint in the database: an insert would lock the job's row.
    job = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        db_constraint=False,
        db_index=False,  # the unique constraint's index serves
        related_name="tags",
        verbose_name=_("job"),
    )
    key = ExactCharField(_("key"), max_length=TAG_KEY_LENGTH, blank=True, default="")
    value = ExactCharField(_("value"), max_length=TAG_VALUE_LENGTH)

    class Meta:
        """Each word once a job, and found by itself."""

        verbose_name = _("tag")
        verbose_name_plural = _("tags")
        default_permissions = ("view",)
        constraints = (models.UniqueConstraint(name="backwave_tag", fields=["job", "key", "value"]),)
        indexes = (models.Index(name="backwave_tag_word", fields=["key", "value", "job"]),)

    def __str__(self) -> str:
        """Write it as people do."""
        return f"{self.key}={self.value}" if self.key else str(self.value)
