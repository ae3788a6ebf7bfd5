"""System checks: what is wrong with the settings and the handlers, before it is wrong at night."""

from __future__ import annotations

import ast
import inspect
import sys
from contextlib import suppress
from datetime import timedelta
from importlib.util import resolve_name
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections
from django.urls import get_resolver

from django_backwave import conf, discovery, registry
from django_backwave.exceptions import DuplicateJobName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import ModuleType


@register()
def check_settings(**_: Any) -> list[CheckMessage]:
    """Report unknown keys of ``BACKWAVE`` (E001) and values that cannot be used (E002)."""
    given = getattr(settings, "BACKWAVE", {})
    if not isinstance(given, dict):
        return [
            Error(
                f"BACKWAVE must be a dict of settings, got {type(given).__name__}.",
                hint='For example: BACKWAVE = {"MODULES": ["shop.receipts"]}.',
                id="django_backwave.E002",
            )
        ]
    return [*_unknown_keys(given), *_wrong_values(given)]


@register()
def check_handlers(**_: Any) -> list[CheckMessage]:
    """Report duplicate job names (E003), modules that fail (E004), functions out of reach (W001).

    Runs discovery as a worker does. The URL configuration is imported as well, as Django's own
    checks do, so that jobs in views are seen whichever check comes first.
    """
    if not _modules_can_be_read():
        return []  # check_settings says so
    before = _modules_with_jobs()
    try:
        found = discovery.discover()
    except ImportError as error:
        return [_import_failure(error)]
    found += _modules_with_jobs() - before
    if getattr(settings, "ROOT_URLCONF", None):
        with suppress(Exception):  # Django's own check reports it
            get_resolver().url_patterns  # noqa: B018 - reading it imports it
    return list(_out_of_reach(found))


def _unknown_keys(given: dict[str, Any]) -> Iterator[CheckMessage]:
    for key in given.keys() - conf.DEFAULTS.keys():
        yield Error(
            f"BACKWAVE has the unknown key {key!r}.",
            hint=f"The keys are: {', '.join(sorted(conf.DEFAULTS))}.",
            id="django_backwave.E001",
        )


def _wrong_values(given: dict[str, Any]) -> Iterator[CheckMessage]:
    for key, (holds, rule) in RULES.items():
        if key in given and not holds(given[key]):
            yield Error(
                f"BACKWAVE[{key!r}] must be {rule}, got {given[key]!r}.",
                hint=f"The default is {conf.DEFAULTS[key]!r}.",
                id="django_backwave.E002",
            )


def _modules_can_be_read() -> bool:
    given = getattr(settings, "BACKWAVE", {})
    return isinstance(given, dict) and _is_names(given.get("MODULES", []))


def _import_failure(error: ImportError) -> CheckMessage:
    duplicate = isinstance(error.__cause__, DuplicateJobName)
    return Error(
        str(error.__cause__ if duplicate else error),
        hint="A worker imports these modules and does not start while this fails.",
        id="django_backwave.E003" if duplicate else "django_backwave.E004",
    )


def _out_of_reach(found: list[str]) -> Iterator[CheckMessage]:
    missed = _modules_with_jobs() - set(found)
    # What setting up Django imports is imported in a worker, too.
    setup = [type(config).__module__ for config in apps.get_app_configs()]
    setup += [config.models_module.__name__ for config in apps.get_app_configs() if config.models_module]
    missed -= _imported_from([*found, *setup], packages={name.partition(".")[0] for name in missed})
    for task in registry.tasks():
        module = task.func.__module__
        if module in missed:
            yield Warning(
                f"No worker finds the job {task.job_name!r}: discovery does not import the module "
                f"{module!r}.",
                hint=f'Move it to a jobs module, or set BACKWAVE = {{"MODULES": [{module!r}]}}.',
                id="django_backwave.W001",
            )


def _modules_with_jobs() -> set[str]:
    return {task.func.__module__ for task in registry.tasks()}


def _imported_from(modules: Iterable[str], *, packages: Collection[str]) -> set[str]:
    """Return what importing these modules leads to within some packages, by their sources.

    What is loaded by now says nothing: somebody else may have imported it before.
    """
    led_to: set[str] = set()
    todo = list(modules)
    while todo:
        name = todo.pop()
        if name not in led_to and name in sys.modules and name.partition(".")[0] in packages:
            led_to.add(name)
            todo += _imports(sys.modules[name])
    return led_to


def _imports(module: ModuleType) -> Iterator[str]:
    yield module.__name__.rpartition(".")[0]
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value)


def _is_duration(value: Any, least: float = 0.0) -> bool:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return is_number and seconds >= least and 0 < seconds < float("inf")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_DURATION = (_is_duration, "a positive number of seconds or a timedelta")
_DURATION_OR_NONE = (
    lambda value: value is None or _is_duration(value),
    "a positive number of seconds, a timedelta, or None",
)
_SIZE = (_is_size, "a positive number of bytes")

#: For each key of BACKWAVE: whether a value can be used, and the rule in words.
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "DATABASE": (
        lambda value: value is None or (isinstance(value, str) and value in connections.settings),
        "an alias of DATABASES, or None",
    ),
    "MODULES": (_is_names, "a list of module names"),
    "ALLOW_SEPARATE_TRANSACTION": (lambda value: isinstance(value, bool), "True or False"),
    "MAX_PAYLOAD": _SIZE,
    "MAX_OUTPUT": _SIZE,
    "LEASE": (lambda value: _is_duration(value, 1), "at least one second, or a timedelta"),
    "POLL": _DURATION,
    "UNROUTABLE_GRACE": _DURATION,
    "KEEP_DONE": _DURATION_OR_NONE,
    "KEEP_DEAD": _DURATION_OR_NONE,
}
