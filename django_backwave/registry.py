"""Stored job name → task: what this process's own code defined, and so all that it may run."""

from __future__ import annotations

import inspect
import sys
import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from django_backwave.exceptions import DuplicateJobName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django_backwave.compat import AnyTask
    from django_backwave.jobs import BackWaveTask


class Registry:
    """The tasks by each of their names. Safe to use from any thread."""

    def __init__(self) -> None:
        """Begin with no task."""
        self._lock = threading.Lock()
        # Replaced as a whole, so that readers need no lock.
        self._tasks: dict[str, BackWaveTask] = {}

    def register(self, task: BackWaveTask) -> None:
        """Take up a task under its job name and its aliases.

        The same function again changes nothing; a new function at the same module path (the module
        was reloaded) takes the place of the old one, under all its names. Raises DuplicateJobName,
        and changes nothing, if another function has one of the names.
        """
        names = (task.job_name, *task.aliases)
        if all(name in self._tasks and self._tasks[name].func is task.func for name in names):
            return
        with self._lock:
            tasks = {
                name: known
                for name, known in self._tasks.items()
                if known.func is task.func or known.module_path != task.module_path
            }
            for name in names:
                holder = tasks.setdefault(name, task)
                if holder.module_path != task.module_path:
                    raise DuplicateJobName(
                        f"Job name {name!r} is claimed by {holder.module_path} and by "
                        f"{task.module_path}. Give one of them another name, @job(name=...), or "
                        "take the name out of its aliases."
                    )
            self._tasks = tasks

    def resolve(self, name: str) -> BackWaveTask | None:
        """Return the task with this job name or alias, or None."""
        return self._tasks.get(name)

    def names(self) -> list[str]:
        """Return every name that resolves, aliases included, in order."""
        return sorted(self._tasks)

    def tasks(self) -> list[BackWaveTask]:
        """Return every task once, in the order of their job names."""
        tasks = {task.job_name: task for task in self._tasks.values()}
        return [tasks[name] for name in sorted(tasks)]


_registry = Registry()
register = _registry.register
resolve = _registry.resolve
names = _registry.names
tasks = _registry.tasks


def binds(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return why these arguments do not fit the task's function, or None if they do."""
    context = (None,) if task.takes_context else ()
    if not kwargs:
        least, most = _arity(task.func)
        if least <= len(context) + len(args) <= most:
            return None  # most calls are of this kind, and binding them costs more than all the rest
    try:
        _signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def is_async(task: AnyTask) -> bool:
    """Whether a task's function is a coroutine function."""
    return _is_coroutine_function(task.func)


def signature(task: AnyTask) -> inspect.Signature:
    """Return the signature of a task's calls: that of its function, the context left out."""
    whole = _signature(task.func)
    return whole.replace(parameters=list(whole.parameters.values())[int(task.takes_context) :])


def parameters(task: AnyTask) -> list[str]:
    """Return the names of the parameters that a call gives one by one, the context left out."""
    plain = [
        parameter.name
        for parameter in _signature(task.func).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return plain[1:] if task.takes_context else plain


def bound(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of those that it leaves out."""
    context = (None,) if task.takes_context else ()
    call = _signature(task.func).bind(*context, *args, **kwargs)
    call.apply_defaults()
    return call.arguments


if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations may name what is imported for type checkers only.
    _inspect = partial(inspect.signature, annotation_format=annotationlib.Format.FORWARDREF)
else:
    _inspect = inspect.signature


# For each job these are asked, and `inspect` takes longer for each than we for all the rest.
_is_coroutine_function = lru_cache(maxsize=512)(inspect.iscoroutinefunction)


@lru_cache(maxsize=512)
def _arity(func: Callable[..., Any]) -> tuple[int, float]:
    """Return how many arguments by position fit without any by name: at least, and at most."""
    least, most = 0, 0.0
    for parameter in _signature(func).parameters.values():
        required = parameter.default is parameter.empty
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            least, most = least + required, most + 1
        elif parameter.kind is parameter.VAR_POSITIONAL:
            most = float("inf")
        elif parameter.kind is parameter.KEYWORD_ONLY and required:
            return 1, 0  # none fit
    return least, most


@lru_cache(maxsize=512)
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return _inspect(func)
