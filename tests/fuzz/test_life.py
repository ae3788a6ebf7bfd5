"""One job's life through the real doors, in any order: each step is a legal move, and the row stays whole."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from django_backwave.core.outcome import (
    Cancelled,
    Failed,
    InDoubt,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
    Unroutable,
)
from django_backwave.core.protocol import Claimed, Verdict
from django_backwave.core.states import FAILURES, MOVES, JobState
from django_backwave.models import Action, Attempt, Job
from django_backwave.store import adjust, operate
from django_backwave.store.claim import claim
from django_backwave.store.expire import expire, expire_dead, expire_waiting
from django_backwave.store.heartbeat import renew
from tests.factories import ERROR, LEASE, NOW, STRANGER, WORKER, contents, ready, report, send
from tests.fuzz.cases import bounds

outcomes = st.sampled_from(
    [
        Succeeded("null"),
        Succeeded('{"a":[1]}'),
        Failed(ERROR),
        Failed(ERROR, final=True),
        TimedOut(ERROR),
        InDoubt(ERROR),
        Released(),
        Released(3.0),
        Snoozed(30.0),
        Cancelled(),
        Unroutable("no handler"),
    ]
)
workers = st.sampled_from([WORKER, STRANGER])


class Life(RuleBasedStateMachine):
    """Moves one job, and a clock; remembers every attempt that was ever handed out."""

    @initialize(tries=st.integers(1, 4), expires=st.none() | st.floats(1, 300))
    def enqueue(self, tries, expires):
        for model in (Action, Attempt, Job):
            model.objects.all().delete()
        self.now = NOW
        self.job = ready(max_attempts=tries, expires=expires)
        self.given: list[tuple[str, Claimed]] = []
        self.before = self.job

    @rule(seconds=st.sampled_from([0.001, 1.0, 30.0, LEASE - 0.001, LEASE, 600.0, 4000.0]))
    def time_passes(self, seconds):
        self.now += timedelta(seconds=seconds)

    @rule(worker=workers)
    def somebody_claims(self, worker):
        jobs = claim("default", 5, worker=worker, lease=LEASE, using="default", now=self.now)
        for job in jobs:
            assert job.attempt == self.before.attempt + 1
        self.given += [(worker, job) for job in jobs]

    @rule(outcome=outcomes, which=st.integers(0, 20))
    def an_attempt_reports(self, outcome, which):
        """Any that there ever was: all but the live one are stale, and change no byte."""
        if not self.given:
            return
        worker, job = self.given[which % len(self.given)]
        row, before = self.row(), contents()
        live = (row.state, row.worker, row.attempt) == (JobState.RUNNING.value, worker, job.attempt)
        live = live and row.lease_expires_at > self.now
        [verdict] = send(report(job, outcome), worker=worker, now=self.now)
        if live:
            cancelled = row.cancel_requested_at is not None and not isinstance(outcome, Succeeded)
            assert verdict is (Verdict.CANCELLED if cancelled else Verdict.APPLIED) or isinstance(
                outcome, Cancelled | InDoubt
            )
        else:
            assert verdict in (Verdict.STALE, Verdict.LANDED)
            assert contents() == before

    @rule(which=st.integers(0, 20))
    def an_attempt_beats(self, which):
        if self.given:
            worker, job = self.given[which % len(self.given)]
            renew({job.key: None}, worker=worker, lease=LEASE, using="default", now=self.now)

    @rule()
    def sweep(self):
        expire(jitter=lambda: 0.5, using="default", now=self.now)
        expire_waiting(using="default", now=self.now)

    @rule(worker=workers, ordered=st.booleans())
    def a_process_is_gone(self, worker, ordered):
        expire_dead(worker, ordered=ordered, jitter=lambda: 0.5, using="default", now=self.now)

    @rule()
    def cancel(self):
        operate.cancel([self.job.pk], actor="ann", using="default", now=self.now)

    @rule(reset=st.booleans())
    def requeue(self, reset):
        operate.requeue([self.job.pk], reset_failures=reset, actor="ann", using="default", now=self.now)

    @rule(seconds=st.sampled_from([-60.0, 60.0]))
    def reschedule(self, seconds):
        due = self.now + timedelta(seconds=seconds)
        adjust.reschedule([self.job.pk], due, actor="ann", using="default", now=self.now)

    @rule(priority=st.integers(-100, 100))
    def change(self, priority):
        options = {"priority": priority, "queue": None, "actor": "ann"}
        adjust.change([self.job.pk], using="default", now=self.now, **options)

    @invariant()
    def the_move_was_legal(self):
        row = self.row()
        if row is None:
            return
        was, now = self.before.job_state, row.job_state
        # A requeue of what has just been abandoned takes one step, as everything here does.
        assert now is was or now in MOVES[was], f"{was.label} to {now.label}"
        assert self.before.attempt <= row.attempt <= self.before.attempt + 1
        assert (row.lease_expires_at is not None) is (now is JobState.RUNNING)
        assert bool(row.worker) is (now is JobState.RUNNING)
        assert (row.finished_at is not None) is now.is_terminal
        self.before = row

    @invariant()
    def the_history_fits(self):
        row = self.row()
        if row is None:
            return
        history = list(Attempt.objects.filter(job_id=row.pk).order_by("number"))
        numbers = [attempt.number for attempt in history]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[-1] <= row.attempt
        succeeded = [attempt.number for attempt in history if attempt.outcome == "succeeded"]
        assert succeeded == ([row.attempt] if row.job_state is JobState.SUCCEEDED else [])
        assert row.failures <= sum(attempt.outcome in FAILURES for attempt in history)

    def row(self):
        return Job.objects.filter(pk=self.job.pk).first() if hasattr(self, "job") else None


@pytest.mark.django_db
def test_any_order_of_steps_is_a_life():
    run_state_machine_as_test(Life, settings=bounds(0.03, stateful_step_count=30))
