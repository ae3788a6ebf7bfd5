"""What names a job's logical work: keys made of arguments, and what an enqueue asks of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from inspect import iscoroutinefunction
from string import Formatter
from typing import TYPE_CHECKING, Any

from django_backwave import registry
from django_backwave.core.identity import Intent, OnConflict, Window
from django_backwave.exceptions import InvalidArguments, InvalidJob, SchemaMismatch
from django_backwave.payload import check_key, check_schema, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_backwave.jobs import BackWaveTask

#: The shortest and longest window, in seconds.
SHORTEST, LONGEST = 1, 10**9

_FORMS = (
    'A key is a format of the arguments, key="receipt:{order_id}", or a module-level function that takes '
    "them and returns a string."
)


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """A key as a format of the arguments: ``"receipt:{order_id}"``. Names only, no attributes, no items."""

    text: str

    def check(self, task: BackWaveTask) -> None:
        """Raise InvalidJob for a name that is no parameter of the function, and for what is no name."""
        what = f"key of {task.module_path}"
        known = registry.parameters(task)
        for name in self._names(what):
            if name not in known:
                raise InvalidJob(
                    f"{what} names {name!r}, which is no parameter of the function. The parameters are: "
                    f"{', '.join(known) or 'none'}. Write a brace of the key itself twice."
                )

    def _names(self, what: str) -> list[str]:
        try:
            fields = [field[1:] for field in Formatter().parse(self.text) if field[1] is not None]
        except ValueError as error:
            raise InvalidJob(f"{what} is no format: {error}, in {shown(self.text)}. {_FORMS}") from None
        for name, spec, conversion in fields:
            if not str(name).isidentifier() or conversion or "{" in str(spec):
                raise InvalidJob(
                    f"{what} may name arguments only, as in {{order_id}} or {{number:06d}}, got "
                    f"{shown(self.text)}. For anything else write a module-level function."
                )
        return [str(name) for name, _, _ in fields]

    def __call__(self, task: BackWaveTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the key of a call."""
        values = registry.bound(task, args, kwargs)
        names = self._names(f"key of {task.module_path}")
        for name in names:
            if not isinstance(values[name], str | int | float):
                raise InvalidArguments(
                    f"The key of {task.module_path} is made of {name!r}, which must be a string or a number, "
                    f"got {shown(values[name])}. For anything else let key be a function."
                )
        try:
            return self.text.format(**{name: _as_stored(values[name]) for name in names})
        except (ValueError, OverflowError) as error:
            raise InvalidArguments(f"The key of {task.module_path} cannot be made: {error}.") from None


def _as_stored(value: str | float) -> str | float:
    """Return a value as it will come out of the payload: a member of an enum is its value there."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


@dataclass(frozen=True, slots=True)
class KeyFunction:
    """A key as a function of the arguments."""

    function: Callable[..., Any]

    def check(self, task: BackWaveTask) -> None:
        """Raise InvalidJob for a function that no other process could find, and for a coroutine."""
        name = getattr(self.function, "__qualname__", "<")
        if "<" in name or not hasattr(self.function, "__module__") or iscoroutinefunction(self.function):
            raise InvalidJob(
                f"key of {task.module_path} must be a plain module-level function, got "
                f"{shown(self.function)}. "
                f"{_FORMS}"
            )

    def __call__(self, task: BackWaveTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the key of a call."""
        try:
            return self.function(*args, **kwargs)
        except Exception as error:
            raise InvalidArguments(
                f"The key of {task.module_path} cannot be made: {type(error).__name__}: {error}, raised by "
                f"{getattr(self.function, '__qualname__', self.function)}. Nothing was enqueued."
            ) from error


@dataclass(frozen=True, slots=True)
class FixedKey:
    """A key as ``using(key=...)`` gives it: this very text."""

    text: str

    def check(self, task: BackWaveTask) -> None:
        """Raise InvalidJob for a text that cannot be a key."""
        check_key(self.text, f"key of {task.module_path}")

    def __call__(self, task: BackWaveTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key."""
        return self.text


type KeyMaker = KeyFormat | KeyFunction | FixedKey


def intent_of(task: BackWaveTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Intent | None:
    """Return what an enqueue says of its key, None for a task without one.

    Raises InvalidArguments where the arguments make no key, and InvalidJob for what cannot be one, and where
    something is said of a key that there is not: the caller relies on what would not be.
    """
    if task.key is None:
        if task.on_conflict is not OnConflict.RETURN or task.unique_for is not Window.FOREVER:
            raise InvalidJob(
                f"{task.module_path} has no key, so its on_conflict and unique_for would do nothing. Give it "
                "one, in @job(key=...) or using(key=...), or leave them out."
            )
        return None
    key = check_key(task.key(task, args, kwargs), f"The key of {task.module_path}")
    names = frozenset((task.job_name, *task.aliases))
    return Intent(key, task.on_conflict, task.unique_for, names)


def key_text(key: KeyMaker | None) -> str | None:
    """Return what makes a task's keys, as text; None for a task without one."""
    match key:
        case KeyFormat(text) | FixedKey(text):
            return text
        case KeyFunction(function):
            return f"{function.__module__}.{function.__qualname__}()"
    return None


# What stored arguments and outputs mean.


def misread(task: BackWaveTask, schema: str | None) -> str | None:
    """Return why a task must not read a job that was stored with this schema, or None if it may."""
    if schema == task.schema or schema in task.accepts:
        return None
    takes = " or ".join(dict.fromkeys(with_schema(each) for each in (task.schema, *task.accepts)))
    return (
        f"the job was stored {with_schema(schema)}, but {task.module_path} takes only jobs stored {takes}; "
        f"use code that takes it, for example with accepts=({schema!r},)"
    )


def expect_schema(task: BackWaveTask, job_id: str, schema: str | None) -> None:
    """Raise SchemaMismatch if a task must not read a job that was stored with this schema."""
    reason = misread(task, schema)
    if reason is not None:
        raise SchemaMismatch(f"Job {job_id}: {reason}.", schema, (task.schema, *task.accepts))


def with_schema(schema: str | None) -> str:
    """Return a schema for a sentence about jobs that were stored."""
    return "without a schema" if schema is None else f"with schema {schema!r}"


# What options may be.


def as_key(value: Any, what: str) -> KeyMaker | None:
    """Return the ``key`` of ``@job``. Raises InvalidJob."""
    if value is None or isinstance(value, KeyFormat | KeyFunction | FixedKey):
        return value
    if isinstance(value, str):
        return KeyFormat(value)
    if callable(value):
        return KeyFunction(value)
    raise InvalidJob(f"{what} must be a string or a function, got {shown(value)}. {_FORMS}")


def as_fixed_key(value: Any) -> Any:
    """Return the ``key`` of ``using()``, where a string is the key itself."""
    return FixedKey(value) if isinstance(value, str) else value


def as_on_conflict(value: Any, what: str) -> OnConflict:
    """Return what to do about a generation that exists. Raises InvalidJob."""
    try:
        return OnConflict(value)
    except ValueError:
        raise InvalidJob(f"{what} must be one of {_listed(OnConflict)}, got {shown(value)}.") from None


def as_window(value: Any, what: str) -> Window | float:
    """Return for how long a key leads to the generation that exists. Raises InvalidJob."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, float | int) and not isinstance(value, bool):
        if not math.isnan(value) and SHORTEST <= value < LONGEST:
            return float(value)
    elif isinstance(value, str) and value in list(Window):
        return Window(value)
    raise InvalidJob(
        f"{what} must be one of {_listed(Window)}, or from {SHORTEST} to {LONGEST:,} seconds or a timedelta, "
        f"got {shown(value)}."
    )


def as_schema(value: Any, what: str) -> str | None:
    """Return a schema's name. Raises InvalidJob."""
    return None if value is None else check_schema(value, what)


def as_schemas(value: Any, what: str) -> tuple[str | None, ...]:
    """Return the schemas that a handler takes beside its own; None: jobs without one. Raises InvalidJob."""
    if not isinstance(value, tuple | list):
        raise InvalidJob(
            f'{what} must be a list or tuple of schemas, got {shown(value)}. For example: ("receipt/1",); '
            "None in it stands for jobs that were enqueued before there was a schema."
        )
    return tuple(as_schema(schema, what) for schema in value)


def _listed(words: Any) -> str:
    return ", ".join(repr(str(word)) for word in words)
