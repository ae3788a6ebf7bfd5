"""Settle: write the outcomes of attempts, each through the fence, a batch in one transaction (G5).

The job's new state, its attempt row and its output commit together with the fenced UPDATE or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import Case, F, Value, When
from django.db.models.functions import Coalesce

from django_backwave.core.outcome import (
    CANCEL_CAUSE,
    Decision,
    ErrorInfo,
    Failed,
    InDoubt,
    decide,
)
from django_backwave.core.protocol import Key, Report, Verdict
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.models import Attempt, Job, Lease, Tag
from django_backwave.models.fields import EncodedJSON, InstantField
from django_backwave.store import clock, fence
from django_backwave.store.errors import refuses_data
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import by_primary_key, is_postgres, single_statement, unlocked, writing
from django_backwave.store.retention import trim_attempts
from django_backwave.store.tags import insert_tags, trim_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from datetime import datetime

    from django_backwave.models.lease import LeaseQuerySet


@dataclass(frozen=True, slots=True)
class _Entry:
    """A report with what to write for it, as long as no cancel was requested.

    ``silent``: without a row in the history, and without tags and progress.
    """

    report: Report
    decision: Decision
    silent: bool = False

    @property
    def key(self) -> Key:
        return self.report.job.key

    @property
    def started_at(self) -> datetime | None:
        after = self.report.started_after
        return None if after is None else clock.after(self.report.job.claimed_at, after)

    @property
    def recorded(self) -> bool:
        return not self.silent and (self.decision.recorded or self.report.started_after is not None)

    @property
    def tags(self) -> tuple[tuple[str, str], ...]:
        return () if self.silent else self.report.tags

    @property
    def progress(self) -> str | None:
        return None if self.silent else self.report.progress


def settle(
    reports: Sequence[Report],
    *,
    worker: str,
    unroutable_grace: float,
    using: str,
    now: datetime | None = None,
) -> dict[Key, Verdict]:
    """Write the outcomes that the fence lets through, and return a verdict for each report.

    A job whose cancel was requested becomes CANCELLED, unless it succeeded (G8). An attempt's tags, and the
    progress that no heartbeat has written, go with its outcome. One row that the database
    refuses is recorded as a failed attempt with that cause; the others are not delayed by it.
    """
    ordered = sorted(reports, key=lambda report: report.job.key)
    verdicts = _resolved(ordered, worker=worker, using=using)
    entries = [_entry(report, unroutable_grace) for report in ordered if report.job.key not in verdicts]
    if not entries:
        return verdicts
    verdicts |= _write_or_split(entries, worker=worker, using=using, now=now)
    rest = [entry for entry in entries if entry.key not in verdicts]
    if rest:
        verdicts |= _unmatched(rest, worker=worker, using=using, now=now)
    return verdicts


def _resolved(reports: Sequence[Report], *, worker: str, using: str) -> dict[Key, Verdict]:
    """Ask the history about commits in doubt: those that landed are applied, open ones are locked.

    The others were rolled back, and are settled as the failures that they are.
    """
    doubtful = [report.job.key for report in reports if isinstance(report.outcome, InDoubt)]
    if not doubtful:
        return {}
    # An earlier settle may have written the failure, and its reply was lost: then it has not landed.
    verdicts = _applied_before(doubtful, success=Verdict.LANDED, worker=worker, using=using)
    return {key: verdict for key, verdict in verdicts.items() if verdict is not Verdict.STALE}


def complete(
    report: Report, leases: LeaseQuerySet, *, worker: str, using: str, now: datetime | None = None
) -> bool:
    """Write a success in the caller's open transaction, through the guarded rows given.

    Waits for the row if somebody else has locked it. Returns whether the fence let it through; if not,
    nothing was written, and the caller must roll back.
    """
    entry = _entry(report, 0.0)
    at = clock.read(using, now)
    with by_primary_key(using):
        if not leases.update(**_values([entry], at)):
            return False
    passing("complete: row written")
    Attempt.objects.using(using).bulk_create([_attempt(entry, worker, at)])
    passing("complete: history written")
    _insert_tags([entry], using)
    passing("complete: tags written")
    trim_attempts([entry.key], using=using)
    return True


def _insert_tags(matched: Sequence[_Entry], using: str) -> None:
    tagged = [entry for entry in matched if entry.tags]
    insert_tags({entry.key.job_id: entry.tags for entry in tagged}, using=using)
    _trim_tags(tagged, using)


def _trim_tags(tagged: Sequence[_Entry], using: str) -> None:
    """See to the bound, which an enqueue and one attempt cannot exceed."""
    trim_tags([entry.key.job_id for entry in tagged if entry.key.attempt > 1], using=using)


def _entry(report: Report, grace: float) -> _Entry:
    job = report.job
    decision = decide(report.outcome, job.numbers, jitter=report.jitter, unroutable_grace=grace)
    return _Entry(report, decision)


def _write_or_split(
    entries: list[_Entry], *, worker: str, using: str, now: datetime | None
) -> dict[Key, Verdict]:
    try:
        return _write(entries, worker=worker, using=using, now=now)
    except Exception as error:
        if not refuses_data(error):
            raise
        if len(entries) > 1:
            one_by_one = [_write_or_split([entry], worker=worker, using=using, now=now) for entry in entries]
            return {key: verdict for each in one_by_one for key, verdict in each.items()}
        return _write_or_give_way(_refused(entries[0], error), worker=worker, using=using, now=now)


def _write_or_give_way(entry: _Entry, *, worker: str, using: str, now: datetime | None) -> dict[Key, Verdict]:
    """Write a refused outcome as a failure; without its history if even that is refused.

    A row with the attempt's number, made by hand, must not keep a job running for ever.
    """
    try:
        return _write([entry], worker=worker, using=using, now=now)
    except Exception as error:
        if not refuses_data(error):
            raise
        return _write([replace(entry, silent=True)], worker=worker, using=using, now=now)


def _write(entries: list[_Entry], *, worker: str, using: str, now: datetime | None) -> dict[Key, Verdict]:
    write = _write_postgres if is_postgres(using) else _write_portable
    return write(entries, worker=worker, using=using, now=now)


def _refused(entry: _Entry, error: Exception) -> _Entry:
    """Turn an outcome that the database refuses into a failure that it will take."""
    kind = type(error)
    told = ascii(str(error))[1:1001]
    info = ErrorInfo(
        class_path=f"{kind.__module__}.{kind.__qualname__}",
        message=f"The database refused to store this attempt's outcome: {told}",
        traceback="",
    )
    return _entry(replace(entry.report, outcome=Failed(info)), 0.0)


def _unmatched(entries: list[_Entry], *, worker: str, using: str, now: datetime | None) -> dict[Key, Verdict]:
    """Tell stale reports from rows that were only locked, and from writes that had been applied before.

    A report sent before may have been applied by a COMMIT whose reply was lost. That commit may still be
    under way, so its row is locked first; then the attempt's row in the history says it.
    """
    held = fence.still_held([entry.key for entry in entries], worker, using=using, now=now)
    verdicts = {entry.key: Verdict.LOCKED if entry.key in held else Verdict.STALE for entry in entries}
    doubtful = [
        entry.key for entry in entries if entry.report.sent_before and verdicts[entry.key] is Verdict.STALE
    ]
    if doubtful:
        verdicts |= _applied_before(doubtful, success=Verdict.APPLIED, worker=worker, using=using)
    return verdicts


def _applied_before(keys: list[Key], *, success: Verdict, worker: str, using: str) -> dict[Key, Verdict]:
    """Return what the history says of attempts; ``success`` is the verdict on a recorded success."""
    told = {AttemptOutcome.SUCCEEDED.value: success, AttemptOutcome.CANCELLED.value: Verdict.CANCELLED}
    job_ids = [key.job_id for key in keys]
    with writing(using):
        jobs = Job.objects.using(using).filter(pk__in=job_ids).order_by("pk")
        free = set(unlocked(jobs, using=using).values_list("pk", flat=True))
        there = set(jobs.values_list("pk", flat=True))
        rows = (
            Attempt.objects.using(using)
            .filter(job_id__in=job_ids, worker=worker)
            .exclude(outcome=AttemptOutcome.ABANDONED.value)
            .values_list("job_id", "number", "outcome")
        )
        applied = {Key(job_id, n): told.get(outcome, Verdict.APPLIED) for job_id, n, outcome in rows}
    return {
        key: applied[key]
        if key in applied
        else Verdict.LOCKED
        if key.job_id in there - free
        else Verdict.STALE
        for key in keys
    }


def _verdict(*, cancelled: bool) -> Verdict:
    return Verdict.CANCELLED if cancelled else Verdict.APPLIED


# PostgreSQL: guard, job rows, attempt rows and tags in one statement, which is one transaction.

_READY, _SUCCEEDED = JobState.READY.value, JobState.SUCCEEDED.value
_CANCELLED = JobState.CANCELLED.value


@cache
def _settle_sql(jobs: str, attempts: str, tags: str | None, instant: str) -> str:
    # LATERAL with a lock: a plain join with unnest makes the planner scan the table for each batch.
    # ``tags`` is None for a batch without any: most are, and pay for nothing.
    tagged = f"""
        , tagged AS (
            INSERT INTO {tags} (job_id, "key", "value")
            SELECT m.id, t.word_key, t.word_value
              FROM unnest(%(tag_ids)s::uuid[], %(tag_numbers)s::int[], %(tag_keys)s::varchar[],
                   %(tag_values)s::varchar[]) AS t(id, attempt, word_key, word_value)
              JOIN mine m ON m.id = t.id AND m.attempt = t.attempt
            ON CONFLICT DO NOTHING
        )"""
    return f"""
        WITH mine AS MATERIALIZED (
            SELECT v.*, held.cancelled
              FROM unnest(%(ids)s::uuid[], %(numbers)s::int[], %(states)s::smallint[],
                   %(outcomes)s::varchar[], %(failures)s::int[], %(due_ins)s::float8[],
                   %(causes)s::text[], %(outputs)s::text[], %(unroutables)s::bool[],
                   %(recordeds)s::bool[], %(starts)s::timestamptz[], %(classes)s::text[],
                   %(messages)s::text[], %(tracebacks)s::text[], %(progresses)s::text[])
                AS v(id, attempt, state, outcome, failures, due_in, cause, output, unroutable,
                   recorded, started_at, error_class, message, traceback, progress)
             CROSS JOIN LATERAL (
                SELECT j.cancel_requested_at IS NOT NULL AND v.state <> {_SUCCEEDED} AS cancelled
                  FROM {jobs} j
                 WHERE {fence.GUARD.format(instant=instant)}
                   FOR NO KEY UPDATE SKIP LOCKED) held
        ), settled AS (
            UPDATE {jobs} j
               SET state = CASE WHEN m.cancelled THEN {_CANCELLED} ELSE m.state END,
                   failures = m.failures,
                   due_at = CASE WHEN m.cancelled OR m.due_in IS NULL THEN j.due_at
                            ELSE {instant} + make_interval(secs => m.due_in) END,
                   worker = '', lease_expires_at = NULL,
                   started_at = COALESCE(m.started_at, j.started_at),
                   finished_at = CASE WHEN NOT m.cancelled AND m.state = {_READY} THEN NULL
                                 ELSE {instant} END,
                   cause = CASE WHEN m.cancelled THEN %(cancel_cause)s ELSE m.cause END,
                   output = m.output, progress = COALESCE(m.progress, j.progress),
                   unroutable_since = CASE WHEN m.unroutable
                                      THEN COALESCE(j.unroutable_since, {instant}) END
              FROM mine m WHERE j.id = m.id
        ), history AS (
            INSERT INTO {attempts} (job_id, number, worker, started_at, finished_at, outcome,
                   error_class, message, traceback)
            SELECT m.id, m.attempt, %(worker)s, m.started_at, {instant},
                   CASE WHEN m.cancelled THEN %(cancelled)s ELSE m.outcome END,
                   m.error_class, m.message, m.traceback
              FROM mine m WHERE m.recorded
        ){tagged if tags else ""}
        SELECT id, attempt, cancelled OR state = {_CANCELLED} FROM mine
    """


def _write_postgres(
    entries: list[_Entry], *, worker: str, using: str, now: datetime | None
) -> dict[Key, Verdict]:
    connection = connections[using]
    quote = connection.ops.quote_name
    tagged = [entry for entry in entries if entry.tags]
    sql = _settle_sql(
        quote(Job._meta.db_table),
        quote(Attempt._meta.db_table),
        quote(Tag._meta.db_table) if tagged else None,
        clock.instant_sql(now),
    )
    values = {
        **_arrays(entries),
        **_tag_arrays(tagged),
        "worker": worker,
        "now": now,
        "cancel_cause": CANCEL_CAUSE,
        "cancelled": AttemptOutcome.CANCELLED.value,
    }
    with single_statement(using), connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows = cursor.fetchall()
    matched = {Key(job_id, number): _verdict(cancelled=cancelled) for job_id, number, cancelled in rows}
    trim_attempts(matched, using=using)
    _trim_tags([entry for entry in tagged if entry.key in matched], using)
    return matched


def _tag_arrays(tagged: Sequence[_Entry]) -> dict[str, list[Any]]:
    words = [(entry.key, key, value) for entry in tagged for key, value in entry.tags]
    return {
        "tag_ids": [key.job_id for key, _, _ in words],
        "tag_numbers": [key.attempt for key, _, _ in words],
        "tag_keys": [word for _, word, _ in words],
        "tag_values": [word for _, _, word in words],
    }


def _arrays(entries: list[_Entry]) -> dict[str, list[Any]]:
    errors = [entry.decision.error for entry in entries]
    return {
        "ids": [entry.key.job_id for entry in entries],
        "numbers": [entry.key.attempt for entry in entries],
        "states": [entry.decision.state.value for entry in entries],
        "outcomes": [entry.decision.outcome.value for entry in entries],
        "failures": [entry.decision.failures for entry in entries],
        "due_ins": [entry.decision.due_in for entry in entries],
        "causes": [entry.decision.cause for entry in entries],
        "outputs": [entry.decision.output for entry in entries],
        "unroutables": [entry.decision.unroutable for entry in entries],
        "recordeds": [entry.recorded for entry in entries],
        "starts": [entry.started_at for entry in entries],
        "classes": [error.class_path if error else "" for error in errors],
        "messages": [error.message if error else "" for error in errors],
        "tracebacks": [error.traceback if error else "" for error in errors],
        "progresses": [entry.progress for entry in entries],
    }


# Elsewhere: lock what is free, then one fenced UPDATE for all that get the same, then the attempt rows.


class _TornGroup(Exception):
    """An UPDATE for several rows matched only some of them, and does not say which."""


def _write_portable(
    entries: list[_Entry], *, worker: str, using: str, now: datetime | None
) -> dict[Key, Verdict]:
    write = partial(_write_groups, entries, worker=worker, using=using, now=now)
    try:
        matched = write(group_key=_same_values)
    except _TornGroup:
        matched = write(group_key=lambda entry: entry.key)  # one row each: the count is the verdict
    cancelled = JobState.CANCELLED
    return {entry.key: _verdict(cancelled=entry.decision.state is cancelled) for entry in matched}


def _write_groups(
    entries: list[_Entry],
    *,
    group_key: Callable[[_Entry], Hashable],
    worker: str,
    using: str,
    now: datetime | None,
) -> list[_Entry]:
    groups: defaultdict[Hashable, list[_Entry]] = defaultdict(list)
    matched: list[_Entry] = []
    with writing(using):
        for entry in _free_entries(entries, using):
            groups[group_key(entry)].append(entry)
        at = clock.read(using, now)
        for group in groups.values():
            attempt = group[0].key.attempt
            leases = fence.held([entry.key.job_id for entry in group], attempt, worker, using=using, now=now)
            count = leases.update(**_values(group, at))
            if 0 < count < len(group):
                raise _TornGroup
            matched += group if count else []
        passing("settle: rows written")
        history = [_attempt(entry, worker, at) for entry in matched if entry.recorded]
        Attempt.objects.using(using).bulk_create(history)
        passing("settle: history written")
        _insert_tags(matched, using)
        passing("settle: tags written")
        trim_attempts([entry.key for entry in matched], using=using)
    return matched


def _free_entries(entries: list[_Entry], using: str) -> list[_Entry]:
    """Lock the rows that nobody else has locked, and return their entries as a cancel changes them."""
    leases = Lease.objects.using(using).of([entry.key.job_id for entry in entries]).order_by("pk")
    cancels = dict(unlocked(leases, using=using).values_list("pk", "cancel_requested_at"))
    return [
        entry if cancels[entry.key.job_id] is None else _under_cancel(entry)
        for entry in entries
        if entry.key.job_id in cancels
    ]


def _same_values(entry: _Entry) -> Hashable:
    decision = replace(entry.decision, outcome=AttemptOutcome.SUCCEEDED, error=None)
    return (entry.key.attempt, entry.progress, decision)


def _under_cancel(entry: _Entry) -> _Entry:
    if entry.decision.state is JobState.SUCCEEDED:
        return entry
    decision = replace(
        entry.decision,
        state=JobState.CANCELLED,
        outcome=AttemptOutcome.CANCELLED,
        cause=CANCEL_CAUSE,
        due_in=None,
        recorded=entry.recorded,
    )
    return replace(entry, decision=decision)


def _values(group: list[_Entry], at: datetime) -> dict[str, Any]:
    """Return what to write to the rows of a group; only their starts may differ."""
    decision = group[0].decision
    values: dict[str, Any] = {
        "failures": decision.failures,
        "lease_expires_at": None,
        "finished_at": at if decision.state.is_terminal else None,
        "cause": decision.cause,
        "output": None if decision.output is None else EncodedJSON(decision.output),
        "unroutable_since": Coalesce("unroutable_since", Value(at, output_field=InstantField()))
        if decision.unroutable
        else None,
        "worker": "",
        "state": decision.state.value,
    }
    starts = [
        When(pk=entry.key.job_id, then=Value(entry.started_at, output_field=InstantField()))
        for entry in group
        if entry.started_at is not None
    ]
    if starts:
        values["started_at"] = Case(*starts, default=F("started_at"))
    if decision.due_in is not None:
        values["due_at"] = clock.after(at, decision.due_in)
    if group[0].progress is not None:
        values["progress"] = EncodedJSON(group[0].progress)
    return values


def _attempt(entry: _Entry, worker: str, at: datetime) -> Attempt:
    error = entry.decision.error
    return Attempt(
        job_id=entry.key.job_id,
        number=entry.key.attempt,
        worker=worker,
        started_at=entry.started_at,
        finished_at=at,
        outcome=entry.decision.outcome.value,
        error_class=error.class_path if error else "",
        message=error.message if error else "",
        traceback=error.traceback if error else "",
    )
