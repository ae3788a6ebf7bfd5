"""The checker: what must not be, whatever was killed and when. Pure: evidence in, complaints out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from uuid import UUID

from django_backwave.core.outcome import CANCEL_CAUSE, EXPIRED_CAUSE
from django_backwave.core.protocol import CancelResult, RequeueResult
from tests.chaos.evidence import ActionRow, AttemptRow, Effect, Evidence, JobRow, by_job

#: Jobs whose success is one transaction with a line in the ledger.
ATOMIC = {"ledger", "ledger-block"}

#: Jobs that give up by themselves, whatever is left of their tries.
HOPELESS = {"hopeless"}

TERMINAL = {"succeeded", "cancelled", "dead-lettered", "quarantined"}
FAILURES = {"failed", "timed_out", "abandoned"}

#: The most megabytes that a process of a worker may use. These handlers keep nothing.
MEMORY = 250


def check(evidence: Evidence) -> list[str]:
    """Return a sentence for each thing that must not be; none is what everybody hopes for."""
    return [
        *enqueues(evidence),
        *histories(evidence),
        *effects(evidence),
        *ledger(evidence),
        *cancels(evidence),
        *workers(evidence),
    ]


def enqueues(evidence: Evidence) -> Iterator[str]:
    """G1: a job exists if and only if the transaction of its enqueue has committed."""
    rows = Counter(job.id for job in evidence.jobs)
    told: set[UUID] = set()
    for transaction in evidence.transactions:
        ids = [job.id for job in transaction.jobs]
        told |= set(ids)
        there = [job_id for job_id in ids if rows[job_id]]
        what = f"{transaction.client} transaction {transaction.number}"
        if transaction.outcome == "committed" and len(there) < len(ids):
            lost = sorted(set(ids) - set(there))
            yield f"{what} was committed, and its job {lost[0]} is missing ({len(lost)} of {len(ids)})"
        elif transaction.outcome == "rolled back" and there:
            yield f"{what} was rolled back, and its job {there[0]} exists"
        elif transaction.outcome == "unknown" and 0 < len(there) < len(ids):
            yield f"{what} is half there: {len(there)} of {len(ids)} jobs exist"
    for job_id in rows:
        if job_id not in told:
            yield f"job {job_id} exists, and no client tells of it"


def histories(evidence: Evidence) -> Iterator[str]:
    """G2, G5, G6: every job has ended, and its history explains how."""
    attempts, actions = by_job(evidence.attempts), by_job(evidence.actions)
    known = {job.id for job in evidence.jobs}
    for job in evidence.jobs:
        requeued = any(action.verb == "requeue" for action in actions.get(job.id, ()))
        yield from _ended(job)
        yield from _history(job, attempts.get(job.id, []), requeued=requeued)
    for job_id in attempts:
        if job_id not in known:
            yield f"job {job_id} does not exist, and has attempts"


def _ended(job: JobRow) -> Iterator[str]:
    if job.state not in TERMINAL:
        yield f"job {job.id} ({job.kind}) is {job.state}: it has not ended"
    if job.leased or job.worker:
        yield f"job {job.id} ({job.kind}) is {job.state}, and still leased to {job.worker or 'nobody'}"
    if job.state == "quarantined":
        yield f"job {job.id} ({job.kind}) is quarantined, and every worker knows its name: {job.cause}"


def _history(job: JobRow, attempts: list[AttemptRow], *, requeued: bool) -> Iterator[str]:
    what = f"job {job.id} ({job.kind})"
    numbers = Counter(attempt.number for attempt in attempts)
    for number, count in numbers.items():
        if count > 1:
            yield f"{what} has {count} rows for attempt {number}"
        if number > job.attempt:
            yield f"{what} has had {job.attempt} attempts, and a row for attempt {number}"
    succeeded = [attempt.number for attempt in attempts if attempt.outcome == "succeeded"]
    if job.state == "succeeded" and succeeded != [job.attempt]:
        yield f"{what} has succeeded in attempt {job.attempt}, and the history has successes {succeeded}"
    if job.state != "succeeded" and succeeded:
        yield f"{what} is {job.state}, and attempt {succeeded[0]} has succeeded"
    failures = sum(attempt.outcome in FAILURES for attempt in attempts)
    if not requeued and failures != job.failures:
        yield f"{what} counts {job.failures} failures, and the history has {failures}"
    if job.state == "dead-lettered" and not _may_be_dead(job, attempts):
        yield f"{what} is dead-lettered after {job.failures} of {job.max_attempts} failures: {job.cause}"


def _may_be_dead(job: JobRow, attempts: list[AttemptRow]) -> bool:
    gave_up = job.kind in HOPELESS and any(attempt.outcome == "failed" for attempt in attempts)
    return gave_up or job.failures >= job.max_attempts


def effects(evidence: Evidence) -> Iterator[str]:
    """At least once: what has succeeded has begun, in that attempt and by that worker."""
    begun: defaultdict[tuple[UUID, int], list[Effect]] = defaultdict(list)
    for effect in evidence.effects:
        begun[effect.job, effect.attempt].append(effect)
    yield from _begun(evidence, begun)
    for attempt in evidence.attempts:
        lines = begun.get((attempt.job, attempt.number), [])
        what = f"attempt {attempt.number} of job {attempt.job}"
        if attempt.outcome == "succeeded" and not lines:
            yield f"{what} has succeeded, and its handler has never begun"
        for line in lines:
            if f":{line.pid}:" not in attempt.worker:
                yield f"{what} is {attempt.worker}'s, and ran in process {line.pid}"


def _begun(evidence: Evidence, begun: dict[tuple[UUID, int], list[Effect]]) -> Iterator[str]:
    jobs = {job.id: job for job in evidence.jobs}
    for (job_id, attempt), lines in begun.items():
        if len(lines) > 1:
            yield f"attempt {attempt} of job {job_id} has begun {len(lines)} times"
        if job_id not in jobs:
            yield f"job {job_id} does not exist, and its handler has run"
        elif attempt > jobs[job_id].attempt:
            yield f"job {job_id} has had {jobs[job_id].attempt} attempts, and attempt {attempt} has run"


def ledger(evidence: Evidence) -> Iterator[str]:
    """G7: the lines in the ledger are the successes of atomic jobs, each once."""
    lines = Counter(evidence.ledger)
    expected = {(job.id, job.attempt) for job in evidence.jobs if _wrote(job)}
    for (job_id, attempt), count in lines.items():
        if count > 1:
            yield f"the ledger has {count} lines of attempt {attempt} of job {job_id}"
        if (job_id, attempt) not in expected:
            yield f"the ledger has a line of attempt {attempt} of job {job_id}, which has not succeeded"
    for job_id, attempt in sorted(expected - lines.keys()):
        yield f"attempt {attempt} of atomic job {job_id} has succeeded, and the ledger has no line of it"


def _wrote(job: JobRow) -> bool:
    return job.kind in ATOMIC and job.state == "succeeded"


def cancels(evidence: Evidence) -> Iterator[str]:
    """G8: what is cancelled was asked to be, or late; and what was asked to be has at most succeeded."""
    actions, attempts = by_job(evidence.actions), by_job(evidence.attempts)
    may_expire = {job.id for each in evidence.transactions for job in each.jobs if job.expires}
    for job in evidence.jobs:
        last = _last_word(actions.get(job.id, []))
        asked = last is not None and last.verb == "cancel"
        what = f"job {job.id} ({job.kind})"
        late = job.cause == EXPIRED_CAUSE and job.id in may_expire
        if job.state == "cancelled" and not late and not (asked and job.cause == CANCEL_CAUSE):
            yield f"{what} is cancelled, and nobody has asked for that: {job.cause!r}"
        if last is None or last.verb != "cancel":
            continue
        if job.state not in {"cancelled", "succeeded"}:
            yield f"{what} is {job.state}, after a cancel ({last.result})"
        if last.result == CancelResult.CANCELLED.value:
            yield from _stayed_cancelled(job, last, attempts.get(job.id, []))


def _last_word(actions: list[ActionRow]) -> ActionRow | None:
    effective = {
        CancelResult.CANCELLED.value,
        CancelResult.ASKED_TO_STOP.value,
        RequeueResult.REQUEUED.value,
    }
    return next((action for action in reversed(actions) if action.result in effective), None)


def _stayed_cancelled(job: JobRow, cancel: ActionRow, attempts: list[AttemptRow]) -> Iterator[str]:
    if job.state != "cancelled":
        yield f"job {job.id} ({job.kind}) was cancelled at once, and is {job.state}"
    for attempt in attempts:
        if attempt.started_at is not None and attempt.started_at > cancel.at:
            yield f"job {job.id} ({job.kind}) was cancelled, and attempt {attempt.number} began later"


def workers(evidence: Evidence) -> Iterator[str]:
    """No worker is stuck at the end, and none has grown."""
    yield from evidence.ends
    for pid, megabytes in evidence.peaks.items():
        if megabytes > MEMORY:
            yield f"process {pid} of a worker has used {megabytes:.0f} MB, more than {MEMORY}"
