"""One attempt in the test's own thread: a worker's, but for threads, connections and chance."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_backwave import conf, hooks
from django_backwave.context import StopSwitch
from django_backwave.core.holding import TIMEOUT_GRACE
from django_backwave.core.outcome import timed_out
from django_backwave.core.protocol import Renewal, StopReason
from django_backwave.store import clock as store_clock
from django_backwave.store.heartbeat import renew
from django_backwave.testing import clock
from django_backwave.worker import clock as worker_clock
from django_backwave.worker.execution import Execution
from django_backwave.worker.once import OnceBlock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import datetime

    from django_backwave.core.outcome import Outcome
    from django_backwave.core.protocol import Claimed, Report
    from django_backwave.jobs import BackWaveTask
    from django_backwave.notes import Progress

#: The share of a lease after which it is renewed while the clock is moved.
BEAT_AFTER = 0.5


class _Once(OnceBlock):
    """Writes its marks over the test's own connection: no other one sees the test's rows."""

    def _connection(self) -> AbstractContextManager[str]:
        return nullcontext(self._using)


class Attempt(Execution):
    """An attempt that runs right here.

    While its handler moves the clock it gets the heartbeats that a worker would have sent meanwhile.
    """

    def __init__(self, job: Claimed, worker: str, *, using: str, **told: Any) -> None:
        """Take the job, and what is to be told of its course."""
        # Heartbeats keep the lease; the driver's clock is not asked about it.
        switch = StopSwitch(lease_ends=1.0, clock=lambda: 0.0)
        now = worker_clock.monotonic()
        told |= {"using": using, "completed": lambda: None, "around": hooks.around()}
        super().__init__(job, worker, switch, now, **told)
        self._began_at: datetime | None = None
        self._beats: list[datetime] = []

    def in_virtual_time(self) -> AbstractContextManager[None]:
        """Notice moves of the clock, if there is one."""
        moving = clock.current()
        return nullcontext() if moving is None else moving.watched(self._moved)

    def final(self, report: Report) -> Report:
        """Return what a worker would have reported, once the handler has ended and nothing is open."""
        # A rollback has taken back the renewals that were made in it.
        for at in self._beats:
            self._renew(at)
        timeout = self.job.timeout_seconds
        if report.settled or timeout is None or self._ran_for() < timeout + TIMEOUT_GRACE:
            return report
        self.overdue = report._replace(outcome=timed_out(timeout, still_running=True), tags=(), progress=None)
        return self.overdue

    @property
    def started_after(self) -> float | None:
        """Seconds from the claim to the handler's start: none on a clock that stands still."""
        if self.started_at is None or clock.current() is None:
            return super().started_after
        return 0.0

    def encoded_progress(self, progress: Progress) -> str:
        """Return a progress as JSON text, with the time of now."""
        return progress.encoded(store_clock.read(self.using))

    def _report(self, outcome: Outcome, *, settled: bool = False) -> Report:
        # The longest wait that chance allows: a test that moves the clock by that much has moved it enough.
        return super()._report(outcome, settled=settled)._replace(jitter=0.0)

    def _begin(self) -> None:
        moving = clock.current()
        self._began_at = None if moving is None else moving.tell(self.using)
        super()._begin()

    def _in_transaction(self) -> bool:
        # The driver would tell of the test's own transaction.
        connection = connections[self.using]
        return connection.in_atomic_block or not connection.autocommit

    def _once(self, task: BackWaveTask, name: str) -> OnceBlock:
        return _Once(
            name,
            job=self.job,
            worker=self.worker,
            using=self.using,
            switch=self.switch,
            refuse=lambda: self._refuse_mark(task, name),
        )

    # Virtual time.

    def _moved(self, before: datetime, now: datetime) -> None:
        step = timedelta(seconds=self._lease * BEAT_AFTER)
        while before < now:
            before = min(before + step, now)
            self._beats.append(before)
            self._learn(self._renew(before))

    def _renew(self, at: datetime) -> Renewal:
        key = self.job.key
        held = {key: self._began_at}
        return renew(held, worker=self.worker, lease=self._lease, using=self.using, now=at)[key]

    def _learn(self, renewal: Renewal) -> None:
        if renewal is Renewal.CANCEL_REQUESTED:
            self.tell(StopReason.CANCEL)
        elif renewal is Renewal.LOST:
            self.tell(StopReason.LEASE_LOST)
        timeout = self.job.timeout_seconds
        if timeout is not None and self._ran_for() >= timeout:
            self.tell(StopReason.TIMEOUT)

    def _ran_for(self) -> float:
        moving = clock.current()
        if moving is None or self._began_at is None:
            return 0.0
        return (moving.tell(self.using) - self._began_at).total_seconds()

    @property
    def _lease(self) -> float:
        own = self.job.lease_seconds
        return conf.seconds("LEASE") if own is None else own
