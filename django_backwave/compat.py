"""The one module that imports ``django.tasks``: what other modules need of it comes from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
