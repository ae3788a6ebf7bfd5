"""The one module that imports ``django.tasks``: what other modules need of it comes from here.

Django 5.2 has no tasks of its own. There they come from the backport ``django_tasks``, which has the same
classes, some of them under other names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_QUEUE_NAME,
        Task,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        task,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import DEFAULT_TASK_PRIORITY, TaskError
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )
    from django.tasks.signals import (
        log_task_enqueued,
        log_task_finished,
        log_task_started,
        task_enqueued,
        task_finished,
        task_started,
    )
    from django.tasks.signals import logger as tasks_logger

    #: The package that has Django's tasks: its own backends, too, are named by their path.
    TASKS_PACKAGE = "django.tasks"
else:
    try:
        from django_tasks import (
            DEFAULT_TASK_BACKEND_ALIAS,
            DEFAULT_TASK_QUEUE_NAME,
            TaskContext,
            TaskResult,
            TaskResultStatus,
            task,
            task_backends,
        )
    except ImportError as error:
        from django.core.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured(
            f"Django {django.get_version()} has no tasks of its own, and their backport cannot be imported "
            f"({error}). Install it: pip install 'django-backwave[django52]'. Django 6.0 needs no backport."
        ) from error
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import DEFAULT_TASK_PRIORITY, Task, TaskError
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import (
        log_task_enqueued,
        log_task_finished,
        log_task_started,
        task_enqueued,
        task_finished,
        task_started,
    )
    from django_tasks.signals import logger as tasks_logger

    TASKS_PACKAGE = "django_tasks"

# Type checkers know these classes as generic; at run time they cannot be subscripted.
if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
    AnyContext = TaskContext[..., Any]
else:
    AnyTask, AnyResult, AnyContext = Task, TaskResult, TaskContext

#: The receivers that write Django's own log lines, to ``tasks_logger``.
LOG_RECEIVERS = (log_task_enqueued, log_task_finished, log_task_started)

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "LOG_RECEIVERS",
    "TASKS_PACKAGE",
    "AnyContext",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
    "tasks_logger",
]
