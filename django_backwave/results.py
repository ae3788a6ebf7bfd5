"""What users hold of a job: its result, a Django TaskResult that knows the job behind it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast, overload

from asgiref.sync import sync_to_async

from django_backwave import discovery, identity, registry
from django_backwave.backend import backend_for, first_of_ours
from django_backwave.compat import AnyResult, AnyTask, TaskError, TaskResultStatus
from django_backwave.core.identity import Verdict
from django_backwave.core.jsontext import decode_json
from django_backwave.core.outcome import CANCEL_CAUSE
from django_backwave.core.policy import Backoff
from django_backwave.core.states import FAILURES, AttemptOutcome, JobState
from django_backwave.exceptions import AttemptAbandoned
from django_backwave.handles import JobHandle
from django_backwave.instants import to_rim
from django_backwave.jobs import OURS, BackWaveTask, adopt
from django_backwave.notes import Progress, Word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from django_backwave.backend import BackWaveBackend
    from django_backwave.core.outcome import ErrorInfo
    from django_backwave.core.protocol import CancelResult, Claimed, RequeueResult
    from django_backwave.models import Attempt, Job
    from django_backwave.notes import Tag
    from django_backwave.outcome import Receipt
    from django_backwave.store.enqueue import NewJob
    from django_backwave.store.keys import Landed

logger = logging.getLogger("django_backwave.results")

#: What Django's four statuses make of a job's states.
STATUSES: dict[JobState, TaskResultStatus] = {
    JobState.WAITING: TaskResultStatus.READY,
    JobState.READY: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    JobState.CANCELLED: TaskResultStatus.FAILED,
    JobState.DEAD_LETTERED: TaskResultStatus.FAILED,
    JobState.QUARANTINED: TaskResultStatus.FAILED,
}


# Equality stays Django's: two readings of one job compare by what Django's result has.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class JobResult(AnyResult):  # type: ignore[misc] # frozen at run time, not in the stubs
    """A job as its row stood when it was read; ``refresh()`` reads it again.

    ``state`` is the job's own, finer than ``status``; ``cause`` says why it ended, or failed last.
    ``tags`` are labels, and pairs of key and value; ``progress`` is what the handler last said of itself.
    ``key`` names the logical work of which this job is a ``generation``, within its queue; ``schema`` says
    what its arguments mean. ``created``: whether the enqueue that returned this made the job; ``receipt``
    says whether it is committed, and is None for a result that no enqueue returned.
    ``errors`` has one entry for each failed attempt, ``worker_ids`` one worker for each attempt,
    the running one included. Both reach back as far as the history is kept.
    """

    state: JobState
    cause: str = ""
    tags: tuple[Tag, ...] = ()
    progress: Progress | None = None
    key: str | None = None
    generation: int | None = None
    schema: str | None = None
    created: bool = False
    receipt: Receipt | None = None

    def __post_init__(self) -> None:
        """Leave the arguments as they are: they come out of JSON."""

    def __repr__(self) -> str:
        """Say which job this is and how it stood; arguments stay out of logs."""
        return f"<JobResult {self.id} {self.task.module_path}: {self.state.label}>"

    @property
    def output(self) -> Any:
        """What the handler returned; None unless the job has succeeded."""
        return self._return_value  # type: ignore[attr-defined] # not in the stubs

    @property
    def handle(self) -> JobHandle:
        """What leads to this generation of the job, in another process or tomorrow as well."""
        task = adopt(self.task)
        return JobHandle(
            id=self.id,
            queue=task.queue_name,
            key=self.key,
            generation=self.generation,
            name=task.job_name,
            schema=self.schema,
        )

    def dumps(self) -> str:
        """Return the handle as signed text, for ``JobHandle.loads``."""
        return self.handle.dumps()

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the end of this generation, and return its output; see ``JobHandle.wait``.

        This result stays as it was read until ``refresh()``. Raises SchemaMismatch as that does.
        """
        self._expect(self.schema)
        return self.handle.wait(timeout)

    async def await_(self, timeout: float | timedelta | None = None) -> Any:
        """Do what ``wait`` does, from a coroutine."""
        self._expect(self.schema)
        return await self.handle.await_(timeout)

    def refresh(self) -> None:
        """Read the job again.

        Raises TaskResultDoesNotExist if it has been pruned, and SchemaMismatch where the task has a schema
        and does not take the job's.
        """
        fresh = self._backend().get_result(self.id)
        self._expect(fresh.schema)
        for field in fields(self):
            if field.name not in ("task", "backend", "created", "receipt"):
                object.__setattr__(self, field.name, getattr(fresh, field.name))

    async def arefresh(self) -> None:
        """Do what ``refresh`` does, from a coroutine."""
        await sync_to_async(self.refresh, thread_sensitive=True)()

    def cancel(self) -> CancelResult:
        """Cancel the job (G8) and return what that did.

        What has not started never starts; what runs is asked to stop. This result stays as it was
        read until ``refresh()``. Raises TaskResultDoesNotExist if the job has been pruned.
        """
        return self._backend().cancel(self.id)

    def requeue(self, *, reset_failures: bool = True) -> RequeueResult:
        """Send a dead-lettered, quarantined or cancelled job back, due now; return what that did.

        Its failures are forgotten unless ``reset_failures`` is false. This result stays as it was read until
        ``refresh()``. Raises TaskResultDoesNotExist if the job has been pruned, and KeyBusy while another
        generation of its key is unfinished.
        """
        return self._backend().requeue(self.id, reset_failures=reset_failures)

    async def arequeue(self, *, reset_failures: bool = True) -> RequeueResult:
        """Do what ``requeue`` does, from a coroutine."""
        requeue = sync_to_async(self.requeue, thread_sensitive=True)
        return await requeue(reset_failures=reset_failures)

    async def acancel(self) -> CancelResult:
        """Do what ``cancel`` does, from a coroutine."""
        return await sync_to_async(self.cancel, thread_sensitive=True)()

    def _expect(self, schema: str | None) -> None:
        """Raise SchemaMismatch where the task has a schema and does not take this one."""
        if isinstance(self.task, BackWaveTask) and self.task.schema is not None:
            identity.expect_schema(self.task, self.id, schema)

    def _backend(self) -> BackWaveBackend:
        return cast("BackWaveBackend", self.task.get_backend())


class Enqueued(Sequence[JobResult]):
    """The results of jobs that were enqueued just now, each built when it is first looked at."""

    def __init__(
        self,
        task: AnyTask,
        new: Sequence[NewJob],
        at: datetime,
        *,
        backend: str,
        receipt: Receipt | None = None,
    ) -> None:
        """Keep what they are built from; ``at`` is when they were enqueued."""
        self._task, self._new, self._at, self._backend = task, new, to_rim(at), backend
        self._receipt = receipt
        self._built: dict[int, JobResult] = {}

    def __len__(self) -> int:
        return len(self._new)

    @overload
    def __getitem__(self, index: int) -> JobResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[JobResult]: ...
    def __getitem__(self, index: int | slice) -> JobResult | list[JobResult]:
        """Return one result, or those of a slice."""
        place = range(len(self._new))[index]
        return self._result(place) if isinstance(place, int) else [self._result(one) for one in place]

    def __repr__(self) -> str:
        """Show the results, as a list does."""
        return repr(list(self))

    def _result(self, place: int) -> JobResult:
        if place not in self._built:
            result = _of_new(self._task, self._new[place], self._at, self._backend)
            give_receipt(result, self._receipt)
            self._built[place] = result
        return self._built[place]


def give_receipt(result: JobResult, receipt: Receipt | None) -> None:
    """Let the result of an enqueue have its receipt."""
    object.__setattr__(result, "receipt", receipt)


def _of_new(task: AnyTask, job: NewJob, enqueued_at: datetime, backend: str) -> JobResult:
    return JobResult(
        task=task,
        id=str(job.id),
        state=JobState.READY,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        backend=backend,
        errors=[],
        worker_ids=[],
        tags=_tags(job.tags) if job.tags else (),
        key=job.key,
        generation=job.generation,
        schema=job.schema,
        created=True,
        **decode_json(job.payload),
    )


def of_pruned(job: NewJob, landed: Landed, *, backend: str) -> JobResult:
    """Return the result of a generation whose job has been pruned, to which a key still leads.

    Its arguments are those of the enqueue that found it: its own are gone.
    """
    state = landed.settled_as or JobState.CANCELLED
    task = _with_options(task_of(landed.name), backend, queue_name=job.queue)
    result = _of_new(task, job._replace(generation=landed.generation), to_rim(landed.enqueued_at), backend)
    changed = {
        "id": str(landed.job_id),
        "state": state,
        "status": STATUSES[state],
        "cause": "pruned",
        "created": landed.verdict is Verdict.NEW,
        "tags": (),
    }
    for name, value in changed.items():
        object.__setattr__(result, name, value)
    return result


def of_claim(
    claimed: Claimed, task: BackWaveTask, worker: str, *, earlier: Sequence[Attempt] = ()
) -> JobResult:
    """Return the result of a job whose handler runs here; it knows of this attempt and ``earlier`` ones."""
    at = to_rim(claimed.claimed_at)
    backend = backend_for(task, claimed.queue).alias
    return JobResult(
        task=_as_stored(claimed, task, backend),
        id=str(claimed.job_id),
        state=JobState.RUNNING,
        status=STATUSES[JobState.RUNNING],
        enqueued_at=to_rim(claimed.enqueued_at),
        started_at=_first_start(earlier, at),
        finished_at=None,
        last_attempted_at=at,
        backend=backend,
        errors=_errors(earlier),
        worker_ids=[*(attempt.worker for attempt in earlier), worker],
        key=claimed.logical_key,
        generation=claimed.generation,
        schema=claimed.schema,
        **decode_json(claimed.payload),
    )


def of_end(
    claimed: Claimed,
    task: BackWaveTask,
    worker: str,
    *,
    state: JobState,
    started_at: datetime | None,
    finished_at: datetime,
    error: ErrorInfo | None,
    cause: str,
    output: str | None,
    earlier: Sequence[Attempt] = (),
) -> JobResult:
    """Return the result of a job that has ended here; it knows of this attempt and ``earlier`` ones.

    ``output`` is JSON text. A payload that cannot be read is left out: such a job ends in quarantine.
    """
    backend = backend_for(task, claimed.queue).alias
    started = None if started_at is None else to_rim(started_at)
    errors = [TaskError(exception_class_path=error.class_path, traceback=error.traceback)] if error else []
    result = JobResult(
        task=_as_stored(claimed, task, backend),
        id=str(claimed.job_id),
        state=state,
        status=STATUSES[state],
        cause=CANCEL_CAUSE if state is JobState.CANCELLED else cause,
        enqueued_at=to_rim(claimed.enqueued_at),
        started_at=_first_start(earlier, started),
        finished_at=to_rim(finished_at),
        last_attempted_at=started,
        backend=backend,
        errors=[*_errors(earlier), *errors],
        worker_ids=[*(attempt.worker for attempt in earlier), worker],
        key=claimed.logical_key,
        generation=claimed.generation,
        schema=claimed.schema,
        **_arguments(claimed.payload),
    )
    if output is not None:
        object.__setattr__(result, "_return_value", decode_json(output))
    return result


def _arguments(payload: str) -> dict[str, Any]:
    try:
        value = decode_json(payload)
        return {"args": list(value["args"]), "kwargs": dict(value["kwargs"])}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {"args": [], "kwargs": {}}


def _tags(words: Iterable[tuple[str, str]]) -> tuple[Tag, ...]:
    """Return tags as users write them: labels first, then by key and value."""
    return tuple(Word(*word).tag for word in sorted(words))


def of_row(row: Job, backend: BackWaveBackend, *, created: bool = False) -> JobResult:
    """Return the result of a job from its row, with its attempts prefetched in order."""
    attempts = list(row.attempts.all())
    running = row.job_state is JobState.RUNNING
    starts = sorted(at for at in (row.started_at, *(a.started_at for a in attempts)) if at)
    result = JobResult(
        task=_as_stored(row, task_of(row.name), backend.alias),
        id=str(row.pk),
        state=row.job_state,
        status=STATUSES[row.job_state],
        cause=row.cause,
        enqueued_at=row.enqueued_at,
        started_at=starts[0] if starts else None,
        finished_at=row.finished_at,
        last_attempted_at=starts[-1] if starts else None,
        backend=backend.alias,
        errors=_errors(attempts),
        worker_ids=[*(attempt.worker for attempt in attempts), *([row.worker] if running else ())],
        tags=_tags((tag.key, tag.value) for tag in row.tags.all()),
        progress=Progress.read(row.progress),
        key=row.key,
        generation=row.generation,
        schema=row.schema,
        created=created,
        **row.payload,
    )
    object.__setattr__(result, "_return_value", row.output)
    return result


def _first_start(earlier: Sequence[Attempt], this: datetime | None) -> datetime | None:
    return min((at for at in (this, *(attempt.started_at for attempt in earlier)) if at), default=None)


def _errors(attempts: Iterable[Attempt]) -> list[TaskError]:
    return [_error(attempt) for attempt in attempts if attempt.outcome in FAILURES]


def _error(attempt: Attempt) -> TaskError:
    if attempt.outcome == AttemptOutcome.ABANDONED:
        path = f"{AttemptAbandoned.__module__}.{AttemptAbandoned.__qualname__}"
        text = f"{path}: attempt {attempt.number} of {attempt.worker}: its lease lapsed\n"
        return TaskError(exception_class_path=path, traceback=text)
    return TaskError(exception_class_path=attempt.error_class, traceback=attempt.traceback)


def task_of(name: str) -> BackWaveTask:
    """Return the task of a stored name, or a stand-in for one whose function is gone."""
    task = registry.resolve(name)
    if task is None:
        try:
            discovery.discover_once()
        except ImportError:
            logger.warning("action=discover failed; results are read without it", exc_info=True)
        task = registry.resolve(name)
    return task or BackWaveTask.unchecked(func=_stand_in(name), job_name=name)


def _stand_in(name: str) -> Callable[..., Any]:
    def gone(*args: Any, **kwargs: Any) -> None:
        raise LookupError(f"No function here serves the job name {name!r}.")

    gone.__module__, _, gone.__qualname__ = name.rpartition(".")
    gone.__name__ = gone.__qualname__
    return gone


def _as_stored(row: Job | Claimed, task: BackWaveTask, backend: str) -> BackWaveTask:
    """Return the task with the options that the row was enqueued with."""
    # An INSERT may have read the clock once for each column.
    waits = row.attempt == 0 and row.due_at - row.enqueued_at > timedelta(milliseconds=1)
    return _with_options(
        task,
        backend,
        queue_name=row.queue,
        priority=row.priority,
        run_after=row.due_at if waits else None,
        max_attempts=row.max_attempts,
        backoff=Backoff(base=row.backoff_base, cap=row.backoff_cap, jitter=row.backoff_jitter),
        lease=row.lease_seconds,
        timeout=row.timeout_seconds,
        # A claim does not carry it: what has started expires no more.
        expires=getattr(row, "expires_at", None),
    )


def _with_options(task: BackWaveTask, backend: str, **options: Any) -> BackWaveTask:
    """Return the task with options that were checked when they were given."""
    values: dict[str, Any] = {field.name: getattr(task, field.name) for field in fields(task)}
    values["backend"] = task.backend if _leads_to(task, backend) else backend
    return BackWaveTask.unchecked(**values | options)


def _leads_to(task: BackWaveTask, backend: str) -> bool:
    return task.backend == backend or (task.backend == OURS and first_of_ours().alias == backend)
