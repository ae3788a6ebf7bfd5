"""Whether anybody hears of a signal of Django's tasks: what it would tell need not be made for nobody."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.utils.log import RequireDebugFalse, RequireDebugTrue

from django_backwave.compat import LOG_RECEIVERS, task_enqueued, task_finished, task_started, tasks_logger
from django_backwave.core.states import JobState

if TYPE_CHECKING:
    from django.dispatch import Signal


def enqueues_are_heard() -> bool:
    """Whether anybody wants to hear of an enqueue.

    Django's own log lines count if they are written anywhere.
    """
    return has_listeners(task_enqueued) or _is_written(logging.DEBUG)


def starts_are_heard() -> bool:
    """Whether anybody wants to hear of a start, as ``enqueues_are_heard`` has it."""
    return has_listeners(task_started) or _is_written(logging.INFO)


def successes_are_heard() -> bool:
    """Whether anybody wants to hear that a job succeeded, as ``enqueues_are_heard`` has it."""
    return end_is_heard(JobState.SUCCEEDED)


def end_is_heard(state: JobState) -> bool:
    """Whether anybody wants to hear that a job came to this end, as ``enqueues_are_heard`` has it."""
    level = logging.INFO if state is JobState.SUCCEEDED else logging.ERROR
    return has_listeners(task_finished) or _is_written(level)


def _is_written(level: int) -> bool:
    """Whether a line of Django's own comes to a handler at all.

    By default the level INFO is on, and the one handler for it writes only in development: then nobody shall
    pay for what nobody sees.
    """
    if not tasks_logger.isEnabledFor(level):
        return False
    logger: logging.Logger | None = tasks_logger
    while logger is not None:
        if any(level >= handler.level and _lets_pass(handler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return level >= logging.WARNING and not tasks_logger.hasHandlers()  # the last resort of `logging`


def _lets_pass(handler: logging.Handler) -> bool:
    """Whether a handler's filters let lines pass, as far as they look at DEBUG and not at the line."""
    known = (one for one in handler.filters if isinstance(one, RequireDebugTrue | RequireDebugFalse))
    return all(one.filter(_NO_RECORD) for one in known)


_NO_RECORD = logging.makeLogRecord({})


def has_listeners(signal: Signal) -> bool:
    """Whether anybody listens, beside the receivers that write Django's own log lines."""
    return any(entry[0][0] not in _LOG_KEYS for entry in signal.receivers)


#: How a signal knows its receivers.
_LOG_KEYS = {id(receiver) for receiver in LOG_RECEIVERS}
