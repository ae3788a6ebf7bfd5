"""The project's own code around ours: ``ON_ENQUEUE`` gives headers, ``AROUND`` surrounds each handler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_backwave import conf
from django_backwave.core.jsontext import encode_json
from django_backwave.core.limits import HEADERS_SIZE
from django_backwave.exceptions import InvalidJob
from django_backwave.payload import plain_json, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_backwave.compat import AnyTask
    from django_backwave.context import JobContext


class Hook:
    """A callable with the dotted path under which the settings name it."""

    def __init__(self, path: str, function: Callable[..., Any]) -> None:
        """Take both."""
        self.path = path
        self._function = function

    def __call__(self, argument: Any) -> Any:
        """Call it."""
        return self._function(argument)


def around() -> tuple[Hook, ...]:
    """Return the factories of context managers around each handler, outermost first.

    Raises ImproperlyConfigured.
    """
    return _hooks("AROUND")


def _hooks(key: str) -> tuple[Hook, ...]:
    paths = conf.value(key)
    if not paths:
        return ()
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise ImproperlyConfigured(f"BACKWAVE[{key!r}] must be a list of dotted paths, got {paths!r}.")
    return _resolved(key, tuple(paths))


@lru_cache(maxsize=32)
def _resolved(key: str, paths: tuple[str, ...]) -> tuple[Hook, ...]:
    """Import hooks, once per process: other settings have other paths, and so another entry."""
    return tuple(Hook(path, _imported(key, path)) for path in paths)


def _imported(key: str, path: str) -> Callable[..., Any]:
    try:
        found = import_string(path)
    except ImportError as error:
        raise ImproperlyConfigured(f"BACKWAVE[{key!r}] names {path!r}, which fails: {error}.") from error
    if not callable(found):
        raise ImproperlyConfigured(f"BACKWAVE[{key!r}] names {path!r}, which cannot be called.")
    return found  # type: ignore[no-any-return]


def headers_for(task: AnyTask) -> str | None:
    """Ask the ``ON_ENQUEUE`` hooks for the headers of jobs of a task, as JSON text; None: there are none.

    Where two hooks give the same name the later one wins. Raises InvalidJob, which names the hook.
    """
    hooks = _hooks("ON_ENQUEUE")
    if not hooks:
        return None
    headers: dict[str, Any] = {}
    for hook in hooks:
        headers |= _asked(hook, task)
    return _encoded(headers, task) if headers else None


def _asked(hook: Hook, task: AnyTask) -> dict[str, Any]:
    where = f"The hook {hook.path!r} in BACKWAVE['ON_ENQUEUE']"
    try:
        given = hook(task)
    except Exception as error:
        raise InvalidJob(
            f"{where} failed for {task.module_path}: {type(error).__name__}: {error}. Nothing was enqueued."
        ) from error
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidJob(f"{where} must return a dict of headers or None, got {shown(given)}.")
    try:
        plain: dict[str, Any] = plain_json(given)
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"{where} must return JSON, but gave: {error}.") from None
    return plain


def _encoded(headers: dict[str, Any], task: AnyTask) -> str:
    text = encode_json(headers)
    size = len(text.encode())
    if size > HEADERS_SIZE:
        sizes = {name: len(encode_json(value).encode()) for name, value in headers.items()}
        largest = max(sizes, key=sizes.__getitem__)
        raise InvalidJob(
            f"The headers of {task.module_path} are {size:,} bytes of JSON, more than {HEADERS_SIZE:,}; the "
            f"longest is {shown(largest)}. They come from the hooks in BACKWAVE['ON_ENQUEUE']: "
            f"{', '.join(hook.path for hook in _hooks('ON_ENQUEUE'))}."
        )
    return text


def made(hook: Hook, context: JobContext) -> Any:
    """Return the context manager that an ``AROUND`` hook makes for an attempt."""
    try:
        manager = hook(context)
    except BaseException as error:
        note(error, hook)
        raise
    if not (hasattr(manager, "__enter__") or hasattr(manager, "__aenter__")):
        raise TypeError(
            f"The hook {hook.path!r} in BACKWAVE['AROUND'] must return a context manager, "
            f"got {shown(manager)}."
        )
    return manager


def refuse_asynchronous(manager: Any, hook: Hook) -> None:
    """Raise TypeError for what only a coroutine can enter."""
    if not hasattr(manager, "__enter__"):
        raise TypeError(
            f"The hook {hook.path!r} in BACKWAVE['AROUND'] returned an asynchronous context manager, which "
            "cannot surround a plain function. Return one that is both, or a synchronous one."
        )


def note(error: BaseException, hook: Hook) -> None:
    """Note on an exception that a hook raised it before the handler began."""
    error.add_note(f"It was raised by the hook {hook.path!r} in BACKWAVE['AROUND'], before the handler.")
