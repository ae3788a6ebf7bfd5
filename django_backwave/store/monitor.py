"""Reads: what people and results ask about jobs. From the write alias, for a replica may lag behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections
from django.db.models import Prefetch

from django_backwave.models import Attempt, Job

if TYPE_CHECKING:
    from uuid import UUID


def find(job_id: UUID, *, using: str) -> Job | None:
    """Return a job with its attempts, oldest first, or None if there is no such job."""
    attempts = Prefetch("attempts", Attempt.objects.using(using).order_by("number"))
    return Job.objects.using(using).filter(pk=job_id).prefetch_related(attempts).first()


def tables_missing(*, using: str) -> list[str]:
    """Return the names of this app's tables that the database lacks."""
    connection = connections[using]
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
    wanted = [model._meta.db_table for model in (Job, Attempt)]
    return [table for table in wanted if table not in there]
