"""A model of keys, generations, windows, the pruner and requeue, in plain Python, against the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_backwave.core.identity import OnConflict
from django_backwave.core.outcome import Failed, Released, Snoozed, Succeeded
from django_backwave.core.protocol import RequeueResult, Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job, Key
from django_backwave.store import keys as store
from django_backwave.store.expire import expire
from django_backwave.store.operate import cancel, requeue
from django_backwave.store.retention import prune
from tests.factories import ERROR, LEASE, NOW, report, send
from tests.store.generations import keyed, take

pytestmark = pytest.mark.django_db

KEEP = 100.0  # seconds until a job that has ended is pruned

KEYS = st.sampled_from(["a", "b"])
WINDOWS = st.sampled_from(["forever", "unfinished", "pending", 30.0, 300.0])
CONFLICTS = st.sampled_from([each.value for each in OnConflict])
CALLS = st.tuples(KEYS, CONFLICTS, WINDOWS)


@dataclass
class Generation:
    """A run. ``begun``: whether an attempt of it may have started; ``ended``: when it did, None before."""

    number: int
    job_id: UUID
    payload: int
    state: JobState = JobState.READY
    begun: bool = False
    ended: datetime | None = None
    pruned: bool = False

    @property
    def is_open(self) -> bool:
        return self.ended is None

    @property
    def is_pending(self) -> bool:
        return self.state is JobState.READY and not self.begun


@dataclass
class Work:
    """What a key names. ``until``: the ends of the windows of those who asked; None among them: never."""

    used: datetime
    enqueued: datetime
    runs: list[Generation] = field(default_factory=list)
    until: list[datetime | None] = field(default_factory=list)

    @property
    def open(self) -> list[Generation]:
        return [run for run in self.runs if run.is_open]

    @property
    def last(self) -> Generation:
        return self.runs[-1]

    @property
    def target(self) -> Generation:
        return self.open[-1] if self.open else self.last

    @property
    def is_gone(self) -> bool:
        return all(run.pruned for run in self.runs)

    def is_over(self, now: datetime) -> bool:
        return None not in self.until and max(each for each in self.until if each) <= now


class Keys(RuleBasedStateMachine):
    """Asks the store and the model the same, and compares the answers and all of the rows."""

    @initialize()
    def begin(self):
        for model in (Attempt, Job, Key):
            model.objects.all().delete()
        self.now = NOW
        self.known: dict[str, Work] = {}
        self.running: dict[UUID, tuple[Generation, Any]] = {}
        self.payloads = 0

    # What is asked.

    @rule(calls=st.lists(CALLS, min_size=1, max_size=4))
    def enqueue(self, calls):
        jobs = [self.job(*call) for call in calls]
        before = {key: (list(work.runs), list(work.until)) for key, work in self.known.items()}
        told = []
        for (key, on_conflict, window), job in zip(calls, jobs, strict=True):
            told.append(self.told(key, on_conflict, window))
            if told[-1][0] not in ("new", "return", "replace"):
                break
            self.write(key, window, told[-1], job)
        landed, refused = self.asked(jobs)
        assert [(end.verdict.value, end.generation) for end in landed] == (told[-1:] if refused else told)
        if refused:
            self.take_back(before)
            return
        for call in calls:
            self.known[call[0]].used = self.now
        for end, job in zip(landed, jobs, strict=True):
            if end.verdict.value == "replace":
                self.generation(end.job_id).payload = int(job.payload)

    def asked(self, jobs):
        """Return what the store says, and whether it refused."""
        try:
            return store.enqueue(jobs, using="default", now=self.now), False
        except store.Refused as error:
            return [error.landed], True

    def job(self, key, on_conflict, window):
        self.payloads += 1
        return keyed(key, on_conflict, window, payload=str(self.payloads))

    def told(self, key, on_conflict, window):
        """Say what an enqueue comes to."""
        work = self.known.get(key)
        if work is None:
            return "new", 1
        last, target = work.last, work.target
        age = (self.now - work.enqueued).total_seconds()
        over = {
            "forever": False,
            "unfinished": not work.open,
            "pending": not last.is_pending,
        }.get(window, window not in ("forever", "unfinished", "pending") and age >= float(window))
        if over:
            return "new", last.number + 1
        if on_conflict == "return":
            return "return", target.number
        if on_conflict == "reject":
            return "duplicate", target.number
        if on_conflict == "new_generation":
            return ("busy", target.number) if work.open else ("new", last.number + 1)
        if target.is_pending:
            return "replace", target.number
        return ("busy" if work.open else "duplicate"), target.number

    def write(self, key, window, told, job):
        verdict, number = told
        if verdict == "new":
            work = self.known.setdefault(key, Work(self.now, self.now))
            work.enqueued = self.now
            work.runs.append(Generation(number, job.id, int(job.payload)))
        work = self.known[key]
        ends = {"forever": None, "unfinished": work.enqueued, "pending": work.enqueued}
        work.until.append(ends[window] if window in ends else work.enqueued + timedelta(seconds=window))

    def take_back(self, before):
        for key in list(self.known):
            if key not in before:
                del self.known[key]
                continue
            runs, until = before[key]
            self.known[key].runs, self.known[key].until = runs, until
            self.known[key].enqueued = Key.objects.get(key=key).enqueued_at  # nothing of it was written

    @rule()
    def claim(self):
        taken = take(now=self.now)
        if taken:
            run = self.generation(taken.job_id)
            assert run.state is JobState.READY
            assert int(taken.payload) == run.payload
            assert taken.generation == run.number
            run.state = JobState.RUNNING
            self.running[run.job_id] = (run, taken)

    @rule(
        outcome=st.sampled_from([Succeeded("null"), Failed(ERROR), Released(), Snoozed(5.0)]),
        begun=st.booleans(),
    )
    def settle(self, outcome, begun):
        if not self.running:
            return
        run, taken = next(iter(self.running.values()))
        begun = begun or not isinstance(outcome, Released)
        [verdict] = send(report(taken, outcome, started_after=1.0 if begun else None), now=self.now)
        if verdict is Verdict.STALE:
            return  # its lease has lapsed, and a sweep is to come
        del self.running[run.job_id]
        run.begun = run.begun or begun
        self.follow(run)

    @rule()
    def lapse(self):
        """The workers fall silent, and their leases are swept."""
        self.now += timedelta(seconds=LEASE)
        expire(jitter=float, using="default", now=self.now)
        for run, _ in self.running.values():
            run.begun = True
            self.follow(run)
        self.running.clear()

    @rule(key=KEYS)
    def cancel(self, key):
        for run in self.runs(key):
            if run.state is JobState.READY:
                cancel([run.job_id], using="default", now=self.now)
                run.state, run.ended = JobState.CANCELLED, self.now
                return

    @rule(key=KEYS, newest_first=st.booleans(), together=st.booleans())
    def requeue(self, key, newest_first, together):
        runs = [run for run in self.runs(key) if not run.is_open and not run.pruned]
        runs = sorted(runs, key=lambda run: run.number, reverse=newest_first)[: None if together else 1]
        if not runs:
            return
        told = requeue([run.job_id for run in runs], using="default", now=self.now)
        self.known[key].used = self.now
        for run in sorted(runs, key=lambda run: -run.number):
            if run.state is JobState.SUCCEEDED:
                assert told[run.job_id] is RequeueResult.NOT_REQUEUEABLE
            elif self.known[key].open:
                assert told[run.job_id] is RequeueResult.KEY_BUSY
            else:
                assert told[run.job_id] is RequeueResult.REQUEUED
                run.state, run.ended = JobState.READY, None

    @rule(seconds=st.sampled_from([1, 30, 101, 301]))
    def tick(self, seconds):
        self.now += timedelta(seconds=seconds)

    @rule()
    def prune(self):
        prune(keep_done=KEEP, keep_dead=KEEP, using="default", now=self.now)
        old = self.now - timedelta(seconds=KEEP)
        for key in self.known:
            for run in self.runs(key):
                run.pruned = run.pruned or (run.ended is not None and run.ended < old)

    @rule()
    def forget(self):
        gone = [key for key, work in self.known.items() if work.is_gone and work.is_over(self.now)]
        assert store.forgettable(using="default", now=self.now) == len(gone)
        assert store.forget(using="default", now=self.now) == len(gone)
        for key in gone:
            del self.known[key]

    @rule(seconds=st.sampled_from([0.0, 200.0]))
    def forget_idle(self, seconds):
        since = self.now - timedelta(seconds=seconds)
        gone = [
            key
            for key, work in self.known.items()
            if work.is_gone and (None in work.until or work.is_over(self.now)) and work.used <= since
        ]
        assert store.forget_idle(seconds, using="default", now=self.now) == len(gone)
        for key in gone:
            del self.known[key]

    # What is compared.

    @invariant()
    def the_rows_are_those_of_the_model(self):
        runs = [run for key in self.known for run in self.runs(key) if not run.pruned]
        expected = {run.job_id: (run.number, run.state) for run in runs}
        rows = Job.objects.values_list("pk", "generation", "state")
        assert {pk: (number, JobState(state)) for pk, number, state in rows} == expected
        remembered = {key.key: key for key in Key.objects.all()}
        assert remembered.keys() == self.known.keys()
        for name, work in self.known.items():
            row, last = remembered[name], work.last
            assert (row.generation, row.job_id, row.enqueued_at) == (last.number, last.job_id, work.enqueued)
            assert row.used_at == work.used
            assert row.forget_at == (None if None in work.until else max(each for each in work.until if each))
            assert row.settled_as == (last.state if last.pruned else None)

    def runs(self, key: str) -> list[Generation]:
        return self.known[key].runs if key in self.known else []

    def generation(self, job_id: UUID) -> Generation:
        return next(run for key in self.known for run in self.runs(key) if run.job_id == job_id)

    def follow(self, run: Generation) -> None:
        """Take over how an attempt's end left the job: that is another model's business."""
        row = Job.objects.get(pk=run.job_id)
        run.state, run.ended = row.job_state, row.finished_at


def test_the_store_follows_the_model():
    """Whatever is asked in whatever order: answers, jobs and keys are those of the model."""
    bounds = settings(
        max_examples=25,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
    )
    run_state_machine_as_test(Keys, settings=bounds)
