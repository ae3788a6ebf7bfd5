"""Where handlers are found: by importing modules that code and settings name, never rows.

These are ``jobs`` and ``tasks`` of every installed app, and the modules in ``BACKWAVE["MODULES"]``.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from django_backwave import conf, registry
from django_backwave.compat import Task
from django_backwave.jobs import BackWaveTask, adopt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

#: The modules of an app that may define handlers.
APP_MODULES = ("jobs", "tasks")

_lock = threading.RLock()
_done_for: list[str] | None = None  # the modules that ``discover_once`` has been through


def discover() -> list[str]:
    """Import every module that may define handlers, and return their names.

    A module that an app does not have is skipped. Raises ImportError, which names the module, if
    one fails while it is imported, or if one of ``BACKWAVE["MODULES"]`` does not exist.
    """
    names = _modules()
    for name in names:
        _load(name)
    return names


def discover_once() -> None:
    """Discover, unless it has been done in this process for the very same modules."""
    global _done_for
    with _lock:
        names = _modules()
        if names != _done_for:
            discover()
            _done_for = names


def _modules() -> list[str]:
    further = conf.value("MODULES")
    if isinstance(further, str):
        raise ImproperlyConfigured(f'BACKWAVE["MODULES"] must be a list of module names, got {further!r}.')
    return list(dict.fromkeys([*_app_modules(), *further]))


def _app_modules() -> Iterator[str]:
    for config in apps.get_app_configs():
        if config.module is None or config.name == __package__:  # our own `jobs` is no such module
            continue
        for name in APP_MODULES:
            if module_has_submodule(config.module, name):
                yield f"{config.name}.{name}"


def _load(name: str) -> None:
    try:
        _register_plain_tasks(import_module(name))
    except Exception as error:
        raise ImportError(
            f"The module {name!r}, which may define jobs, failed while it was imported: "
            f"{type(error).__name__}: {error}",
            name=name,
        ) from error


def _register_plain_tasks(module: ModuleType) -> None:
    """Take up tasks made for other backends: ``using(backend=...)`` may send them to ours."""
    for value in list(vars(module).values()):
        if isinstance(value, Task) and not isinstance(value, BackWaveTask):
            registry.register(adopt(value))
