"""The checker itself: made-up evidence with each kind of violation, of which it must complain."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from django_backwave.core.outcome import CANCEL_CAUSE, EXPIRED_CAUSE
from tests.chaos import journals
from tests.chaos.checker import MEMORY, check
from tests.chaos.evidence import (
    ActionRow,
    AttemptRow,
    Effect,
    Enqueued,
    Evidence,
    JobRow,
    Transaction,
    transactions,
)
from tests.chaos.figures import figures, recoveries

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUICK, LEDGER, GONE, DEAD, LATE, CALLED_OFF = (UUID(int=number) for number in range(1, 7))
STRANGER = UUID(int=99)
ANN, BEN = "host:10:a", "host:20:b"


def good() -> Evidence:
    """Return the evidence of a run in which a worker was killed, and nothing went wrong."""
    return Evidence(
        transactions=[
            Transaction(
                client="c",
                number=1,
                outcome="committed",
                jobs=(
                    Enqueued(id=QUICK, kind="quick"),
                    Enqueued(id=LEDGER, kind="ledger"),
                    Enqueued(id=DEAD, kind="hopeless"),
                ),
            ),
            Transaction(client="c", number=2, outcome="rolled back", jobs=(Enqueued(id=GONE, kind="quick"),)),
            Transaction(
                client="c",
                number=3,
                outcome="unknown",
                jobs=(
                    Enqueued(id=LATE, kind="quick", expires=True),
                    Enqueued(id=CALLED_OFF, kind="slow"),
                ),
            ),
        ],
        effects=[
            Effect(job=QUICK, attempt=1, pid=10, at=100.0),
            Effect(job=QUICK, attempt=2, pid=20, at=103.0),
            Effect(job=LEDGER, attempt=1, pid=20, at=103.5),
            Effect(job=DEAD, attempt=1, pid=20, at=104.0),
        ],
        jobs=[
            job(QUICK, "quick", "succeeded", attempt=2, failures=1),
            job(LEDGER, "ledger", "succeeded"),
            job(DEAD, "hopeless", "dead-lettered", failures=1, cause="there is no hope"),
            job(LATE, "quick", "cancelled", attempt=0, cause=EXPIRED_CAUSE),
            job(CALLED_OFF, "slow", "cancelled", attempt=0, cause=CANCEL_CAUSE),
        ],
        attempts=[
            AttemptRow(job=QUICK, number=1, worker=ANN, outcome="abandoned"),
            AttemptRow(job=QUICK, number=2, worker=BEN, outcome="succeeded"),
            AttemptRow(job=LEDGER, number=1, worker=BEN, outcome="succeeded"),
            AttemptRow(job=DEAD, number=1, worker=BEN, outcome="failed"),
        ],
        actions=[ActionRow(job=CALLED_OFF, verb="cancel", result="cancelled", at=AT)],
        ledger=[(LEDGER, 1)],
        peaks={10: 60.0, 20: 70.0},
    )


def job(job_id: UUID, kind: str, state: str, **columns) -> JobRow:
    values = {"attempt": 1, "failures": 0, "max_attempts": 25}
    return JobRow(id=job_id, kind=kind, state=state, **values | columns)


def changed(rows: list, key: UUID, **columns) -> None:
    """Change the last row of a job in place."""
    names = ("id", "job")
    [*_, place] = [n for n, row in enumerate(rows) if key in (getattr(row, name, None) for name in names)]
    rows[place] = replace(rows[place], **columns)


def removed(rows: list, key: UUID) -> None:
    rows[:] = [row for row in rows if key not in (getattr(row, "id", None), getattr(row, "job", None))]


def dropped(evidence: Evidence, key: UUID) -> None:
    """Take a job out of all tables, as if it had never been."""
    for rows in (evidence.jobs, evidence.attempts, evidence.effects, evidence.actions):
        removed(rows, key)
    evidence.ledger[:] = [line for line in evidence.ledger if line[0] != key]


def test_of_a_good_run_nobody_complains() -> None:
    assert check(good()) == []


VIOLATIONS = {
    "accepted, and missing": (
        lambda e: dropped(e, QUICK),
        f"transaction 1 was committed, and its job {QUICK} is missing (1 of 3)",
    ),
    "rolled back, and there": (
        lambda e: e.jobs.append(job(GONE, "quick", "cancelled", attempt=0, cause=EXPIRED_CAUSE)),
        f"transaction 2 was rolled back, and its job {GONE} exists",
    ),
    "half a transaction": (lambda e: dropped(e, LATE), "transaction 3 is half there: 1 of 2 jobs exist"),
    "nobody's job": (
        lambda e: e.jobs.append(job(STRANGER, "quick", "cancelled", attempt=0)),
        f"job {STRANGER} exists, and no client tells of it",
    ),
    "never ended": (
        lambda e: changed(e.jobs, QUICK, state="ready"),
        "is ready: it has not ended",
    ),
    "a lease is left": (
        lambda e: changed(e.jobs, QUICK, state="running", leased=True, worker=ANN),
        f"is running, and still leased to {ANN}",
    ),
    "quarantined": (
        lambda e: changed(e.jobs, DEAD, state="quarantined"),
        "is quarantined, and every worker knows its name",
    ),
    "two rows for one attempt": (
        lambda e: e.attempts.append(e.attempts[1]),
        f"job {QUICK} (quick) has 2 rows for attempt 2",
    ),
    "a row for an attempt that never was": (
        lambda e: changed(e.jobs, QUICK, attempt=1),
        "has had 1 attempts, and a row for attempt 2",
    ),
    "an attempt number that fell": (
        lambda e: changed(e.jobs, QUICK, attempt=1),
        "has had 1 attempts, and attempt 2 has run",
    ),
    "a success without a row": (
        lambda e: changed(e.attempts, QUICK, outcome="released"),
        "has succeeded in attempt 2, and the history has successes []",
    ),
    "two successes": (
        lambda e: e.attempts.__setitem__(0, replace(e.attempts[0], outcome="succeeded")),
        "the history has successes [1, 2]",
    ),
    "a success that was overwritten": (
        lambda e: changed(e.attempts, DEAD, outcome="succeeded"),
        "is dead-lettered, and attempt 1 has succeeded",
    ),
    "failures that do not add up": (
        lambda e: changed(e.jobs, QUICK, failures=2),
        "counts 2 failures, and the history has 1",
    ),
    "dead too early": (
        lambda e: changed(e.jobs, QUICK, state="dead-lettered", cause="?"),
        "is dead-lettered after 1 of 25 failures: ?",
    ),
    "attempts of no job": (
        lambda e: e.attempts.append(AttemptRow(job=STRANGER, number=1, worker=ANN, outcome="failed")),
        f"job {STRANGER} does not exist, and has attempts",
    ),
    "a success that never began": (
        lambda e: removed(e.effects, LEDGER),
        f"attempt 1 of job {LEDGER} has succeeded, and its handler has never begun",
    ),
    "an attempt that ran twice": (
        lambda e: e.effects.append(replace(e.effects[1], at=105.0)),
        f"attempt 2 of job {QUICK} has begun 2 times",
    ),
    "two workers with one attempt": (
        lambda e: changed(e.effects, QUICK, pid=10),
        f"attempt 2 of job {QUICK} is {BEN}'s, and ran in process 10",
    ),
    "an effect of no job": (
        lambda e: e.effects.append(Effect(job=STRANGER, attempt=1, pid=10, at=1.0)),
        f"job {STRANGER} does not exist, and its handler has run",
    ),
    "an atomic effect twice": (
        lambda e: e.ledger.append((LEDGER, 1)),
        f"the ledger has 2 lines of attempt 1 of job {LEDGER}",
    ),
    "an atomic effect of a stale attempt": (
        lambda e: (
            e.ledger.append((LEDGER, 1)),
            changed(e.jobs, LEDGER, attempt=2),
            changed(e.attempts, LEDGER, number=2),
            changed(e.effects, LEDGER, attempt=2),
            e.ledger.append((LEDGER, 2)),
        ),
        f"the ledger has a line of attempt 1 of job {LEDGER}, which has not succeeded",
    ),
    "no atomic effect": (
        lambda e: e.ledger.clear(),
        f"attempt 1 of atomic job {LEDGER} has succeeded, and the ledger has no line of it",
    ),
    "cancelled by nobody": (
        lambda e: e.actions.clear(),
        f"job {CALLED_OFF} (slow) is cancelled, and nobody has asked for that",
    ),
    "expired without a date": (
        lambda e: changed(e.jobs, CALLED_OFF, cause=EXPIRED_CAUSE),
        f"job {CALLED_OFF} (slow) is cancelled, and nobody has asked for that: 'expired'",
    ),
    "cancelled at once, and alive": (
        lambda e: changed(e.jobs, CALLED_OFF, state="succeeded"),
        f"job {CALLED_OFF} (slow) was cancelled at once, and is succeeded",
    ),
    "asked to stop, and dead": (
        lambda e: e.actions.append(ActionRow(job=DEAD, verb="cancel", result="asked to stop", at=AT)),
        f"job {DEAD} (hopeless) is dead-lettered, after a cancel (asked to stop)",
    ),
    "cancelled, and begun later": (
        lambda e: e.attempts.append(
            AttemptRow(
                job=CALLED_OFF,
                number=1,
                worker=ANN,
                outcome="cancelled",
                started_at=AT + timedelta(seconds=1),
            )
        ),
        f"job {CALLED_OFF} (slow) was cancelled, and attempt 1 began later",
    ),
    "a worker that is stuck": (lambda e: e.ends.append("worker 1 is stuck"), "worker 1 is stuck"),
    "a worker that grows": (
        lambda e: e.peaks.update({10: MEMORY + 1}),
        f"process 10 of a worker has used {MEMORY + 1} MB, more than {MEMORY}",
    ),
}


@pytest.mark.parametrize(("violate", "complaint"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_each_violation_is_found(violate, complaint) -> None:
    evidence = good()
    violate(evidence)
    assert [each for each in check(evidence) if complaint in each], check(evidence)


def test_a_requeue_takes_a_cancel_back() -> None:
    evidence = good()
    evidence.actions.append(ActionRow(job=CALLED_OFF, verb="requeue", result="requeued", at=AT))
    changed(evidence.jobs, CALLED_OFF, state="succeeded", attempt=1)
    evidence.attempts.append(AttemptRow(job=CALLED_OFF, number=1, worker=ANN, outcome="succeeded"))
    evidence.effects.append(Effect(job=CALLED_OFF, attempt=1, pid=10, at=110.0))

    assert check(evidence) == []


def test_a_transaction_without_an_outcome_may_be_either_way_unless_it_meant_to_roll_back(tmp_path) -> None:
    file = tmp_path / "client-1.jsonl"
    one = [{"id": str(QUICK), "kind": "quick", "expires": False}]
    journals.append(file, begin=1, commit=True, jobs=one)
    journals.append(file, end=1, outcome="committed")
    journals.append(file, end=2, outcome="rolled back")  # it had no connection, and so no jobs
    journals.append(file, begin=3, commit=False, jobs=one)
    journals.append(file, end=3, outcome="rolled back")
    journals.append(file, begin=4, commit=False, jobs=one)
    with file.open("a") as torn:
        torn.write('{"end":4,"outc')

    found = {each.number: each.outcome for each in transactions(file)}
    assert found == {1: "committed", 3: "rolled back", 4: "rolled back"}

    journals.append(other := tmp_path / "client-2.jsonl", begin=1, commit=True, jobs=one)
    [killed] = transactions(other)
    assert (killed.client, killed.outcome, killed.jobs) == (
        "client-2",
        "unknown",
        (Enqueued(id=QUICK, kind="quick"),),
    )


def test_figures() -> None:
    evidence = good()
    assert recoveries(evidence, {10: 100.5}) == {QUICK: 2.5}

    told = str(figures(evidence, faults=["kill a child", "kill a child"], kills={10: 100.5}, stale=3))

    assert "committed 1, rolled back 1, unknown 1" in told
    assert "kill a child 2" in told
    assert "handlers begun             4" in told
    assert "whose attempt was lost   1" in told
    assert "stale reports refused      3" in told
    assert "longest recovery           2.5 s" in told
