"""Settle: write the outcomes of attempts, each through the fence, a batch in one transaction (G5).

The job's new state, its attempt row and its output commit together with the fenced UPDATE or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db.models import Value
from django.db.models.functions import Coalesce

from django_backwave.core.outcome import CANCEL_CAUSE, ErrorInfo, Failed, InDoubt
from django_backwave.core.protocol import AttemptKey, Report, Verdict
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.models import Attempt, Job, Lease
from django_backwave.models.fields import EncodedJSON, InstantField
from django_backwave.store import clock, fence, notify, postgres
from django_backwave.store.claim import look, take, taken
from django_backwave.store.entries import Entry, entry_of
from django_backwave.store.errors import refuses_data
from django_backwave.store.expressions import InstantByKey
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import by_primary_key, is_postgres, unlocked, writing
from django_backwave.store.retention import trim_attempts
from django_backwave.store.tags import insert_tags, trim_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence
    from datetime import datetime

    from django_backwave.models.lease import LeaseQuerySet
    from django_backwave.store.claim import Order, Taken


def settle(
    reports: Sequence[Report],
    *,
    worker: str,
    unroutable_grace: float,
    using: str,
    now: datetime | None = None,
) -> dict[AttemptKey, Verdict]:
    """Write the outcomes that the fence lets through, and return a verdict for each report.

    A job whose cancel was requested becomes CANCELLED, unless it succeeded (G8). An attempt's tags, and the
    progress that no heartbeat has written, go with its outcome. One row that the database
    refuses is recorded as a failed attempt with that cause; the others are not delayed by it.
    """
    ordered = _ordered(reports)
    verdicts = _resolved(ordered, worker=worker, using=using)
    entries = [
        entry_of(report, unroutable_grace=unroutable_grace)
        for report in ordered
        if report.job.key not in verdicts
    ]
    if not entries:
        return verdicts
    verdicts |= _write_or_split(entries, worker=worker, using=using, now=now)
    return _with_unmatched(verdicts, entries, worker=worker, using=using, now=now)


def settle_and_take(
    reports: Sequence[Report],
    order: Order,
    *,
    worker: str,
    unroutable_grace: float,
    using: str,
    now: datetime | None = None,
) -> tuple[dict[AttemptKey, Verdict], Taken]:
    """Do what ``settle`` and then ``take`` do, in one statement where there is one.

    If it fails, both may have been applied, or neither, or the settle alone.
    """
    if is_postgres(using) and not any(isinstance(report.outcome, InDoubt) for report in reports):
        entries = [entry_of(report, unroutable_grace=unroutable_grace) for report in _ordered(reports)]
        looked = look(order, using=using, now=now)
        try:
            answer = postgres.run(entries, looked, worker=worker, using=using, now=now)
        except Exception as error:
            if not refuses_data(error):
                raise
        else:
            _trim(entries, answer.verdicts, using=using)
            verdicts = _with_unmatched(answer.verdicts, entries, worker=worker, using=using, now=now)
            return verdicts, taken(looked, answer)
    verdicts = settle(reports, worker=worker, unroutable_grace=unroutable_grace, using=using, now=now)
    return verdicts, take(order, worker=worker, using=using, now=now)


def _ordered(reports: Sequence[Report]) -> list[Report]:
    """Return reports in the order in which rows are locked."""
    return sorted(reports, key=lambda report: report.job.key)


def _resolved(reports: Sequence[Report], *, worker: str, using: str) -> dict[AttemptKey, Verdict]:
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
    entry = entry_of(report, unroutable_grace=0.0)
    at = clock.read(using, now)
    with by_primary_key(using):
        if not leases.update(**_values([entry], at), **notify.telling(using)):
            return False
    passing("complete: row written")
    Attempt.objects.using(using).bulk_create([_attempt(entry, worker, at)])
    passing("complete: history written")
    _insert_tags([entry], using)
    passing("complete: tags written")
    trim_attempts([entry.key], using=using)
    return True


def _insert_tags(matched: Sequence[Entry], using: str) -> None:
    tagged = [entry for entry in matched if entry.tags]
    insert_tags({entry.key.job_id: entry.tags for entry in tagged}, using=using)
    _trim_tags(tagged, using)


def _trim_tags(tagged: Sequence[Entry], using: str) -> None:
    """See to the bound, which an enqueue and one attempt cannot exceed."""
    trim_tags([entry.key.job_id for entry in tagged if entry.key.attempt > 1], using=using)


def _write_or_split(
    entries: list[Entry], *, worker: str, using: str, now: datetime | None
) -> dict[AttemptKey, Verdict]:
    try:
        return _write(entries, worker=worker, using=using, now=now)
    except Exception as error:
        if not refuses_data(error):
            raise
        if len(entries) > 1:
            one_by_one = [_write_or_split([entry], worker=worker, using=using, now=now) for entry in entries]
            return {key: verdict for each in one_by_one for key, verdict in each.items()}
        return _write_or_give_way(_refused(entries[0], error), worker=worker, using=using, now=now)


def _write_or_give_way(
    entry: Entry, *, worker: str, using: str, now: datetime | None
) -> dict[AttemptKey, Verdict]:
    """Write a refused outcome as a failure; without its history if even that is refused.

    A row with the attempt's number, made by hand, must not keep a job running for ever.
    """
    try:
        return _write([entry], worker=worker, using=using, now=now)
    except Exception as error:
        if not refuses_data(error):
            raise
        return _write([entry._replace(silent=True)], worker=worker, using=using, now=now)


def _write(
    entries: list[Entry], *, worker: str, using: str, now: datetime | None
) -> dict[AttemptKey, Verdict]:
    write = _write_postgres if is_postgres(using) else _write_portable
    return write(entries, worker=worker, using=using, now=now)


def _refused(entry: Entry, error: Exception) -> Entry:
    """Turn an outcome that the database refuses into a failure that it will take."""
    kind = type(error)
    told = ascii(str(error))[1:1001]
    info = ErrorInfo(
        class_path=f"{kind.__module__}.{kind.__qualname__}",
        message=f"The database refused to store this attempt's outcome: {told}",
        traceback="",
    )
    return entry_of(entry.report._replace(outcome=Failed(info)), unroutable_grace=0.0)


def _with_unmatched(
    verdicts: dict[AttemptKey, Verdict],
    entries: list[Entry],
    *,
    worker: str,
    using: str,
    now: datetime | None,
) -> dict[AttemptKey, Verdict]:
    rest = [entry for entry in entries if entry.key not in verdicts]
    return verdicts | _unmatched(rest, worker=worker, using=using, now=now) if rest else verdicts


def _unmatched(
    entries: list[Entry], *, worker: str, using: str, now: datetime | None
) -> dict[AttemptKey, Verdict]:
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


def _applied_before(
    keys: list[AttemptKey], *, success: Verdict, worker: str, using: str
) -> dict[AttemptKey, Verdict]:
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
        applied = {AttemptKey(job_id, n): told.get(outcome, Verdict.APPLIED) for job_id, n, outcome in rows}
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


def _write_postgres(
    entries: list[Entry], *, worker: str, using: str, now: datetime | None
) -> dict[AttemptKey, Verdict]:
    verdicts = postgres.run(entries, None, worker=worker, using=using, now=now).verdicts
    _trim(entries, verdicts, using=using)
    return verdicts


def _trim(entries: Sequence[Entry], matched: Collection[AttemptKey], *, using: str) -> None:
    """See to the bounds of what hangs on the jobs written."""
    trim_attempts(matched, using=using)
    _trim_tags([entry for entry in entries if entry.tags and entry.key in matched], using)


# Elsewhere: lock what is free, then one fenced UPDATE for all that get the same, then the attempt rows.


class _TornGroup(Exception):
    """An UPDATE for several rows matched only some of them, and does not say which."""


def _write_portable(
    entries: list[Entry], *, worker: str, using: str, now: datetime | None
) -> dict[AttemptKey, Verdict]:
    write = partial(_write_groups, entries, worker=worker, using=using, now=now)
    try:
        matched = write(group_key=_same_values)
    except _TornGroup:
        matched = write(group_key=lambda entry: entry.key)  # one row each: the count is the verdict
    cancelled = JobState.CANCELLED
    return {entry.key: _verdict(cancelled=entry.decision.state is cancelled) for entry in matched}


def _write_groups(
    entries: list[Entry],
    *,
    group_key: Callable[[Entry], Hashable],
    worker: str,
    using: str,
    now: datetime | None,
) -> list[Entry]:
    groups: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    matched: list[Entry] = []
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


def _free_entries(entries: list[Entry], using: str) -> list[Entry]:
    """Lock the rows that nobody else has locked, and return their entries as a cancel changes them."""
    leases = Lease.objects.using(using).of([entry.key.job_id for entry in entries]).order_by("pk")
    cancels = dict(unlocked(leases, using=using).values_list("pk", "cancel_requested_at"))
    return [
        entry if cancels[entry.key.job_id] is None else _under_cancel(entry)
        for entry in entries
        if entry.key.job_id in cancels
    ]


def _same_values(entry: Entry) -> Hashable:
    decision = entry.decision._replace(outcome=AttemptOutcome.SUCCEEDED, error=None)
    return (entry.key.attempt, entry.progress, decision)


def _under_cancel(entry: Entry) -> Entry:
    if entry.decision.state is JobState.SUCCEEDED:
        return entry
    decision = entry.decision._replace(
        state=JobState.CANCELLED,
        failures=entry.report.job.failures,
        outcome=AttemptOutcome.CANCELLED,
        cause=CANCEL_CAUSE,
        due_in=None,
        recorded=entry.recorded,
    )
    return entry._replace(decision=decision)


def _values(group: list[Entry], at: datetime) -> dict[str, Any]:
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
    starts = {entry.key.job_id: entry.started_at for entry in group if entry.started_at is not None}
    if starts:
        values["started_at"] = InstantByKey("started_at", starts)
    if decision.due_in is not None:
        values["due_at"] = clock.after(at, decision.due_in)
    if group[0].progress is not None:
        values["progress"] = EncodedJSON(group[0].progress)
    return values


def _attempt(entry: Entry, worker: str, at: datetime) -> Attempt:
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
