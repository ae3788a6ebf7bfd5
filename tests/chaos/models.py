"""The ledger: what atomic jobs write."""

from django.db import models


class Line(models.Model):
    """One line that an atomic job has written. Nothing keeps a second one out: that would hide it."""

    job_id = models.UUIDField()
    attempt = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.job_id} #{self.attempt}"
