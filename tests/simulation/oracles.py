"""What must hold: after each commit, between what the database holds now and what it held before; at the end.

Each oracle has a name; ``ORACLES`` says what it watches over. An expectation is written down here from the
guarantees, and shares no code with the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_backwave.core.outcome import EXPIRED_CAUSE, Failed, Succeeded, Unroutable
from django_backwave.core.protocol import AttemptKey, Verdict
from django_backwave.core.states import FAILURES, MOVES, TERMINAL, AttemptOutcome, JobState
from tests.simulation.database import EMPTY, Dump, Ended, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_backwave.core.outcome import Outcome
    from django_backwave.core.protocol import Report
    from tests.simulation.world import Call, World

ORACLES = {
    "one-live-lease": "a live lease is ended by its holder alone, and renewed by nobody else (G3)",
    "belief": "no two workers run a job while each believes that its lease is live (G3, G10)",
    "legal-moves": "every change of state is in the one table of moves, and made by who may make it",
    "terminal": "nothing changes a job that has ended, but for a requeue and the pruning (G8)",
    "attempts": "the number rises by one with each claim, and never falls (G6)",
    "one-outcome": "each attempt ends once, with one row in the history, which nobody changes (G5)",
    "provenance": "what is written as an outcome was reported by who held the live lease (G4)",
    "stale": "a stale report changes no byte of the database (G4)",
    "verdict": "what a worker is told of its report is what came of it",
    "failures": "failures rise by one with each attempt that counts, and dead-letter at the bound (G6)",
    "cancel": "cancelled means asked for, or too late; and what was asked for never runs again (G8)",
    "ledger": "the ledger has one row for each atomic job that succeeded, and no other (G7)",
    "lost": "every job that was accepted is there, and none that was rolled back (G1, G2)",
    "pause": "nothing is claimed of what a worker knows to be paused",
    "error": "no store call fails but for a fault of ours",
    "runaway": "a worker rests when there is nothing to do",
    "exit": "a worker that is told to stop ends in time (G11)",
    "liveness": "once faults have stopped every job ends, and no lease is left (G2)",
}

READY, RUNNING, CANCELLED = JobState.READY.value, JobState.RUNNING.value, JobState.CANCELLED.value
SUCCEEDED, DEAD, QUARANTINED = (
    JobState.SUCCEEDED.value,
    JobState.DEAD_LETTERED.value,
    JobState.QUARANTINED.value,
)
ENDS = frozenset(state.value for state in TERMINAL)
CLAIMS = frozenset({"claim", "settle+claim"})
SETTLES = frozenset({"settle", "settle+claim"})
REPORTS = SETTLES | {"complete"}
SWEEPS = frozenset({"sweep", "dead"})


@dataclass(frozen=True, slots=True)
class Violation:
    """What an oracle has found."""

    oracle: str
    text: str


class Oracles:
    """Watches a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dump: Dump = EMPTY
        self.accepted: set[str] = set()
        self.pruned: set[str] = set()
        self.rolled_back: set[str] = set()
        self.reported: dict[
            tuple[str, int, str], list[Outcome]
        ] = {}  # (job, attempt, worker) → what was sent
        self.ends: dict[tuple[str, int], tuple[str, str]] = {}  # (job, attempt) → who ended it: kind and name
        self.dead: set[str] = set()  # names of workers whose process is gone

    def says(self, oracle: str, text: str) -> None:
        """Note a violation."""
        assert oracle in ORACLES
        self.world.violates(oracle, text)

    # What workers tell, so that it can be compared.

    def sends(self, reports: Sequence[Report], worker: str) -> None:
        """Take note of what a worker reports."""
        for report in reports:
            key = report.job.key
            self.reported.setdefault((key.job_id.hex, key.attempt, worker), []).append(report.outcome)

    def _told_verdicts(self, call: Call, verdicts: Mapping[AttemptKey, Verdict]) -> None:
        """Compare verdicts with what came of the reports."""
        # A worker may tell of two attempts of one job at once, and only the later one counts.
        written = {
            key.job_id for key, told in verdicts.items() if told not in (Verdict.STALE, Verdict.LOCKED)
        }
        for report in call.reports:
            key = report.job.key
            job, verdict = key.job_id.hex, verdicts[key]
            self.world.saw(f"verdict: {verdict.value}")
            end = self.ends.get((job, key.attempt))
            by_me = end is not None and end[1] == call.owner.name and end[0] in REPORTS
            if verdict in (Verdict.APPLIED, Verdict.CANCELLED, Verdict.LANDED) and not by_me:
                self.says("verdict", f"{_name(key)} is {verdict.value}, but was ended by {end}")
            settled = (
                by_me and end is not None and end[0] in SETTLES
            )  # a time-out may lose to its own success
            if verdict is Verdict.STALE and settled and report.started_after is not None:
                self.says("verdict", f"{_name(key)} is stale, but its report was applied")
            if verdict is Verdict.STALE and job in call.ended and key.job_id not in written:
                self.says("stale", f"{_name(key)} is stale, but its report has changed the row")

    # After each commit.

    def look(self, call: Call) -> None:
        """Compare what is committed now with what was before this call's commit."""
        new, old = self.world.database.dump(), self.dump
        self.dump = new
        for job in sorted({*old.jobs, *new.jobs}):
            before, after = old.jobs.get(job), new.jobs.get(job)
            if before is not after and before != after:
                self._row(call, job, before, after)
        self._history(call, old, new)
        self._hangs_on(call, old, new)

    def _row(  # noqa: C901 - a flat table of what a row may do
        self, call: Call, job: str, old: Row | None, new: Row | None
    ) -> None:
        if old is None or new is None:
            self._comes_or_goes(call, job, old, new)
            return
        if old.state != new.state:
            self._edge(call, job, old, new)
        self._number(job, old, new)
        if old.state in ENDS:
            if not (call.kind == "requeue" and new.state == READY):
                self.says("terminal", f"{call.kind} has changed {self._told(job, old)}")
        elif old.state == RUNNING:
            same = new.state == RUNNING and (old.worker, old.attempt) == (new.worker, new.attempt)
            (self._kept if same else self._ended)(call, job, old, new)
        elif new.state == RUNNING:
            self._claimed(call, job, old, new)
        elif new.state == CANCELLED:
            self._cancelled_waiting(call, job, old, new)
        if new.failures != old.failures and old.state == READY:
            self.says("failures", f"{call.kind} has changed the failures of {self._told(job, old)}")
        if new.cancel != old.cancel and call.kind != ("cancel" if new.cancel else "requeue"):
            self.says("cancel", f"{call.kind} has changed the cancel request of {self._told(job, old)}")

    def _comes_or_goes(self, call: Call, job: str, old: Row | None, new: Row | None) -> None:
        if new is None:
            self.pruned.add(job)
            if call.kind != "prune" or (old is not None and old.state not in ENDS):
                self.says("lost", f"{call.kind} has deleted {job[:8]}")
        elif call.kind != "enqueue" or (new.state, new.attempt, new.failures) != (READY, 0, 0):
            self.says("legal-moves", f"{call.kind} has made {self._told(job, new)}")

    def _edge(self, call: Call, job: str, old: Row, new: Row) -> None:
        edge = (old.state, new.state)
        self.world.edges[edge] = self.world.edges.get(edge, 0) + 1
        self.world.note(f"{call.owner.name} {call.kind}: {self._told(job, old)} → {self._told(job, new)}")
        legal = JobState(new.state) in MOVES[JobState(old.state)]
        if not legal or (new.state == RUNNING and call.kind not in CLAIMS):
            self.says("legal-moves", f"{call.kind}: {self._told(job, old)} → {self._told(job, new)}")

    def _number(self, job: str, old: Row, new: Row) -> None:
        rises = old.state != RUNNING and new.state == RUNNING
        if new.attempt != old.attempt + rises:
            self.says("attempts", f"{self._told(job, old)} → {self._told(job, new)}")

    def _claimed(self, call: Call, job: str, old: Row, new: Row) -> None:
        now = self.world.clock.micros
        call.claimed.add(job)
        if old.cancel:
            self.says("cancel", f"{self._told(job, old)} runs again, though its cancel was requested")
        if new.worker != call.owner.name or (new.lease or 0) <= now:
            self.says("one-live-lease", f"{call.owner.name} has claimed {self._told(job, new)}")
        if old.expires is not None and old.expires <= now:
            self.says("cancel", f"{self._told(job, old)} was claimed after its time to start was over")
        if {old.queue, old.name} & call.paused:
            self.says("pause", f"{call.owner.name} has claimed {self._told(job, old)}, which is paused")

    def _cancelled_waiting(self, call: Call, job: str, old: Row, new: Row) -> None:
        late = old.expires is not None and old.expires <= self.world.clock.micros
        if call.kind in CLAIMS | {"sweep"} and late and new.cause == EXPIRED_CAUSE:
            self.world.saw(f"too late to start: found by a {'sweep' if call.kind == 'sweep' else 'claim'}")
        elif call.kind == "cancel" and new.cancel:
            self.world.saw("cancelled before it ran")
        else:
            self.says("cancel", f"{call.kind} has cancelled {self._told(job, old)}: nobody had asked")

    def _kept(self, call: Call, job: str, old: Row, new: Row) -> None:
        """Look at a job that runs on: its holder may renew a live lease, an operator may ask for a stop."""
        if new.lease != old.lease:
            mine = call.kind == "renew" and call.owner.name == old.worker
            if not mine or (old.lease or 0) <= _evaluated(call, self.world.clock.micros):
                self.says("one-live-lease", f"{call.owner.name} has renewed {self._told(job, old)}")
        if new.failures != old.failures:
            self.says("failures", f"{call.kind} has changed the failures of {self._told(job, old)}")

    def _ended(self, call: Call, job: str, old: Row, new: Row) -> None:
        """Look at an attempt that has ended."""
        call.ended.add(job)
        if (job, old.attempt) in self.ends:
            self.says("one-outcome", f"{self._told(job, old)} was ended before")
        self.ends[job, old.attempt] = (call.kind, call.owner.name)
        live = (old.lease or 0) > _evaluated(call, self.world.clock.micros, last=call.kind == "sweep")
        if call.kind in REPORTS | {"release"}:
            self._ended_by_holder(call, job, old, new, live=live)
        elif call.kind == "sweep":
            self.world.saw("lease swept")
            if live:
                self.says(
                    "one-live-lease", f"the sweep has ended {self._told(job, old)}, whose lease is live"
                )
        elif call.kind == "dead":
            self.world.saw("lease of a dead worker disposed of")
            if old.worker not in self.dead:
                self.says("one-live-lease", f"{self._told(job, old)} was disposed of, but its worker lives")
        else:
            self.says("one-live-lease", f"{call.kind} has ended {self._told(job, old)}")
        self._end_state(call, job, old, new)

    def _ended_by_holder(self, call: Call, job: str, old: Row, new: Row, *, live: bool) -> None:
        mine = call.owner.name == old.worker and live
        if call.kind in REPORTS:
            mine = mine and call.attempts.get(job) == old.attempt
        if not mine:
            self.says(
                "provenance",
                f"{call.owner.name} {call.kind} has ended {self._told(job, old)}"
                f" (live: {live}, reported: #{call.attempts.get(job)})",
            )
        sent = self.reported.get((job, old.attempt, call.owner.name), [])
        if new.state == SUCCEEDED and not any(isinstance(outcome, Succeeded) for outcome in sent):
            self.says("provenance", f"{self._told(job, new)} succeeded, but {sent} were reported")
        if new.state == QUARANTINED and not any(isinstance(outcome, Unroutable) for outcome in sent):
            self.says("provenance", f"{self._told(job, new)} is quarantined, but {sent} were reported")
        if new.state == SUCCEEDED and old.cancel:
            self.world.saw("success came before the cancel")
        if call.kind == "release":
            self.world.saw("unknown claim released")

    def _end_state(self, call: Call, job: str, old: Row, new: Row) -> None:
        if old.cancel and new.state not in (SUCCEEDED, CANCELLED):
            self.says(
                "cancel", f"{call.kind}: {self._told(job, old)} goes on, though its cancel was requested"
            )
        if new.state == CANCELLED:
            self.world.saw(f"cancel took effect: {call.kind}")
            if not old.cancel:
                self.says("cancel", f"{call.kind} has cancelled {self._told(job, old)}: nobody had asked")
        rise = new.failures - old.failures
        if rise not in (0, 1) or (call.kind == "release" and rise):
            self.says("failures", f"{call.kind}: {self._told(job, old)} → {self._told(job, new)}")
        sent = self.reported.get((job, old.attempt, call.owner.name), [])
        final = any(isinstance(outcome, Failed) and outcome.final for outcome in sent)
        used_up = new.failures >= old.max_attempts and rise
        if not old.cancel and (new.state == DEAD) is not bool(used_up or (final and call.kind in REPORTS)):
            self.says("failures", f"{call.kind}: {self._told(job, old)} → {self._told(job, new)}")

    def _history(self, call: Call, old: Dump, new: Dump) -> None:
        for place in sorted(old.attempts.keys() | new.attempts.keys()):
            before, after = old.attempts.get(place), new.attempts.get(place)
            if before == after:
                continue
            job, number = place
            if before is not None:
                if after is not None or job in new.jobs:
                    self.says("one-outcome", f"{call.kind} has rewritten the history of {job[:8]} #{number}")
                continue
            assert after is not None
            was = old.jobs.get(job)
            if job not in call.ended or was is None or (was.attempt, was.worker) != (number, after.worker):
                oracle = "stale" if call.kind in REPORTS else "one-outcome"
                self.says(
                    oracle, f"{call.kind} has written {job[:8]} #{number} {after.outcome}: it had not ended"
                )
                continue
            self._counts(call, job, was, new.jobs[job], after.outcome)
        for job in sorted(call.ended):
            was, now = old.jobs.get(job), new.jobs.get(job)
            if was is not None and now is not None and (job, was.attempt) not in new.attempts:
                self._without_history(job, was, now)

    def _without_history(self, job: str, was: Row, now: Row) -> None:
        if was.state != RUNNING or now.state == RUNNING:
            return
        if now.failures != was.failures:
            self.says("failures", f"{job[:8]} #{was.attempt} counts as a failure, and has no history")
        if now.state in ENDS - {CANCELLED, QUARANTINED}:
            self.says("one-outcome", f"{job[:8]} #{was.attempt} has ended it, and has no history")

    def _counts(self, call: Call, job: str, old: Row, new: Row, outcome: str) -> None:
        kind = AttemptOutcome(outcome)
        rise = new.failures - old.failures
        counts = kind in FAILURES
        if kind is not AttemptOutcome.CANCELLED and rise != counts:
            self.says("failures", f"{call.kind}: {outcome} of {self._told(job, old)} counts {rise}")
        if (kind is AttemptOutcome.ABANDONED) and call.kind not in SWEEPS:
            self.says("one-outcome", f"{call.kind} has written {outcome} for {self._told(job, old)}")
        if (kind is AttemptOutcome.SUCCEEDED) is not (new.state == SUCCEEDED):
            self.says("one-outcome", f"{outcome} is the history of {self._told(job, new)}")
        self.world.saw(f"outcome: {outcome}")

    def _hangs_on(self, call: Call, old: Dump, new: Dump) -> None:
        for job, key, value in sorted(new.tags - old.tags):
            if not (job in call.ended and call.kind in REPORTS):
                self.says("stale", f"{call.kind} has tagged {job[:8]} with {key}={value}")
        for job, attempt in sorted(new.ledger ^ old.ledger):
            row = new.jobs.get(job)
            fits = row is not None and (row.state, row.attempt) == (SUCCEEDED, attempt)
            if (job, attempt) not in new.ledger or not fits or job not in call.ended:
                self.says(
                    "ledger", f"{call.kind}: {job[:8]} #{attempt} is in the ledger, and has not succeeded"
                )
        for job in sorted(call.ended):
            row, spec = new.jobs.get(job), self.world.by_id[job]
            if spec.atomic and row is not None and row.state == SUCCEEDED:
                if (job, row.attempt) not in new.ledger:
                    self.says("ledger", f"{job[:8]} #{row.attempt} has succeeded, and is not in the ledger")
                self.world.saw(f"atomic job completed: {spec.kind}")

    # After each call, and at the end.

    def ended(self, call: Call, ended: Ended) -> None:
        """Take note of what a call has come to."""
        error = "" if ended.error is None else f" {type(ended.error).__name__}"
        if call.kind not in ("scan", "pauses") or error:
            self.world.note(f"{call.owner.name} {call.kind} over{error}")
        if call.kind in SETTLES and ended.error is None and not call.given_up:  # else nobody hears of them
            self._told_verdicts(call, ended.value if call.kind == "settle" else ended.value[0])

    def finish(self, *, live: bool) -> None:
        """Look at what is left. ``live``: somebody was there to do all the work."""
        dump = self.dump = self.world.database.dump()
        for job in sorted(self.accepted):
            if job not in dump.jobs and job not in self.pruned:
                self.says("lost", f"{job[:8]} was accepted, and is not there")
        for job in sorted(self.rolled_back & dump.jobs.keys()):
            self.says("lost", f"{job[:8]} was rolled back, and is there")
        succeeded = {
            (job, row.attempt)
            for job, row in dump.jobs.items()
            if row.state == SUCCEEDED and self.world.by_id[job].atomic
        }
        if succeeded != {place for place in dump.ledger if place[0] in dump.jobs}:
            self.says("ledger", f"{sorted(succeeded ^ dump.ledger)} differ between jobs and ledger")
        for job, row in sorted(dump.jobs.items()) if live else ():
            if row.state not in ENDS:
                self.says("liveness", f"{self._told(job, row)} has not ended")

    def all_ended(self) -> bool:
        """Whether every job is in a terminal state."""
        return all(row.state in ENDS for row in self.dump.jobs.values())

    def _told(self, job: str, row: Row) -> str:
        spec = self.world.by_id.get(job)
        number = "?" if spec is None else spec.number
        text = f"job {number} {JobState(row.state).label} #{row.attempt} f{row.failures}"
        return (
            text + (f" of {row.worker}" if row.worker else "") + (" (cancel requested)" if row.cancel else "")
        )


def _name(key: AttemptKey) -> str:
    return f"{key.job_id.hex[:8]} #{key.attempt}"


def _evaluated(call: Call, now: int, *, last: bool = False) -> int:
    """Return when a call's guard was evaluated, as far as is sure: its row stays locked until the commit."""
    at = call.wrote_last if last else call.wrote_first
    return now if at is None else at
