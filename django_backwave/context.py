"""What a running handler knows of its attempt, and the switch by which its worker reaches it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Protocol

from django_backwave.compat import AnyContext
from django_backwave.core.protocol import StopReason
from django_backwave.exceptions import Stopped
from django_backwave.notes import Notes, Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from uuid import UUID

    from django_backwave.core.protocol import Claimed
    from django_backwave.jobs import BackWaveTask
    from django_backwave.results import JobResult

    class OnceBlock(AbstractContextManager["Once"], AbstractAsyncContextManager["Once"], Protocol):
        """What ``context.once(name)`` gives, for both kinds of handlers."""

    type AtomicBlock = Callable[[], AbstractContextManager[Completion]]

#: The most important reason first.
_REASONS = (StopReason.LEASE_LOST, StopReason.CANCEL, StopReason.TIMEOUT, StopReason.SHUTDOWN)


class StopSwitch:
    """Carries "stop" from the worker to a handler in another thread.

    The lease counts as lost once the worker says so, and also while its end on the monotonic
    ``clock`` has passed: a worker that cannot reach the database has nobody to tell it (G9, G10).
    """

    __slots__ = ("_clock", "_lease_ends", "_told")

    def __init__(self, *, lease_ends: float, clock: Callable[[], float]) -> None:
        """Begin with no reason to stop and a lease that ends then, by the clock."""
        self._lease_ends = lease_ends
        self._clock = clock
        self._told: set[StopReason] = set()

    def tell(self, reason: StopReason) -> bool:
        """Give a reason to stop; it stays, and others may join it. Return whether it is a new one."""
        new = reason not in self._told
        self._told.add(reason)
        return new

    def extend(self, lease_ends: float) -> None:
        """Move the lease's end: the database has renewed it, also if it had passed by the clock.

        A lease that the worker told to be lost stays lost.
        """
        self._lease_ends = lease_ends

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is lost now."""
        return StopReason.LEASE_LOST in self._told or self._clock() >= self._lease_ends

    @property
    def cancel_requested(self) -> bool:
        """Whether the worker told of a cancel request."""
        return StopReason.CANCEL in self._told

    @property
    def reason(self) -> StopReason | None:
        """Why to stop, None: go on.

        A lost lease comes first, for then nothing is recorded. A cancel goes before a time-out, for it ends
        the job and not only the attempt. A time-out goes before a shutdown: the handler had its time anyway.
        """
        if self.lease_lost:
            return StopReason.LEASE_LOST
        if not self._told:
            return None
        return next((reason for reason in _REASONS if reason in self._told), None)


class Completion:
    """What ``context.atomic()`` gives: set ``output`` to a JSON value for the job's output."""

    def __init__(self) -> None:
        """Begin with None, the output of a handler that returns nothing."""
        self.output: Any = None


class Once:
    """What ``context.once(name)`` gives.

    ``first``: no earlier attempt has begun this effect. ``done``: an earlier one has ended it; if neither
    holds, one began it and nobody knows how far it came. ``result``: what the attempt that ended it left
    here; set it to a JSON value for the attempts to come.
    """

    def __init__(self, *, first: bool, done: bool, result: Any) -> None:
        """Take what the mark says."""
        self.first = first
        self.done = done
        self.result = result


class JobContext(AnyContext):
    """What ``takes_context`` handlers get as their first argument."""

    __slots__ = (
        "_atomic",
        "_claimed",
        "_headers",
        "_notes",
        "_once",
        "_result",
        "_switch",
        "_task",
        "_worker",
    )

    _claimed: Claimed
    _task: BackWaveTask
    _worker: str
    _switch: StopSwitch
    _result: JobResult | None
    _headers: dict[str, Any] | None
    _notes: Notes
    _atomic: AtomicBlock
    _once: Callable[[str], OnceBlock]

    def __init__(
        self,
        *,
        claimed: Claimed,
        task: BackWaveTask,
        worker: str,
        switch: StopSwitch,
        atomic: AtomicBlock,
        once: Callable[[str], OnceBlock],
        notes: Notes | None = None,
    ) -> None:
        """Take what the worker knows; the result is built when somebody asks for it."""
        values = (atomic, claimed, None, notes or Notes(), once, None, switch, task, worker)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)  # its base is a frozen dataclass

    def __repr__(self) -> str:
        """Name the attempt, as logs do."""
        return f"<JobContext {self._claimed.name} {self.job_id} #{self.attempt}>"

    @property
    def task_result(self) -> JobResult:  # type: ignore[override] # read-only in Django, too
        """The job's result as it stood when this attempt began; ``refresh()`` reads the row."""
        if self._result is None:
            from django_backwave import results

            result = results.of_claim(self._claimed, self._task, self._worker)
            object.__setattr__(self, "_result", result)
            return result
        return self._result

    @property
    def job_id(self) -> UUID:
        """The job's id: the same for its whole life."""
        return self._claimed.job_id

    @property
    def attempt(self) -> int:
        """The number of this attempt. It rises with every claim, and may skip."""
        return self._claimed.attempt

    @property
    def failures(self) -> int:
        """How many attempts have failed before this one; ``max_attempts`` counts these."""
        return self._claimed.failures

    def idempotency_key(self, name: str = "") -> str:
        """Return a key for an outside effect: the same in every attempt of this job.

        Requeues keep it, too. A job with several effects gives each its own ``name``. At most 64
        characters: letters, digits and hyphens.
        """
        key = str(self.job_id)
        if not name:
            return key
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{key}-{digest[:27]}"

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody has asked to cancel this job."""
        return self._switch.cancel_requested

    @property
    def lease_lost(self) -> bool:
        """Whether this attempt has lost its lease: nothing that it reports will be recorded."""
        return self._switch.lease_lost

    def atomic(self) -> AbstractContextManager[Completion]:
        """Return a block whose writes in the jobs' database and the job's success are one transaction (G7).

        ``with context.atomic() as done:`` completes the job; ``done.output`` is its output, None unless set.
        A lost lease, or an exception that leaves the block, rolls everything back. What the handler does
        after the block is no longer covered by the lease, and changes nothing of the job. Once a job only;
        not within a transaction on the jobs' database, and not in a job that is atomic as a whole.
        """
        return self._atomic()

    def once(self, name: str) -> OnceBlock:
        """Return a block around one effect outside the database, with a durable mark of it under this name.

        ``with context.once("charge") as once:`` marks the effect as begun, and as done when the block ends
        cleanly; ``once.first``, ``once.done`` and ``once.result`` say what earlier attempts have marked. A
        lost lease raises Stopped. Async handlers write ``async with``. Raises NotOnce within a transaction
        on the jobs' database, and in a job that is atomic as a whole.
        """
        return self._once(name)

    @property
    def headers(self) -> dict[str, Any]:
        """What the enqueuing process sent along, by the hooks in ``BACKWAVE["ON_ENQUEUE"]``."""
        if self._headers is None:
            from django_backwave.core.jsontext import decode_json

            headers = decode_json(self._claimed.headers) if self._claimed.headers else {}
            object.__setattr__(self, "_headers", headers)
            return headers
        return self._headers

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far this attempt has come: ``done`` of ``total``, or of nobody knows how much.

        It is kept in memory and written with the next heartbeat, at most once a second, under the fence: the
        newest one wins, and no call waits. ``message`` has at most 200 characters. Raises TypeError or
        ValueError for what is no progress.
        """
        self._notes.say(Progress.checked(done, total, message))

    def tag(self, key: str, value: str | None = None) -> None:
        """Tag this job, ``tag("customer", "7")``, or label it, ``tag("vip")``, to find it by.

        Written together with this attempt's outcome, whatever that is, and dropped with it if it is stale.
        At most 50 an attempt. Raises TypeError or ValueError for what is no tag.
        """
        self._notes.tag(key, value)

    def raise_if_stopped(self) -> None:
        """Raise Stopped if this handler should stop: lease lost, cancel, time-out, or shutdown."""
        reason = self._switch.reason
        if reason is not None:
            raise Stopped(reason)
