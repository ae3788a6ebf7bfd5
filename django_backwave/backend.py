"""The ``django.tasks`` backend: enqueue, results and cancel for tasks that run as jobs.

It is constructed before the app registry is ready, when a module's jobs are defined, so models and
the store are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import router
from django.utils.module_loading import import_string

from django_backwave import conf, hooks, notes, payload, registry
from django_backwave.compat import (
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from django_backwave.exceptions import InvalidArguments, InvalidJob
from django_backwave.ids import new_id
from django_backwave.jobs import OURS, BackWaveTask, adopt
from django_backwave.payload import shown

if TYPE_CHECKING:
    from datetime import datetime

    from django_backwave.core.protocol import CancelResult, RequeueResult
    from django_backwave.results import JobResult
    from django_backwave.store.enqueue import NewJob


def jobs_database() -> str:
    """Return the alias of the database in which jobs are written, and read."""
    from django_backwave.models import Job

    return str(conf.value("DATABASE") or router.db_for_write(Job))


def first_of_ours() -> BackWaveBackend:
    """Return the first backend in TASKS that is ours, else one that allows every queue."""
    return next(_all_of_ours(), None) or _implicit()


def backend_for(task: AnyTask, queue: str | None = None) -> BackWaveBackend:
    """Return the task's own backend if that is ours, else the first of ours.

    With a queue: the one that most likely wrote a job in it, which no row says: never an alias that does not
    have the queue, while another one has it.
    """
    backend = task.get_backend()
    own = backend if isinstance(backend, BackWaveBackend) else first_of_ours()
    if queue is None or not own.queues or queue in own.queues:
        return own
    return next((one for one in _all_of_ours() if queue in one.queues), own)


class BackWaveBackend(BaseTaskBackend):
    """Stores tasks as jobs, in the caller's transaction (G1). Workers run them."""

    task_class = BackWaveTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask by Django's rules, InvalidJob by ours."""
        where = task.module_path
        if isgeneratorfunction(task.func) or isasyncgenfunction(task.func):
            raise InvalidTask(f"{where} is a generator function: a call of it would run nothing.")
        payload.check_queue(task.queue_name, where)
        payload.check_run_after(task.run_after, where)
        super().validate_task(task)
        payload.instant_of(task.run_after, where)

    def enqueue(  # type: ignore[override] # the stubs want a result as generic as the task
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> JobResult:
        """Insert a job in the caller's transaction, and return its result.

        Raises InvalidTask, InvalidJob, InvalidArguments or ForeignTransaction before any SQL of ours.
        """
        from django_backwave.store import enqueue

        self.validate_task(task)
        options = _options(task)
        text = _payload(task, args, kwargs)
        new = enqueue.NewJob(id=new_id(), payload=text, headers=hooks.headers_for(task), **options)
        at = enqueue.insert_one(new, using=jobs_database())
        return self._enqueued(task, [new], at)[0]

    def enqueue_many(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[JobResult]:
        """Insert a job for each ``(args, kwargs)``, all or none; return their results in order."""
        from django_backwave.store import enqueue

        self.validate_task(task)
        options = _options(task)
        texts = [_numbered(task, item, number) for number, item in enumerate(calls)]
        if not texts:
            return []
        options["headers"] = hooks.headers_for(task)
        new = [enqueue.NewJob(id=new_id(), payload=text, **options) for text in texts]
        at = enqueue.insert_many(new, using=jobs_database())
        return self._enqueued(task, new, at)

    async def aenqueue_many(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[JobResult]:
        """Do what ``enqueue_many`` does, from a coroutine."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(task, calls)

    def get_result(self, result_id: str) -> JobResult:
        """Return the result of a job as its row stands, whether or not its handler still exists.

        Raises TaskResultDoesNotExist for an unknown id and for what is no id at all.
        """
        from django_backwave import results
        from django_backwave.store import monitor

        row = monitor.find(_job_id(result_id), using=jobs_database())
        if row is None:
            raise TaskResultDoesNotExist(result_id)
        return results.of_row(row, self)

    def cancel(self, result_id: str) -> CancelResult:
        """Cancel a job (G8) and say what that did. Raises TaskResultDoesNotExist."""
        from django_backwave.store import operate

        job_id = _job_id(result_id)
        done = operate.cancel([job_id], using=jobs_database())
        if job_id not in done:
            raise TaskResultDoesNotExist(result_id)
        return done[job_id]

    async def acancel(self, result_id: str) -> CancelResult:
        """Do what ``cancel`` does, from a coroutine."""
        return await sync_to_async(self.cancel, thread_sensitive=True)(result_id)

    def requeue(self, result_id: str, *, reset_failures: bool = True) -> RequeueResult:
        """Send a finished job back and say what that did. Raises TaskResultDoesNotExist."""
        from django_backwave.store import operate

        job_id = _job_id(result_id)
        done = operate.requeue([job_id], reset_failures=reset_failures, using=jobs_database())
        if job_id not in done:
            raise TaskResultDoesNotExist(result_id)
        return done[job_id]

    async def arequeue(self, result_id: str, *, reset_failures: bool = True) -> RequeueResult:
        """Do what ``requeue`` does, from a coroutine."""
        requeue = sync_to_async(self.requeue, thread_sensitive=True)
        return await requeue(result_id, reset_failures=reset_failures)

    def _enqueued(self, task: AnyTask, new: Sequence[NewJob], at: datetime) -> list[JobResult]:
        from django_backwave import results

        enqueued = results.of_enqueue(task, new, at, backend=self.alias)
        for result in enqueued:
            # Robust: the job is written, and its caller must not be told otherwise.
            task_enqueued.send_robust(type(self), task_result=result)
        return enqueued


def _options(task: AnyTask) -> dict[str, Any]:
    """Return what all jobs of a task have in common, as ``NewJob`` takes it."""
    own, where = adopt(task), task.module_path
    run_after = payload.instant_of(own.run_after, where)
    return {
        "name": own.job_name,
        "queue": own.queue_name,
        "priority": int(own.priority),
        "run_after": run_after,
        "max_attempts": own.max_attempts,
        "backoff": own.backoff,
        "lease_seconds": own.lease,
        "tags": notes.words(own.tags),
        "timeout_seconds": own.timeout,
        "expires": payload.expiry_of(own.expires, run_after, where),
    }


def _payload(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    reason = registry.binds(task, args, kwargs)
    if reason is not None:
        raise InvalidArguments(f"The arguments do not fit {task.module_path}: {reason}.")
    return payload.encode_arguments(task.module_path, args, kwargs)


def _numbered(task: AnyTask, item: Any, number: int) -> str:
    try:
        return _payload(task, *_call(item))
    except InvalidJob as error:
        error.add_note(f"It is number {number} of the calls, counted from 0.")
        raise


def _call(item: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    match item:
        case (list() | tuple() as args, dict() as kwargs) if isinstance(item, list | tuple):
            return args, kwargs
    raise InvalidArguments(f"enqueue_many takes pairs of arguments such as ((7,), {{}}), got {shown(item)}.")


def _job_id(result_id: object) -> UUID:
    try:
        return UUID(str(result_id))
    except ValueError:
        raise TaskResultDoesNotExist(result_id) from None


def _all_of_ours() -> Iterator[BackWaveBackend]:
    for alias in task_backends:
        if _is_ours(task_backends.settings[alias].get("BACKEND", "")):
            yield cast("BackWaveBackend", task_backends[alias])


def _is_ours(backend: str) -> bool:
    if backend in ("django_backwave.BackWaveBackend", "django_backwave.backend.BackWaveBackend"):
        return True
    try:
        found = import_string(backend)
    except Exception:
        return False  # Django's own check reports what is wrong with it
    return isinstance(found, type) and issubclass(found, BackWaveBackend)


@cache
def _implicit() -> BackWaveBackend:
    return BackWaveBackend(OURS, {"QUEUES": []})
