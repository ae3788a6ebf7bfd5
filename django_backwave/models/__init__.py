"""The rows: one model a file, with its fields, constraints, indexes and queryset predicates."""

from django_backwave.models.action import Action
from django_backwave.models.attempt import Attempt
from django_backwave.models.job import Job
from django_backwave.models.key import Key
from django_backwave.models.lease import Lease
from django_backwave.models.mark import Mark
from django_backwave.models.operation import Operation
from django_backwave.models.pause import Pause
from django_backwave.models.tag import Tag
from django_backwave.models.worker import Worker

__all__ = ["Action", "Attempt", "Job", "Key", "Lease", "Mark", "Operation", "Pause", "Tag", "Worker"]
