"""What a bare insert by Django's ORM costs: the rows of django_backwave's jobs, without django_backwave."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import connection

from benchmarks.apps.django_tasks import TASK, prepare
from benchmarks.apps.django_tasks import connect as connect_django
from django_backwave.models import Job

__all__ = ["connect", "enqueue", "enqueue_many", "prepare"]

values: dict[str, Any] = {}


def connect() -> None:
    """Connect, and learn what a job's row holds from one that was enqueued."""
    connect_django()
    if Job._meta.db_table in tables():
        made = Job.objects.get(pk=TASK.enqueue(0).id)
        values.update({field.attname: getattr(made, field.attname) for field in Job._meta.concrete_fields})


def tables() -> list[str]:
    """Return the tables that exist: before `prepare` there are none."""
    return connection.introspection.table_names()


def row(number: int) -> Job:
    """Return a row that is not saved."""
    return Job(**values | {"id": uuid.uuid4(), "payload": {"args": [number], "kwargs": {}}})


def enqueue(number: int) -> None:
    """Insert one row."""
    row(number).save(force_insert=True)


def enqueue_many(numbers: list[int]) -> None:
    """Insert rows as Django's documentation says."""
    Job.objects.bulk_create([row(number) for number in numbers])
