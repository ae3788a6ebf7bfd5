"""What is enqueued, for a test to look at: jobs that wait to run, with their arguments."""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from django_backwave import registry
from django_backwave.backend import backend_for, jobs_database
from django_backwave.compat import Task
from django_backwave.core.states import PENDING
from django_backwave.jobs import PER_ENQUEUE, adopt
from django_backwave.models import Job
from django_backwave.payload import shown
from django_backwave.results import task_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.db.models import QuerySet

    from django_backwave.compat import AnyTask
    from django_backwave.jobs import BackWaveTask
    from django_backwave.results import JobResult


#: Jobs that a message shows.
SHOWN = 20


def enqueued_jobs(task: AnyTask | str | None = None, *, queue: str | None = None) -> list[JobResult]:
    """Return the jobs that wait to run, due or not, oldest first; of a task, a job name or a queue only.

    Retries wait to run, too. Each has ``args``, ``kwargs``, ``task`` with the options, ``state``.
    """
    rows = _rows().filter(state__in=PENDING)
    if task is not None:
        rows = rows.filter(name__in=_names(task))
    if queue is not None:
        rows = rows.filter(queue=queue)
    return _results(rows)


def assert_enqueued(task: AnyTask, /, *args: Any, **kwargs: Any) -> JobResult:
    """Assert that a job of this task with these arguments waits to run, and return the oldest of them.

    Without arguments: with any. By position or by name makes no difference, and ``mock.ANY`` fits
    everything. Options that ``using()`` has set are compared, too:
    ``assert_enqueued(send.using(priority=10), 7)``. Raises AssertionError, which shows what is enqueued.
    """
    fitting = _fitting(task, args, kwargs)
    if fitting:
        return fitting[0]
    raise AssertionError(f"No job {_wanted(task, args, kwargs)} waits to run. {_instead(task)}")


def assert_not_enqueued(task: AnyTask, /, *args: Any, **kwargs: Any) -> None:
    """Assert that no job of this task with these arguments waits to run; else as ``assert_enqueued``."""
    fitting = _fitting(task, args, kwargs)
    if fitting:
        found = "".join(f"\n  {_line(result)}" for result in fitting[:SHOWN])
        raise AssertionError(f"A job {_wanted(task, args, kwargs)} waits to run, and none should:{found}")


def _rows() -> QuerySet[Job]:
    return Job.objects.using(jobs_database()).order_by("enqueued_at", "pk")


def _results(rows: QuerySet[Job]) -> list[JobResult]:
    told = rows.values_list("pk", "name", "queue")
    return [backend_for(task_of(name), queue).get_result(str(pk)) for pk, name, queue in told]


def _names(task: AnyTask | str) -> list[str]:
    if isinstance(task, str):
        known = registry.resolve(task)
        return [task] if known is None else _names(known)
    if not isinstance(task, Task):
        raise TypeError(f"Give a task, as @job and @task make them, or a job's name; got {shown(task)}.")
    own = adopt(task)
    return [own.job_name, *own.aliases]


def _fitting(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[JobResult]:
    names = _names(task)
    wanted = _bound(task, args, kwargs) if args or kwargs else None
    options = _options(adopt(task))
    rows = _rows().filter(state__in=PENDING, name__in=names)
    return [
        result
        for result in _results(rows)
        if (wanted is None or wanted == _bound_as_far_as_it_fits(task, result))
        and all(_agrees(result, option, value) for option, value in options.items())
    ]


def _bound(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by their parameters' names, with tuples as the lists that JSON makes of them."""
    context = (None,) if task.takes_context else ()
    try:
        bound = inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise AssertionError(
            f"The arguments do not fit {task.module_path}, so no job has them: {error}."
        ) from None
    return {name: _as_json(value) for name, value in bound.arguments.items()}


def _bound_as_far_as_it_fits(task: AnyTask, result: JobResult) -> dict[str, Any] | None:
    args, kwargs = result.args, result.kwargs
    return None if registry.binds(task, args, kwargs) else _bound(task, args, kwargs)


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    return value


def _options(task: BackWaveTask) -> dict[str, Any]:
    """Return the options that ``using()`` has changed."""
    base = registry.resolve(task.job_name) or adopt(import_string(task.module_path))
    changed = (option for option in PER_ENQUEUE if getattr(task, option) != getattr(base, option))
    return {option: getattr(task, option) for option in changed if option != "backend"}


def _agrees(result: JobResult, option: str, value: Any) -> bool:
    """Whether a job was enqueued with an option, as far as its row tells."""
    if option == "tags":
        return set(value) <= set(result.tags)  # handlers may have given it others
    found = getattr(result.task, option)
    if option == "expires" and found is not None and not isinstance(value, datetime):
        # The enqueue may have read the clock once for each of them.
        return bool(abs((found - result.enqueued_at).total_seconds() - value) < 1)
    return bool(found == value)


def _wanted(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    options = _options(adopt(task))
    told = f" with {', '.join(f'{name}={value!r}' for name, value in options.items())}" if options else ""
    call = f"({_arguments(args, kwargs)})" if args or kwargs else ""
    return f"{task.module_path}{call}{told}"


def _instead(task: AnyTask) -> str:
    """Say what there is of this task, in whatever state; else what waits to run of others."""
    same = _results(_rows().filter(name__in=_names(task)).reverse()[:SHOWN])
    if same:
        return "Of this task there are:" + "".join(f"\n  {_line(result)}" for result in reversed(same))
    others = _results(_rows().filter(state__in=PENDING).reverse()[:SHOWN])
    if others:
        return "There are only:" + "".join(f"\n  {_line(result)}" for result in reversed(others))
    return "No job at all does."


def _line(result: JobResult) -> str:
    task = result.task
    due = f", due at {task.run_after}" if task.run_after is not None else ""
    call = f"{task.module_path}({_arguments(result.args, result.kwargs)})"
    return f"{call}: {result.state.label}, queue={task.queue_name!r}, priority={task.priority}{due}"


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())])
