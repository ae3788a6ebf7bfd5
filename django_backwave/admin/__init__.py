"""The Django admin: jobs, keys, leases, queues, workers and actions. Importing it registers the pages."""

from django_backwave.admin.actions import ActionAdmin
from django_backwave.admin.jobs import JobAdmin
from django_backwave.admin.keys import KeyAdmin
from django_backwave.admin.leases import LeaseAdmin
from django_backwave.admin.queues import PauseAdmin
from django_backwave.admin.workers import WorkerAdmin

__all__ = ["ActionAdmin", "JobAdmin", "KeyAdmin", "LeaseAdmin", "PauseAdmin", "WorkerAdmin"]
