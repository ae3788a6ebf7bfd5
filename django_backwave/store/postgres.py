"""PostgreSQL: claim and settle as one statement each, and both together as one.

A claim takes its rows with SKIP LOCKED and begins their leases; a settle finds the rows that the fence lets
through, locks them, and writes job, history and tags. One statement is one transaction and one round trip;
a worker under load settles one batch and claims the next in the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from django_backwave.core.limits import LAST_ATTEMPT
from django_backwave.core.outcome import CANCEL_CAUSE, EXPIRED_CAUSE
from django_backwave.core.protocol import AttemptKey, Claimed, Verdict
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.models import Attempt, Job, Tag, fields
from django_backwave.store import arrays, aside, clock, fence, notify, plans

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django_backwave.store.claim import Order
    from django_backwave.store.entries import Entry

_READY, _RUNNING = JobState.READY.value, JobState.RUNNING.value
_SUCCEEDED, _CANCELLED = JobState.SUCCEEDED.value, JobState.CANCELLED.value


class Answer(NamedTuple):
    """What a statement brought: verdicts on what matched, and what ``Taken`` has of a claim."""

    verdicts: dict[AttemptKey, Verdict]
    jobs: list[Claimed]
    late: list[tuple[Any, str]]
    passed: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a statement: a word for it, its common table expressions, a select, and the parameters."""

    what: str
    tables: str
    select: str
    values: dict[str, Any]


def run(
    entries: Sequence[Entry], order: Order | None, *, worker: str, using: str, now: datetime | None
) -> Answer:
    """Write the entries that the fence lets through, and claim what is ordered, in one statement."""
    parts = [_settle(entries, using, now)] if entries else []
    parts += [_claim(order, using, now)] if order else []
    sql = "WITH RECURSIVE " + ", ".join(part.tables for part in parts)
    sql += " UNION ALL ".join(part.select for part in parts)
    values: dict[str, Any] = {"worker": worker, "now": now}
    for part in parts:
        values |= part.values
    what = "_and_".join(part.what for part in parts)
    return _answer(plans.fetch(what, sql, values, using=using), entries)


def _answer(rows: list[tuple[Any, ...]], entries: Sequence[Entry]) -> Answer:
    jobs: list[Claimed] = []
    late: list[tuple[Any, str]] = []
    settled, passed, aware = "", 0, _Aware()
    for row in rows:
        if row[1] is None:
            settled, passed = row[5] or settled, row[6] or passed
        elif row[0]:
            late.append((row[1], row[2]))
        else:
            jobs.append(_claimed(row, aware))
    return Answer(_verdicts(settled, entries), jobs, late, passed)


def _verdicts(settled: str, entries: Sequence[Entry]) -> dict[AttemptKey, Verdict]:
    """Read which entries the fence let through: their places, counted from 1, negative if cancelled."""
    return {
        entries[abs(place) - 1].key: Verdict.APPLIED if place > 0 else Verdict.CANCELLED
        for place in map(int, settled.split())
    }


class _Aware(dict["datetime", "datetime"]):
    """Instants by what the statement says of them: those of a batch are the same few, over and over."""

    def __missing__(self, at: datetime) -> datetime:
        aware = self[at] = at.replace(tzinfo=UTC)
        return aware


def _claimed(row: tuple[Any, ...], aware: _Aware) -> Claimed:
    due, enqueued, claimed = row[18:21]
    return Claimed._make((*row[1:18], aware[due], aware[enqueued], aware[claimed], *row[21:]))


# Claim.

#: A row beside those of the jobs that were claimed: it has a text and a number, and all else is NULL. A row
#: for each report would be as long as a job's, and most of what the answer of a busy worker consists of.
_BESIDE = """ SELECT NULL::bool, NULL::uuid, NULL::varchar, NULL::varchar, NULL::smallint, {text}, {number},
               NULL::int, NULL::int, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8,
               NULL::text, NULL::varchar, NULL::varchar, NULL::int,
               NULL::timestamp, NULL::timestamp, NULL::timestamp, NULL::float8, NULL::bool"""


def _claim(order: Order, using: str, now: datetime | None) -> _Part:
    values: dict[str, Any] = {
        "queue": order.queue,
        # Not in the text, of which the driver keeps what it has parsed: a worker asks for any number of jobs.
        "limit": order.limit,
        "lease": order.lease,
        "slots": order.slots,
        "expired": EXPIRED_CAUSE,
        "ended": notify.ENDED,
    }
    if order.among is not None:
        values |= order.among.values()
    elif order.past:
        values |= {
            "past_priorities": arrays.numbers(place.priority for place in order.past),
            "past_at": arrays.instants(place.due_at for place in order.past),
            "past_ids": arrays.uuids(place.job_id for place in order.past),
        }
    if order.also:
        values["queues"] = arrays.texts(order.queues)
    choosy = order.limit > order.slots
    tables = _claim_sql(
        connections[using].ops.quote_name(Job._meta.db_table),
        clock.moment_sql(now),
        clock.statement_sql(now),
        among=order.among is not None,
        past=order.among is None and bool(order.past),
        many=bool(order.also),
        choosy=choosy,
        tells=notify.tells(),
    )
    select = " SELECT * FROM claimed"
    if choosy:
        passed = "((SELECT count(*) FROM pick) - (SELECT count(*) FROM chosen))::int"
        select += " UNION ALL" + _BESIDE.format(text="NULL::text", number=passed)
    return _Part("claim", tables, select, values)


#: Every priority that a queue's ready jobs have, highest first, one index step each.
_LEVELS = f"""level(priority) AS (
            (SELECT j.priority FROM {{table}} j
              WHERE j.state = {_READY} AND j.queue = %(queue)s
              ORDER BY j.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT j.priority FROM {{table}} j
                     WHERE j.state = {_READY} AND j.queue = %(queue)s AND j.priority < level.priority
                     ORDER BY j.priority DESC LIMIT 1)
              FROM level WHERE level.priority IS NOT NULL
        )"""

#: The same for many queues: the highest priorities of all, in turn, then what is below them.
_LEVELS_OF_MANY = f"""level(queue, priority) AS (
            SELECT given.queue, top.priority
              FROM unnest(%(queues)s::varchar[]) WITH ORDINALITY AS given(queue, turn) CROSS JOIN LATERAL (
                SELECT j.priority FROM {{table}} j WHERE j.state = {_READY} AND j.queue = given.queue
                 ORDER BY j.priority DESC LIMIT 1) top
            UNION ALL
            SELECT level.queue, below.priority FROM level CROSS JOIN LATERAL (
                SELECT j.priority FROM {{table}} j
                 WHERE j.state = {_READY} AND j.queue = level.queue AND j.priority < level.priority
                 ORDER BY j.priority DESC LIMIT 1) below
        )"""

#: How far earlier claims have come. Behind an old snapshot the entries of what they took are still in the
#: index, and each claim would walk over all of them again.
_PAST = """ LEFT JOIN unnest(%(past_priorities)s::smallint[], %(past_at)s::timestamptz[],
                             %(past_ids)s::uuid[]) AS past(priority, due_at, id)
                    ON past.priority = level.priority{and_queue}"""
_BEYOND = """
                   AND (j.due_at, j.id) > (COALESCE(past.due_at, '-infinity'),
                                           COALESCE(past.id, '00000000-0000-0000-0000-000000000000'))"""

#: Who waits for a job that is too late is told; of any other nothing is said.
_LATE_TOLD = notify.telling_sql("%(ended)s", ends="pick.late")

#: Which jobs may be claimed ahead of a free slot, as ``Claimed.may_wait`` has it.
_MAY_WAIT = "j.failures = 0 AND j.max_attempts > 1 AND j.expires_at IS NULL"


@cache
def _claim_sql(
    table: str,
    moment: str,
    statement: str,
    *,
    among: bool,
    past: bool,
    many: bool,
    choosy: bool,
    tells: bool,
) -> str:
    # MATERIALIZED: else the planner may run the LIMIT again and claim too many. There is no sort above the
    # LATERAL: it would lock `limit` rows of every priority and hide them from other workers.
    levels = aside.LEVELS if among else (_LEVELS_OF_MANY if many else _LEVELS).format(table=table)
    queue = "level.queue" if many else "%(queue)s"
    behind = _PAST.format(and_queue=" AND level.queue = %(queue)s" if many else "") if past else ""
    condition = aside.CONDITION if among else _BEYOND if past else ""
    return f"""{levels}, pick AS MATERIALIZED (
            SELECT due.id, due.late, due.may_wait FROM level{behind} CROSS JOIN LATERAL (
                SELECT j.id, COALESCE(j.expires_at <= {statement}, false) AS late, {_MAY_WAIT} AS may_wait
                  FROM {table} j
                 WHERE j.state = {_READY} AND j.queue = {queue} AND j.priority = level.priority
                   AND j.due_at <= {statement} AND j.attempt < {LAST_ATTEMPT}{condition}
                 ORDER BY j.due_at, j.id LIMIT %(limit)s
                   FOR NO KEY UPDATE SKIP LOCKED) due
             LIMIT %(limit)s
        ){_CHOSEN if choosy else ""}, claimed AS (
        UPDATE {table} j
           SET state = CASE WHEN pick.late THEN {_CANCELLED} ELSE {_RUNNING} END,
               attempt = CASE WHEN pick.late THEN j.attempt ELSE j.attempt + 1 END,
               worker = CASE WHEN pick.late THEN '' ELSE %(worker)s END,
               started_at = CASE WHEN pick.late THEN j.started_at END,
               progress = CASE WHEN pick.late THEN j.progress END,
               lease_expires_at = CASE WHEN NOT pick.late THEN
                   {moment} + make_interval(secs => {clock.LEASE}) END,
               finished_at = CASE WHEN pick.late THEN {moment} ELSE j.finished_at END,
               cause = CASE WHEN pick.late THEN %(expired)s ELSE j.cause END,
               awaited = {_LATE_TOLD if tells else "j.awaited"}
          FROM {"chosen" if choosy else "pick"} pick
         WHERE j.id = pick.id AND j.id = ANY(ARRAY(SELECT id FROM {"chosen" if choosy else "pick"}))
        RETURNING pick.late, j.id, j.name, j.queue, j.priority, j.payload, j.attempt, j.failures,
               j.max_attempts,
               j.backoff_base, j.backoff_cap, j.backoff_jitter, j.lease_seconds, j.timeout_seconds,
               j.headers, j.schema, j."key", j.generation,
               ({fields.readable("j.due_at")}) AT TIME ZONE 'UTC',
               ({fields.readable("j.enqueued_at")}) AT TIME ZONE 'UTC',
               {moment} AT TIME ZONE 'UTC',
               extract(epoch FROM {moment} - j.unroutable_since)::float8,
               {_MAY_WAIT})"""


#: Of those that may not wait only as many as there are free slots; the locks on the others end at once.
_CHOSEN = """, chosen AS (
            SELECT id, late FROM (
                SELECT id, late, may_wait, count(*) FILTER (WHERE NOT (late OR may_wait))
                       OVER (ROWS UNBOUNDED PRECEDING) AS nth
                  FROM pick) each
             WHERE late OR may_wait OR nth <= %(slots)s
        )"""


# Settle.


#: Who waits for a job is told when it ends, and of no failure that will be tried again.
_END_TOLD = notify.telling_sql("%(ended)s", ends=f"m.cancelled OR m.state <> {_READY}")


def _settle(entries: Sequence[Entry], using: str, now: datetime | None) -> _Part:
    quote = connections[using].ops.quote_name
    tagged = [entry for entry in entries if entry.tags]
    tables = _settle_sql(
        quote(Job._meta.db_table),
        quote(Attempt._meta.db_table),
        quote(Tag._meta.db_table) if tagged else None,
        clock.instant_sql(now),
        clock.moment_sql(now),
        tells=notify.tells(),
    )
    values = {
        **_arrays(entries),
        **_tag_arrays(tagged),
        "cancel_cause": CANCEL_CAUSE,
        "cancelled": AttemptOutcome.CANCELLED.value,
        "ended": notify.ENDED,
    }
    place = f"CASE WHEN cancelled OR state = {_CANCELLED} THEN -place ELSE place END"
    places = f"string_agg(CAST({place} AS text), ' ')"
    select = _BESIDE.format(text=places, number="NULL::int") + " FROM mine"
    return _Part("settle", tables, select, values)


@cache
def _settle_sql(jobs: str, attempts: str, tags: str | None, instant: str, moment: str, *, tells: bool) -> str:
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
    return f"""mine AS MATERIALIZED (
            SELECT v.*, held.cancelled,
                   v.claimed_at + make_interval(secs => v.started_after) AS started_at
              FROM unnest(%(ids)s::uuid[], %(numbers)s::int[], %(states)s::smallint[],
                   %(outcomes)s::varchar[], %(failures)s::int[], %(due_ins)s::float8[],
                   %(causes)s::text[], %(outputs)s::text[], %(unroutables)s::bool[],
                   %(recordeds)s::bool[], %(claims)s::timestamptz[], %(started_afters)s::float8[],
                   %(classes)s::text[], %(messages)s::text[], %(tracebacks)s::text[],
                   %(progresses)s::text[]) WITH ORDINALITY
                AS v(id, attempt, state, outcome, failures, due_in, cause, output, unroutable,
                   recorded, claimed_at, started_after, error_class, message, traceback, progress, place)
             CROSS JOIN LATERAL (
                SELECT j.cancel_requested_at IS NOT NULL AND v.state <> {_SUCCEEDED} AS cancelled
                  FROM {jobs} j
                 WHERE {fence.GUARD.format(instant=instant)}
                   FOR NO KEY UPDATE SKIP LOCKED) held
        ), settled AS (
            UPDATE {jobs} j
               SET state = CASE WHEN m.cancelled THEN {_CANCELLED} ELSE m.state END,
                   failures = CASE WHEN m.cancelled THEN j.failures ELSE m.failures END,
                   due_at = CASE WHEN m.cancelled OR m.due_in IS NULL THEN j.due_at
                            ELSE {moment} + make_interval(secs => LEAST(m.due_in, {clock.LONGEST:f})) END,
                   worker = '', lease_expires_at = NULL,
                   started_at = COALESCE(m.started_at, j.started_at),
                   finished_at = CASE WHEN NOT m.cancelled AND m.state = {_READY} THEN NULL
                                 ELSE {moment} END,
                   cause = CASE WHEN m.cancelled THEN %(cancel_cause)s ELSE m.cause END,
                   output = m.output, progress = COALESCE(m.progress, j.progress),
                   unroutable_since = CASE WHEN m.unroutable
                                      THEN COALESCE(j.unroutable_since, {moment}) END,
                   awaited = {_END_TOLD if tells else "j.awaited"}
              FROM mine m WHERE j.id = m.id AND j.id = ANY(ARRAY(SELECT id FROM mine))
        ), history AS (
            INSERT INTO {attempts} (job_id, number, worker, started_at, finished_at, outcome,
                   error_class, message, traceback)
            SELECT m.id, m.attempt, %(worker)s, m.started_at, {moment},
                   CASE WHEN m.cancelled THEN %(cancelled)s ELSE m.outcome END,
                   m.error_class, m.message, m.traceback
              FROM mine m WHERE m.recorded
        ){tagged if tags else ""}"""


def _tag_arrays(tagged: Sequence[Entry]) -> dict[str, str]:
    words = [(entry.key, key, value) for entry in tagged for key, value in entry.tags]
    return {
        "tag_ids": arrays.uuids(key.job_id for key, _, _ in words),
        "tag_numbers": arrays.numbers(key.attempt for key, _, _ in words),
        "tag_keys": arrays.texts(word for _, word, _ in words),
        "tag_values": arrays.texts(word for _, _, word in words),
    }


def _arrays(entries: Sequence[Entry]) -> dict[str, str]:
    jobs = [entry.report.job for entry in entries]
    decisions = [entry.decision for entry in entries]
    errors = [decision.error for decision in decisions]
    return {
        "ids": arrays.uuids(job.job_id for job in jobs),
        "numbers": arrays.numbers(job.attempt for job in jobs),
        "states": arrays.numbers(decision.state.value for decision in decisions),
        "outcomes": arrays.texts(decision.outcome.value for decision in decisions),
        "failures": arrays.numbers(decision.failures for decision in decisions),
        "due_ins": arrays.numbers(decision.due_in for decision in decisions),
        "causes": arrays.texts(decision.cause for decision in decisions),
        "outputs": arrays.texts(decision.output for decision in decisions),
        "unroutables": arrays.flags(decision.unroutable for decision in decisions),
        "recordeds": arrays.flags(entry.recorded for entry in entries),
        # Added up over there: to do it here takes longer than all the other columns.
        "claims": arrays.instants(job.claimed_at for job in jobs),
        "started_afters": arrays.numbers(entry.report.started_after for entry in entries),
        "classes": arrays.texts([error.class_path if error else "" for error in errors]),
        "messages": arrays.texts([error.message if error else "" for error in errors]),
        "tracebacks": arrays.texts([error.traceback if error else "" for error in errors]),
        "progresses": arrays.texts(entry.progress for entry in entries),
    }
