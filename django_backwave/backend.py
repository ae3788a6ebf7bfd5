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

from django_backwave import conf, hooks, notes, outcome, payload, registry
from django_backwave.audience import enqueues_are_heard
from django_backwave.compat import (
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from django_backwave.core.protocol import RequeueResult
from django_backwave.exceptions import InvalidArguments, InvalidJob
from django_backwave.identity import intent_of
from django_backwave.ids import new_id, new_ids
from django_backwave.jobs import OURS, BackWaveTask, adopt
from django_backwave.payload import shown

if TYPE_CHECKING:
    from datetime import datetime

    from django_backwave.core.identity import Intent
    from django_backwave.core.operation import Resolution
    from django_backwave.core.protocol import CancelResult
    from django_backwave.prepared import PreparedEnqueue
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


def by_alias(alias: str) -> BackWaveBackend:
    """Return our backend of this alias; the first of ours if it has left the settings."""
    if alias in task_backends.settings:
        backend = task_backends[alias]
        if isinstance(backend, BackWaveBackend):
            return backend
    return first_of_ours()


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

        A task with a key comes to the generation that exists, as its ``on_conflict`` and ``unique_for`` say.
        Raises InvalidTask, InvalidJob, InvalidArguments or ForeignTransaction before any SQL of ours, and
        DuplicateKey or KeyBusy where the key does not admit it; EnqueueOutcomeUnknown where the connection
        was lost.
        """
        from django_backwave.store import enqueue

        with outcome.Enqueuing() as told:
            new = self._new(task, args, kwargs)
            using = self._send(told, [new])
            if new.intent is not None:
                return self._enqueue_by_key(task, [new], told, using)[0]
            at = enqueue.insert_one(new, using=using)
            return self._enqueued(task, [new], at, told)[0]

    async def aenqueue(  # type: ignore[override] # the stubs want a result as generic as the task
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> JobResult:
        """Do what ``enqueue`` does, from a coroutine."""
        return await outcome.in_thread(self.enqueue, task, args, kwargs)

    def prepare(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PreparedEnqueue:
        """Return an enqueue that can be repeated. Raises InvalidTask, InvalidJob or InvalidArguments.

        The database is asked for the time, from which its deadline counts.
        """
        from django_backwave.prepared import PreparedEnqueue
        from django_backwave.store import clock, committing

        new, using = self._new(task, args, kwargs), jobs_database()
        with committing.dropping_lost(using):
            until = clock.after(clock.read(using), adopt(task).deadline)
        return PreparedEnqueue(job=new, backend=self.alias, until=until)

    def enqueue_prepared(self, prepared: PreparedEnqueue) -> JobResult:
        """Do what ``PreparedEnqueue.enqueue`` does."""
        from django_backwave import landing, results
        from django_backwave.store import keys, operations

        job, using = prepared.job, jobs_database()
        task = results.task_of(job.name)
        with outcome.Enqueuing() as told:
            told.sends(using, lambda: [prepared])
            try:
                carried = operations.carry_out(prepared.command(), using=using)
            except keys.Refused as refused:
                raise landing.conflict(self, task, [job], refused, using=using) from None
            receipt, ends = told.receipt(), [carried.landed]
            [found] = landing.results_of(self, task, [job], ends, receipt, read=True, using=using)
            if carried.now and carried.landed.verdict in landing.WRITTEN:
                self._tell([found])
            return found

    def resolve(self, prepared: PreparedEnqueue, timeout: float) -> Resolution:
        """Do what ``PreparedEnqueue.resolve`` does."""
        from django_backwave.store import committing, operations

        using = jobs_database()
        with committing.dropping_lost(using):
            return operations.resolve(prepared.command(), timeout=timeout, using=using)

    def _new(self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """Check a call, and return the job that it makes."""
        from django_backwave.store.enqueue import NewJob

        self.validate_task(task)
        own = adopt(task)
        options = _options(own)
        text = _payload(task, args, kwargs)
        intent = intent_of(own, args, kwargs)
        options["headers"] = hooks.headers_for(task)
        return NewJob(id=new_id(), payload=text, intent=intent, **options)

    def _send(self, told: outcome.Enqueuing, new: Sequence[NewJob]) -> str:
        """Say that jobs are sent now, and return where to."""
        using = jobs_database()
        told.sends(using, lambda: self._as_prepared(new))
        return using

    def _as_prepared(self, new: Sequence[NewJob]) -> list[PreparedEnqueue]:
        from django_backwave.prepared import of_plain

        return [of_plain(job, self.alias) for job in new]

    def enqueue_many(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> Sequence[JobResult]:
        """Insert a job for each ``(args, kwargs)``, all or none; return their results in order."""
        from django_backwave.store import enqueue

        with outcome.Enqueuing() as told:
            new = self._new_ones(task, calls)
            if not new:
                return []
            using = self._send(told, new)
            if new[0].intent is not None:
                return self._enqueue_by_key(task, new, told, using)
            at = enqueue.insert_many(new, using=using)
            return self._enqueued(task, new, at, told)

    def _new_ones(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[NewJob]:
        from django_backwave.store.enqueue import NewJob

        self.validate_task(task)
        own = adopt(task)
        options = _options(own)
        most = conf.value("MAX_PAYLOAD")
        checked = [_numbered(own, task, item, number, most) for number, item in enumerate(calls)]
        if not checked:
            return []
        options["headers"] = hooks.headers_for(task)
        return [
            NewJob(id=id, payload=text, intent=intent, **options)
            for id, (text, intent) in zip(new_ids(len(checked)), checked, strict=True)
        ]

    async def aenqueue_many(
        self, task: AnyTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> Sequence[JobResult]:
        """Do what ``enqueue_many`` does, from a coroutine."""
        return await outcome.in_thread(self.enqueue_many, task, calls)

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
        """Send a finished job back and say what that did.

        Raises TaskResultDoesNotExist, and KeyBusy while another generation of its key is unfinished.
        """
        from django_backwave import landing
        from django_backwave.store import operate

        job_id = _job_id(result_id)
        done = operate.requeue([job_id], reset_failures=reset_failures, using=jobs_database())
        if job_id not in done:
            raise TaskResultDoesNotExist(result_id)
        if done[job_id] is RequeueResult.KEY_BUSY:
            raise landing.busy(self, result_id, using=jobs_database())
        return done[job_id]

    async def arequeue(self, result_id: str, *, reset_failures: bool = True) -> RequeueResult:
        """Do what ``requeue`` does, from a coroutine."""
        requeue = sync_to_async(self.requeue, thread_sensitive=True)
        return await requeue(result_id, reset_failures=reset_failures)

    def _enqueued(
        self, task: AnyTask, new: Sequence[NewJob], at: datetime, told: outcome.Enqueuing
    ) -> Sequence[JobResult]:
        from django_backwave import results

        enqueued = results.Enqueued(task, new, at, backend=self.alias, receipt=told.receipt())
        self._tell(enqueued)
        return enqueued

    def _tell(self, enqueued: Iterable[JobResult]) -> None:
        if enqueues_are_heard():
            for result in enqueued:
                # Robust: the job is written, and its caller must not be told otherwise.
                task_enqueued.send_robust(type(self), task_result=result)

    def _enqueue_by_key(
        self, task: AnyTask, new: Sequence[NewJob], told: outcome.Enqueuing, using: str
    ) -> list[JobResult]:
        from django_backwave import landing
        from django_backwave.prepared import of_plain
        from django_backwave.store import keys, operations

        try:
            landed = operations.enqueue_by_key(
                new, lambda job: of_plain(job, self.alias).command(), using=using
            )
        except keys.Refused as refused:
            conflict = landing.conflict(self, task, new, refused, using=using)
            if len(new) > 1:
                conflict.add_note(_NUMBER.format(refused.number))
            raise conflict from None
        found = landing.results_of(self, task, new, landed, told.receipt(), using=using)
        self._tell(one for one, end in zip(found, landed, strict=True) if end.verdict in landing.WRITTEN)
        return found


_NUMBER = "It is number {} of the calls, counted from 0."


def _options(own: BackWaveTask) -> dict[str, Any]:
    """Return what all jobs of a task have in common, as ``NewJob`` takes it."""
    where = own.module_path
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
        "schema": own.schema,
    }


def _payload(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any], most: int | None = None) -> str:
    reason = registry.binds(task, args, kwargs)
    if reason is not None:
        raise InvalidArguments(f"The arguments do not fit {task.module_path}: {reason}.")
    return payload.encode_arguments(task.module_path, args, kwargs, most=most)


def _numbered(
    own: BackWaveTask, task: AnyTask, item: Any, number: int, most: int
) -> tuple[str, Intent | None]:
    """Return payload and key of one of many calls."""
    try:
        args, kwargs = _call(item)
        return _payload(task, args, kwargs, most), intent_of(own, args, kwargs)
    except InvalidJob as error:
        error.add_note(_NUMBER.format(number))
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
