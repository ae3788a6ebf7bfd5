"""The worker: what a process says of itself. For reading only, never part of the fence."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import WORKER_LENGTH
from django_backwave.models.fields import ExactCharField, InstantField, JSONTextField


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


class Worker(models.Model):
    """One process incarnation. ``queues`` is a list of names, or null for all queues."""

    name = ExactCharField(_("name"), max_length=WORKER_LENGTH, primary_key=True)
    host = ExactCharField(_("host"), max_length=WORKER_LENGTH)
    pid = models.PositiveIntegerField(_("process id"))
    started_at = InstantField(_("started at"))
    seen_at = InstantField(_("seen at"), db_index=True)
    queues = JSONTextField(_("queues"), null=True)
    names = JSONTextField(_("job names served"))
    concurrency = models.PositiveIntegerField(_("concurrency"))
    version = ExactCharField(_("version"), max_length=50)

    class Meta:
        """Named like everything else here."""

        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        """Return the worker's name: host, process id and a random part."""
        return str(self.name)

    @classmethod
    def from_db(cls, *args: Any, **options: Any) -> Worker:
        """Read lists of names as such: what somebody has written by hand in their place serves nothing."""
        worker: Worker = super().from_db(*args, **options)
        for field in ("queues", "names"):
            if not _are_names(vars(worker).get(field, [])) and (
                field == "names" or worker.queues is not None
            ):
                setattr(worker, field, [])
        return worker
