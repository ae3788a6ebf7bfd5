"""What users import to define jobs and to enqueue them: ``@job`` and ``enqueue_many``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Self, TypedDict, Unpack, cast, overload

from asgiref.sync import sync_to_async
from django.utils.module_loading import import_string

from django_backwave import identity, notes, payload, registry
from django_backwave.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    AnyTask,
    InvalidTaskBackend,
    Task,
    task_backends,
)
from django_backwave.core.identity import OnConflict, Window
from django_backwave.core.operation import DEADLINE
from django_backwave.core.policy import Backoff
from django_backwave.exceptions import InvalidJob, Retry
from django_backwave.outcome import in_thread
from django_backwave.payload import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django_backwave.backend import BackWaveBackend
    from django_backwave.compat import BaseTaskBackend
    from django_backwave.context import JobContext
    from django_backwave.identity import KeyMaker
    from django_backwave.notes import Tag
    from django_backwave.prepared import PreparedEnqueue
    from django_backwave.results import JobResult

    type ErrorClasses = type[BaseException] | Sequence[type[BaseException]]

#: The backend of a job that names none: the first in TASKS that is ours, else one that needs no
#: entry there and allows every queue.
OURS = "(backwave)"

#: What ``using()`` may change for one enqueue.
PER_ENQUEUE = (
    "priority",
    "queue_name",
    "run_after",
    "backend",
    "max_attempts",
    "backoff",
    "lease",
    "timeout",
    "expires",
    "tags",
    "key",
    "on_conflict",
    "unique_for",
    "deadline",
)

#: What OPTIONS of an alias in TASKS may set for those of its jobs that do not say otherwise.
PER_ALIAS = ("max_attempts", "backoff", "lease", "timeout")

SHORTEST, LONGEST = 1, 10**9  # seconds of a lease, a time-out, or until a job expires
MOST_ATTEMPTS = 2**31 - 1  # what the column holds


class PlainOptions(TypedDict, total=False):
    """The options of ``@job`` that leave the handler's parameters as they are."""

    priority: int
    queue_name: str
    backend: str
    name: str
    aliases: Sequence[str]
    max_attempts: int
    backoff: Backoff
    retry_on: ErrorClasses
    give_up_on: ErrorClasses
    lease: float | timedelta | None
    timeout: float | timedelta | None
    atomic: bool
    key: str | Callable[..., str]
    on_conflict: Literal["return", "new_generation", "reject", "replace"]
    unique_for: Literal["forever", "unfinished", "pending"] | float | timedelta
    schema: str
    accepts: Sequence[str | None]


class JobOptions(PlainOptions, total=False):
    """The options of ``@job``: those of Django's ``@task``, and ours."""

    takes_context: bool


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class BackWaveTask(AnyTask):
    """A Django task with the options of a job. Defining one registers its function for workers.

    ``job_name``: the stable stored name; the function's module path unless ``name=`` was given
    (``Task.name`` stays what it is in Django, the function's name). ``aliases``: former names,
    which lead here, too. ``max_attempts``: failures until the job is dead-lettered. ``retry_on``:
    only these exceptions are retried. ``give_up_on``: these dead-letter at once, whatever
    ``retry_on`` says. ``lease``: seconds, None for the worker's. ``timeout``: seconds that the handler may
    run, None for any length. ``expires`` (only in ``using()``): a job not started by then is cancelled.
    ``tags`` (only in ``using()``): words to find the job by.
    ``atomic``: the handler's writes in the jobs' database and its success are one transaction (G7).
    ``key``: a format of the arguments, or a function of them, that names the logical work within the queue.
    ``on_conflict``: what an enqueue does where its key has a generation: "return" it, begin a
    "new_generation" once it is settled, "reject", or "replace" it before its start. ``unique_for``: until
    when a key leads to the generation that exists: "forever", "unfinished", "pending" or so many seconds from
    its enqueue. ``schema``: what the arguments mean, stored with each job; ``accepts``: others that the
    function takes, too, None for jobs that were stored without one.
    """

    priority: int = DEFAULT_TASK_PRIORITY
    backend: str = DEFAULT_TASK_BACKEND_ALIAS
    queue_name: str = DEFAULT_TASK_QUEUE_NAME
    run_after: datetime | None = None
    takes_context: bool = False
    job_name: str = ""
    aliases: tuple[str, ...] = ()
    max_attempts: int = 10
    backoff: Backoff = Backoff()  # noqa: RUF009 - it is frozen
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    give_up_on: tuple[type[BaseException], ...] = ()
    lease: float | None = None
    timeout: float | None = None
    expires: datetime | float | None = None
    tags: tuple[Tag, ...] = ()
    atomic: bool = False
    key: KeyMaker | None = None
    on_conflict: OnConflict = OnConflict.RETURN
    unique_for: Window | float = Window.FOREVER
    schema: str | None = None
    accepts: tuple[str | None, ...] = ()
    deadline: float = DEADLINE

    def __init__(self, *, func: Callable[..., Any], name: str | None = None, **options: Any) -> None:
        """Check the options and register the function.

        Raises TypeError for an option that does not exist, InvalidJob for a value that is not
        allowed, InvalidTask where Django's own rules for tasks are broken.
        """
        where = _path_of(func)
        _refuse_unknown(options, where)
        if hasattr(func, "__wrapped__") and "job_name" not in options:  # a copy for one enqueue has one
            options = _of_wrapped(func) | options
        name = name if name is not None else options.get("job_name") or where
        options["job_name"] = payload.check_name(name, where)
        for option in options.keys() & _CHECKS.keys():
            options[option] = _CHECKS[option](options[option], f"{option} of {where}")
        if options.get("atomic") and iscoroutinefunction(func):
            raise InvalidJob(
                f"atomic of {where} must be False: a transaction cannot span a coroutine. "
                "Write a plain function."
            )
        _fill(self, {**options, "func": func})
        backend = self.get_backend()
        for option, value in defaults_of(backend).items():
            if option not in options:
                object.__setattr__(self, option, value)
        backend.validate_task(self)
        if self.key is not None:
            self.key.check(self)
        registry.register(self)

    @classmethod
    def unchecked(cls, **values: Any) -> Self:
        """Return a task made of values that were checked once: nothing is checked nor registered.

        For stored rows: a queue that has left the settings leaves old results readable.
        """
        task = object.__new__(cls)
        _fill(task, values)
        return task

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module path and the options that ``using()`` changed."""
        base = registry.resolve(self.job_name)
        changed = {
            option: getattr(self, option)
            for option in PER_ENQUEUE
            if base is None or getattr(self, option) != getattr(base, option)
        }
        return _from_pickle, (self.module_path, changed)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        lease: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        expires: datetime | float | timedelta | None = None,
        tags: Iterable[Tag] | None = None,
        key: str | Callable[..., str] | None = None,
        on_conflict: Literal["return", "new_generation", "reject", "replace"] | None = None,
        unique_for: Literal["forever", "unfinished", "pending"] | float | timedelta | None = None,
        deadline: float | timedelta | None = None,
    ) -> Self:
        """Return a copy with other options for the next enqueue; None leaves one as it is.

        ``expires``: a datetime, aware under USE_TZ; or seconds, or a timedelta, from the enqueue on, by the
        database's clock. ``tags``: labels, and pairs of key and value, ``["vip", ("customer", "7")]``.
        ``key``: the key itself, or a function of the arguments; braces in it mean nothing here.
        """
        given = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "lease": lease,
            "timeout": timeout,
            "expires": expires,
            "tags": tags,
            "key": identity.as_fixed_key(key),
            "on_conflict": on_conflict,
            "unique_for": unique_for,
            "deadline": deadline,
        }
        changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        return replace(self, **changed)

    def prepare(self, *args: Any, **kwargs: Any) -> PreparedEnqueue:
        """Return an enqueue of this call that can be repeated: all its repetitions make one job.

        It can be enqueued for ``using(deadline=...)`` from now on, by the database's clock. Raises as
        ``enqueue`` does, and InvalidJob for a task of another backend.
        """
        return _ours(self, "prepare").prepare(self, args, kwargs)

    async def aprepare(self, *args: Any, **kwargs: Any) -> PreparedEnqueue:
        """Do what ``prepare`` does, from a coroutine."""
        return await sync_to_async(self.prepare, thread_sensitive=True)(*args, **kwargs)

    def get_backend(self) -> BaseTaskBackend:
        """Return the backend as TASKS names it now."""
        from django_backwave.backend import first_of_ours

        return first_of_ours() if self.backend == OURS else task_backends[self.backend]

    def is_final(self, error: BaseException) -> bool:
        """Say whether this exception of the handler dead-letters the job at once."""
        if isinstance(error, Retry):
            return False
        return isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on)

    def get_result(self, result_id: str) -> JobResult:
        """Return the result of a job of this task.

        Raises TaskResultDoesNotExist, TaskResultMismatch for another task's job, and SchemaMismatch for one
        that was stored with a schema which this task does not take.
        """
        return self._readable(AnyTask.get_result(self, result_id))

    async def aget_result(self, result_id: str) -> JobResult:
        """Do what ``get_result`` does, from a coroutine."""
        return self._readable(await AnyTask.aget_result(self, result_id))

    def _readable(self, result: Any) -> JobResult:
        # What another vendor's backend returns has none.
        identity.expect_schema(self, result.id, getattr(result, "schema", self.schema))
        return cast("JobResult", result)

    if TYPE_CHECKING:
        # What they return is ours; the code is Django's.
        def enqueue(self, *args: Any, **kwargs: Any) -> JobResult: ...  # noqa: D102
        async def aenqueue(self, *args: Any, **kwargs: Any) -> JobResult: ...  # noqa: D102


if TYPE_CHECKING:

    class TypedTask[**P, R](BackWaveTask):
        """What a job is to a type checker: ``enqueue`` takes what its function takes, the context left out.

        At run time it is a BackWaveTask. Write that in annotations of your own, where any job will do.
        """

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobResult: ...  # noqa: D102
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobResult: ...  # noqa: D102
        def prepare(self, *args: P.args, **kwargs: P.kwargs) -> PreparedEnqueue: ...  # noqa: D102
        async def aprepare(self, *args: P.args, **kwargs: P.kwargs) -> PreparedEnqueue: ...  # noqa: D102


@overload
def job[**P, R](function: Callable[P, R], /) -> TypedTask[P, R]: ...
@overload
def job[**P, R](
    *, takes_context: Literal[True], **options: Unpack[PlainOptions]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], TypedTask[P, R]]: ...
@overload
def job[**P, R](
    *, takes_context: Literal[False] = False, **options: Unpack[PlainOptions]
) -> Callable[[Callable[P, R]], TypedTask[P, R]]: ...
def job(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> BackWaveTask | Callable[[Callable[..., Any]], BackWaveTask]:
    """Make a job of a module-level function; see ``BackWaveTask`` for the options.

    The job belongs to the first backend in TASKS that is ours. Without one it works all the same,
    and takes every queue.
    """

    def define(function: Callable[..., Any]) -> BackWaveTask:
        for option, instead in (
            ("run_after", "using(run_after=...)"),
            ("expires", "using(expires=...)"),
            ("tags", "using(tags=...)"),
            ("deadline", "using(deadline=...)"),
            ("job_name", "name=..."),
        ):
            if option in options:
                raise TypeError(f"@job of {_path_of(function)} takes no option {option!r}. Write {instead}.")
        return BackWaveTask(func=function, **{"backend": OURS, **options})

    return define if function is None else define(function)


def enqueue_many(
    task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
) -> Sequence[JobResult]:
    """Enqueue one job for each ``(args, kwargs)``, all or none, and return their results in order.

    A result is built when it is first looked at. Everything is checked before the first is written. Raises as
    ``enqueue`` does.
    """
    return _ours(task, "enqueue_many").enqueue_many(task, calls)


def _ours(task: AnyTask, what: str) -> BackWaveBackend:
    """Return the task's backend. Raises InvalidJob if that is another vendor's."""
    from django_backwave.backend import BackWaveBackend

    backend = task.get_backend()
    if not isinstance(backend, BackWaveBackend):
        raise InvalidJob(
            f"{what} needs a task of BackWaveBackend, but the backend of {task.module_path} "
            f"is {type(backend).__qualname__}. Define it with @job, or choose using(backend=...)."
        )
    return backend


async def aenqueue_many(
    task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
) -> Sequence[JobResult]:
    """Do what ``enqueue_many`` does, from a coroutine."""
    return await in_thread(enqueue_many, task, calls)


def adopt(task: AnyTask) -> BackWaveTask:
    """Return a task as ours; one made for another backend gets the options' defaults."""
    if isinstance(task, BackWaveTask):
        return task
    name = payload.check_name(task.module_path, task.module_path)
    given = {field.name: getattr(task, field.name) for field in fields(Task)}
    return BackWaveTask.unchecked(**defaults_of(task.get_backend()), **given, job_name=name)


def defaults_of(backend: BaseTaskBackend) -> dict[str, Any]:
    """Return the OPTIONS of an alias, checked. Raises InvalidTaskBackend, and names the option."""
    if not issubclass(backend.task_class, BackWaveTask):
        return {}  # they are another vendor's, and not for us to read
    return check_options(backend.alias, backend.options)


def check_options(alias: str, options: Any) -> dict[str, Any]:
    """Return options of an alias in TASKS as its jobs take them. Raises InvalidTaskBackend."""
    where = f"TASKS[{alias!r}]['OPTIONS']"
    if not isinstance(options, dict):
        raise InvalidTaskBackend(f"{where} must be a dict, got {shown(options)}.")
    for option in options:
        if option not in PER_ALIAS:
            raise InvalidTaskBackend(
                f"{where} has the unknown option {option!r}. The options are: {', '.join(PER_ALIAS)}."
            )
    try:
        return {option: _CHECKS[option](value, f"{option} of {where}") for option, value in options.items()}
    except InvalidJob as error:
        raise InvalidTaskBackend(str(error)) from None


def _fill(task: BackWaveTask, values: Mapping[str, Any]) -> None:
    for field in fields(task):
        object.__setattr__(task, field.name, values.get(field.name, field.default))


def _of_wrapped(func: Any) -> dict[str, Any]:
    """Return our own options of the task whose function this one wraps, if it is one's.

    An error tracker, for one, builds a task again around its function, and knows only Django's fields.
    """
    base = next((task for task in registry.tasks() if task.func is func.__wrapped__), None)
    own = {field.name for field in fields(BackWaveTask)} - {field.name for field in fields(Task)}
    return {} if base is None else {option: getattr(base, option) for option in own}


def _from_pickle(path: str, changed: dict[str, Any]) -> BackWaveTask:
    try:
        task = import_string(path)
    except ImportError as error:
        raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
    if not isinstance(task, BackWaveTask):
        raise ValueError(f"Expected {path!r} to point to a Task instance, got {shown(task)}.")
    return replace(task, **changed)


def _path_of(func: Any) -> str:
    if isinstance(func, Task) or not hasattr(func, "__qualname__"):
        raise TypeError(f"A job is made of a function, got {shown(func)}.")
    return f"{func.__module__}.{func.__qualname__}"


def _refuse_unknown(options: Mapping[str, Any], where: str) -> None:
    known = {field.name for field in fields(BackWaveTask)}
    for option in options.keys() - known:
        raise TypeError(
            f"{where} has the unknown option {option!r}. The options are: "
            f"{', '.join(JobOptions.__annotations__)}."
        )


def _max_attempts(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise InvalidJob(f"{what} must be a whole number from 1 to {MOST_ATTEMPTS:,}, got {shown(value)}.")
    return value


def _backoff(value: Any, what: str) -> Backoff:
    if not isinstance(value, Backoff):
        raise InvalidJob(
            f"{what} must be a Backoff, got {shown(value)}. For example: Backoff(base=2, cap=300)."
        )
    return value


def _error_classes(value: Any, what: str) -> tuple[type[BaseException], ...]:
    classes = (value,) if isinstance(value, type) else value
    if not isinstance(classes, tuple | list) or not all(
        isinstance(one, type) and issubclass(one, BaseException) for one in classes
    ):
        raise InvalidJob(
            f"{what} must be exception classes, got {shown(value)}. For example: (OSError, TimeoutError)."
        )
    return tuple(classes)


def _aliases(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, tuple | list):
        raise InvalidJob(
            f"{what} must be a list or tuple of former names, got {shown(value)}. "
            'For example: ("shop.tasks.send_receipt",).'
        )
    return tuple(payload.check_name(name, what) for name in value)


def _expires(value: Any, what: str) -> datetime | float | None:
    return payload.check_expires(value, what) if isinstance(value, datetime) else _seconds(value, what)


def _seconds(value: Any, what: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or math.isnan(seconds)
        or not SHORTEST <= seconds < LONGEST
    ):
        raise InvalidJob(
            f"{what} must be from {SHORTEST} to {LONGEST:,} seconds or a timedelta, got {shown(value)}."
        )
    return float(seconds)


def _deadline(value: Any, what: str) -> float:
    return _seconds(value, what) or DEADLINE


def _tags(value: Any, what: str) -> tuple[Tag, ...]:
    try:
        return tuple(word.tag for word in notes.words(value))
    except (TypeError, ValueError) as error:
        raise InvalidJob(f"{what} cannot be stored: {error}") from None


def _boolean(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidJob(f"{what} must be True or False, got {shown(value)}.")
    return value


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "accepts": identity.as_schemas,
    "aliases": _aliases,
    "atomic": _boolean,
    "backoff": _backoff,
    "deadline": _deadline,
    "give_up_on": _error_classes,
    "expires": _expires,
    "key": identity.as_key,
    "lease": _seconds,
    "max_attempts": _max_attempts,
    "on_conflict": identity.as_on_conflict,
    "retry_on": _error_classes,
    "schema": identity.as_schema,
    "tags": _tags,
    "timeout": _seconds,
    "unique_for": identity.as_window,
}
