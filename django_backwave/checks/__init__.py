"""System checks: what is wrong with settings, handlers and databases, before it is wrong at night.

Each has an id, a hint, and a heading of the same name in docs/checks.md.
"""

from django_backwave.checks.databases import check_databases, check_row_locks
from django_backwave.checks.deployment import check_deployment
from django_backwave.checks.handlers import check_handlers
from django_backwave.checks.settings import check_options, check_settings

__all__ = [
    "check_databases",
    "check_deployment",
    "check_handlers",
    "check_options",
    "check_row_locks",
    "check_settings",
]
