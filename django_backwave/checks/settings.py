"""Checks of the settings: the keys and values of ``BACKWAVE``, and what ``TASKS`` says of our backend."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.db import connections
from django.utils.module_loading import import_string

from django_backwave import conf, jobs
from django_backwave.backend import BackWaveBackend
from django_backwave.compat import InvalidTaskBackend, task_backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
def check_options(**_: Any) -> list[CheckMessage]:
    """Report OPTIONS of our backend in ``TASKS`` that are unknown or cannot be used (E005)."""
    return [
        Error(
            wrong,
            hint="They are defaults for the alias's jobs. Other options of a job belong to @job, "
            "and settings of the app to BACKWAVE.",
            id="django_backwave.E005",
        )
        for alias, options in _options_of_ours()
        for wrong in _wrong_options(alias, options)
    ]


def _wrong_options(alias: str, options: Any) -> Iterator[str]:
    for one in [{name: value} for name, value in options.items()] if isinstance(options, dict) else [options]:
        try:
            jobs.check_options(alias, one)
        except InvalidTaskBackend as error:
            yield str(error)


def _options_of_ours() -> Iterator[tuple[str, Any]]:
    for alias in task_backends:
        try:
            backend = task_backends[alias]
        except InvalidTaskBackend:
            continue  # Django says so itself
        if isinstance(backend, BackWaveBackend):
            yield alias, backend.options


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


def is_names(value: Any) -> bool:
    """Whether a value is a list of names."""
    return isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value)


def are_callables(value: Any) -> bool:
    """Whether a value is a list of dotted paths, each of which leads to something that can be called."""
    return is_names(value) and all(_is_callable(path) for path in value)


def _is_callable(path: str) -> bool:
    try:
        return callable(import_string(path))
    except Exception:  # whatever the module does when it is imported
        return False


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
_HOOKS = (are_callables, "a list of dotted paths of callables that can be imported")
_SIZE = (_is_size, "a positive number of bytes")

#: For each key of BACKWAVE: whether a value can be used, and the rule in words.
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "DATABASE": (
        lambda value: value is None or (isinstance(value, str) and value in connections.settings),
        "an alias of DATABASES, or None",
    ),
    "MODULES": (is_names, "a list of module names"),
    "ON_ENQUEUE": _HOOKS,
    "AROUND": _HOOKS,
    "ALLOW_SEPARATE_TRANSACTION": (lambda value: isinstance(value, bool), "True or False"),
    "MAX_PAYLOAD": _SIZE,
    "MAX_OUTPUT": _SIZE,
    "LEASE": (lambda value: _is_duration(value, 1), "at least one second, or a timedelta"),
    "POLL": _DURATION,
    "NOTIFY": (
        lambda value: isinstance(value, bool) or (isinstance(value, str) and value in connections.settings),
        "True, False, or an alias of DATABASES",
    ),
    "UNROUTABLE_GRACE": _DURATION,
    "KEEP_DONE": _DURATION_OR_NONE,
    "KEEP_DEAD": _DURATION_OR_NONE,
}
