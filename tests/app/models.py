"""The business table: what a view writes beside the job it enqueues, and what a handler writes."""

from django.db import models


class Entry(models.Model):
    """One row of somebody's business; the unique key makes a second write of it fail."""

    key = models.CharField(max_length=100, unique=True)
    value = models.TextField()

    def __str__(self) -> str:
        return self.key
