"""The attempt: one claimed try of a job, written once, with its outcome."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import WORKER_LENGTH
from django_backwave.core.states import AttemptOutcome
from django_backwave.models.fields import ExactCharField, ExactTextField, InstantField
from django_backwave.models.job import Job

OUTCOME_LABELS = {
    AttemptOutcome.SUCCEEDED: _("succeeded"),
    AttemptOutcome.FAILED: _("failed"),
    AttemptOutcome.CANCELLED: _("cancelled"),
    AttemptOutcome.RELEASED: _("released"),
    AttemptOutcome.SNOOZED: _("snoozed"),
    AttemptOutcome.TIMED_OUT: _("timed out"),
    AttemptOutcome.UNROUTABLE: _("unroutable"),
    AttemptOutcome.ABANDONED: _("abandoned"),
}


class Attempt(models.Model):
    """How one try of a job ended. Numbers may have gaps: a hand-back before the start leaves no row."""

    # Without a constraint in the database: an insert would lock the job's row.
    job = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        db_constraint=False,
        db_index=False,  # the unique constraint's index serves
        related_name="attempts",
        verbose_name=_("job"),
    )
    number = models.PositiveIntegerField(_("number"))
    worker = ExactCharField(_("worker"), max_length=WORKER_LENGTH)
    started_at = InstantField(_("started at"), null=True)
    finished_at = InstantField(_("finished at"))
    outcome = models.CharField(
        _("outcome"),
        max_length=12,
        choices=[(outcome.value, label) for outcome, label in OUTCOME_LABELS.items()],
    )
    error_class = ExactTextField(_("error class"), blank=True, default="")
    message = ExactTextField(_("message"), blank=True, default="")
    traceback = ExactTextField(_("traceback"), blank=True, default="")

    class Meta:
        """One row a number."""

        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        constraints = (models.UniqueConstraint(name="backwave_attempt_number", fields=["job", "number"]),)

    def __str__(self) -> str:
        """Name the attempt as logs do."""
        return f"{self.job_id} #{self.number}: {self.outcome}"
