"""The lease: a proxy of the job, for a lease is columns of the row that the fence updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.states import JobState
from django_backwave.models.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence


class LeaseQuerySet(models.QuerySet["Lease"]):
    """The predicates of lease logic. Instants come in as expressions or datetimes."""

    def held_by(self, worker: str, attempt: int | None = None) -> LeaseQuerySet:
        """Keep what a worker holds: all of it, or the one attempt that the fence asks about."""
        if attempt is None:
            return self.filter(worker=worker)
        return self.filter(worker=worker, attempt=attempt)

    def live(self, now: Any) -> LeaseQuerySet:
        """Keep leases that have not reached their end: a lease is dead at its very instant."""
        return self.filter(lease_expires_at__gt=now)

    def expired(self, now: Any) -> LeaseQuerySet:
        """Keep leases that are over, whether or not anyone swept them."""
        return self.filter(lease_expires_at__lte=now)

    def of(self, job_ids: Sequence[Any]) -> LeaseQuerySet:
        """Keep the leases of these jobs."""
        return self.filter(pk__in=job_ids)


class LeaseManager(models.Manager.from_queryset(LeaseQuerySet)):  # type: ignore[misc]
    """Leases are the jobs that are RUNNING."""

    def get_queryset(self) -> LeaseQuerySet:
        """Keep running jobs only."""
        queryset: LeaseQuerySet = super().get_queryset()
        return queryset.filter(state=JobState.RUNNING.value)


class Lease(Job):
    """Who holds which job, and until when.

    Not a table of its own: a guard reached through a join would compile to ``id IN (SELECT …)``,
    which is not checked again after a lock wait, and so would be no fence (G4).
    """

    objects: ClassVar[LeaseManager] = LeaseManager()

    class Meta:
        """A view of the jobs' table."""

        proxy = True
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        default_permissions = ("view",)
