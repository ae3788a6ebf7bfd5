"""The job: one unit of work, one row, one id for its whole life."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import KEY_LENGTH, NAME_LENGTH, QUEUE_LENGTH, SCHEMA_LENGTH, WORKER_LENGTH
from django_backwave.core.states import TERMINAL, JobState
from django_backwave.ids import new_id
from django_backwave.models.fields import (
    ExactCharField,
    ExactTextField,
    InstantField,
    JSONTextField,
)
from django_backwave.models.indexes import FilledIndex, PresentIndex, StateIndex

STATE_LABELS = {
    JobState.WAITING: _("waiting"),
    JobState.READY: _("ready"),
    JobState.RUNNING: _("running"),
    JobState.SUCCEEDED: _("succeeded"),
    JobState.CANCELLED: _("cancelled"),
    JobState.DEAD_LETTERED: _("dead-lettered"),
    JobState.QUARANTINED: _("quarantined"),
}


class Job(models.Model):
    """A job's work, its policy as numbers, its state, and the lease of the attempt that runs it.

    Rows are written by ``django_backwave.store`` alone. Everything that a worker must know to retry,
    expire or time out a job stands on the row, so that any worker can sweep any job.
    """

    id = models.UUIDField(_("id"), primary_key=True, default=new_id, editable=False)
    name = ExactCharField(_("name"), max_length=NAME_LENGTH)
    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH)
    priority = models.SmallIntegerField(_("priority"), default=0)
    payload = JSONTextField(_("payload"))
    state = models.SmallIntegerField(
        _("state"),
        choices=[(state.value, label) for state, label in STATE_LABELS.items()],
        default=JobState.READY.value,
    )
    enqueued_at = InstantField(_("enqueued at"))
    due_at = InstantField(_("due at"))
    expires_at = InstantField(_("expires at"), null=True)

    max_attempts = models.PositiveIntegerField(_("max attempts"))
    backoff_base = models.FloatField(_("backoff base (s)"))
    backoff_cap = models.FloatField(_("backoff cap (s)"))
    backoff_jitter = models.FloatField(_("backoff jitter"))
    lease_seconds = models.FloatField(_("lease (s)"), null=True)
    timeout_seconds = models.FloatField(_("time-out (s)"), null=True)

    # The fence's epoch: it rises with every claim and never falls, not even on requeue.
    attempt = models.PositiveIntegerField(_("attempt"), default=0)
    failures = models.PositiveIntegerField(_("failures"), default=0)
    worker = ExactCharField(_("worker"), max_length=WORKER_LENGTH, blank=True, default="")
    lease_expires_at = InstantField(_("lease expires at"), null=True)
    started_at = InstantField(_("started at"), null=True)

    cancel_requested_at = InstantField(_("cancel requested at"), null=True)
    unroutable_since = InstantField(_("unroutable since"), null=True)
    finished_at = InstantField(_("finished at"), null=True)
    cause = ExactTextField(_("cause"), blank=True, default="")
    output = JSONTextField(_("output"), null=True)
    # What the handler last said of itself: {"done", "total", "message", "at"}.
    progress = JSONTextField(_("progress"), null=True)
    # What the enqueuing process sent along: tenant, trace id, language.
    headers = JSONTextField(_("headers"), null=True)

    # Which logical work this is a run of, and which run; what its payload means.
    key = ExactCharField(_("key"), max_length=KEY_LENGTH, null=True)
    generation = models.PositiveIntegerField(_("generation"), null=True)
    schema = ExactCharField(_("schema"), max_length=SCHEMA_LENGTH, null=True)
    # Whether somebody waits for the end, and wants to be notified of it.
    awaited = models.BooleanField(_("awaited"), null=True)

    class Meta:
        """Small indexes, one a purpose, and the one rule that the database itself can hold.

        Nobody adds, changes or deletes rows by hand; what operators may do has permissions of its own.
        """

        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = (
            ("view_payload", "Can view payload, output and errors of jobs"),
            ("cancel_job", "Can cancel jobs"),
            ("requeue_job", "Can requeue jobs"),
            ("operate_job", "Can reschedule and change jobs, and pause queues and job names"),
        )
        indexes = (
            StateIndex(
                name="backwave_claim",
                states=[JobState.READY],
                fields=["queue", "priority", "due_at", "id"],
            ),
            StateIndex(name="backwave_lease", states=[JobState.RUNNING], fields=["lease_expires_at"]),
            PresentIndex(
                name="backwave_expiry", states=[JobState.WAITING, JobState.READY], fields=["expires_at"]
            ),
            StateIndex(name="backwave_finished", states=sorted(TERMINAL), fields=["state", "finished_at"]),
            FilledIndex(name="backwave_key", fields=["key", "queue", "generation"]),
        )
        constraints = (
            models.CheckConstraint(
                name="backwave_running_has_lease",
                condition=models.Q(state=JobState.RUNNING.value, lease_expires_at__isnull=False)
                | (~models.Q(state=JobState.RUNNING.value) & models.Q(lease_expires_at=None)),
            ),
        )

    def __str__(self) -> str:
        """Name the job as logs do."""
        return f"{self.name} {self.id}"

    @property
    def job_state(self) -> JobState:
        """The state as a member of its enum."""
        return JobState(self.state)
