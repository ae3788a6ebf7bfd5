"""Checks for a deployment (``manage.py check --deploy``): what was right only while developing."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

from django_backwave.compat import TASKS_PACKAGE, task_backends

#: Backends of Django that keep no job.
FORGETFUL = {
    f"{TASKS_PACKAGE}.backends.immediate.ImmediateBackend": "runs tasks inside the request",
    f"{TASKS_PACKAGE}.backends.dummy.DummyBackend": "never runs a task",
}


@register(deploy=True)
def check_deployment(**_: Any) -> list[CheckMessage]:
    """Report a forgotten ImmediateBackend or DummyBackend (W005), and DEBUG (W006)."""
    messages: list[CheckMessage] = [
        Warning(
            f"TASKS[{alias!r}] is {entry['BACKEND']}, which {FORGETFUL[entry['BACKEND']]}.",
            hint='Set its BACKEND to "django_backwave.BackWaveBackend".',
            id="django_backwave.W005",
        )
        for alias, entry in task_backends.settings.items()
        if entry.get("BACKEND") in FORGETFUL and _is_set("TASKS")
    ]
    if settings.DEBUG:
        messages.append(
            Warning(
                "Under DEBUG a worker keeps every statement of a running handler in memory.",
                hint="Set DEBUG = False.",
                id="django_backwave.W006",
            )
        )
    return messages


def _is_set(name: str) -> bool:
    """Whether the project sets it, and not only Django's defaults do."""
    return bool(settings.is_overridden(name))  # type: ignore[misc] # the plugin takes it for a setting
