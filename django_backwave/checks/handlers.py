"""Checks of the handlers: their names, and whether a worker finds them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from contextlib import suppress
from importlib.util import resolve_name
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.contrib.admin.apps import AdminConfig
from django.core.checks import CheckMessage, Error, Warning, register
from django.urls import get_resolver

from django_backwave import discovery, registry
from django_backwave.checks.settings import is_names
from django_backwave.exceptions import DuplicateJobName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import ModuleType


@register()
def check_handlers(**_: Any) -> list[CheckMessage]:
    """Report duplicate names (E003), modules that fail (E004), functions out of reach (W001), schemas (W007).

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
    return [*_out_of_reach(found), *_accepted_twice()]


def _modules_can_be_read() -> bool:
    given = getattr(settings, "BACKWAVE", {})
    return isinstance(given, dict) and is_names(given.get("MODULES", []))


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
    if any(isinstance(config, AdminConfig) for config in apps.get_app_configs()):
        setup += [f"{config.name}.admin" for config in apps.get_app_configs()]
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


def _accepted_twice() -> Iterator[CheckMessage]:
    for task in registry.tasks():
        takes = Counter((task.schema, *task.accepts))
        for schema in (schema for schema, times in takes.items() if times > 1):
            own = "which is its own" if schema == task.schema else "twice"
            yield Warning(
                f"accepts of the job {task.job_name!r} names {_schema(schema)}, {own}.",
                hint="Take it out of accepts, or correct it: the schema that was meant is not accepted.",
                id="django_backwave.W007",
            )


def _schema(name: str | None) -> str:
    return "None, jobs without a schema" if name is None else f"the schema {name!r}"


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
