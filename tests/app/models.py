"""The business tables: what a view writes beside the job it enqueues, and what a handler writes."""

from django.db import models

from django_backwave.models import Job


class Entry(models.Model):
    """One row of somebody's business; the unique key makes a second write of it fail."""

    key = models.CharField(max_length=100, unique=True)
    value = models.TextField()

    def __str__(self) -> str:
        return self.key


class Export(models.Model):
    """One row that points at the job which makes it, and outlives it."""

    # An app without migrations gets its tables first, so that there is nothing yet to point at.
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, db_constraint=False)

    def __str__(self) -> str:
        return str(self.pk)


class Invoice(models.Model):
    """One row that keeps its job from being deleted."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, db_constraint=False)

    def __str__(self) -> str:
        return str(self.pk)
