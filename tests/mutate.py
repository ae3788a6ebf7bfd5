"""Break the fence, the sweep, the claim, the claim ahead and the cancel on purpose, one condition at a time.

`make mutate` runs this: each mutant is a copy of the tree with one condition taken out of the store's source,
on one of the paths that have it. A test must turn red for each, or this ends with 1. A mutant whose text is
no longer found is a failure, too: somebody has changed the code, and has to change this list with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("django_backwave", "tests", "pyproject.toml", "README.md", "CHANGELOG.md")
PATIENCE = 240  # seconds for one mutant
SQLITE, POSTGRES = "sqlite", "postgres"


@dataclass(frozen=True)
class Mutant:
    """One condition taken out. `tests`: files below tests/store that shall notice."""

    name: str
    file: str
    old: str
    new: str
    database: str
    tests: tuple[str, ...] = ("test_fence", "test_mutation")


def _guard(condition: str, line: str, database: str = POSTGRES) -> Mutant:
    return Mutant(f"batch guard without {condition}", "store/fence.py", line, "", database)


FENCE = [
    _guard("worker", "    AND j.worker = %(worker)s\n"),
    _guard("attempt", "    AND j.attempt = v.attempt\n"),
    _guard("expiry", "    AND j.lease_expires_at > {{instant}}\n"),
    _guard("state", "    AND j.state + 0 = {JobState.RUNNING.value}\n"),
    Mutant(
        "queryset without worker",
        "models/lease.py",
        "self.filter(worker=worker, attempt=attempt)",
        "self.filter(attempt=attempt)",
        SQLITE,
    ),
    Mutant(
        "queryset without attempt",
        "models/lease.py",
        "self.filter(worker=worker, attempt=attempt)",
        "self.filter(worker=worker)",
        SQLITE,
    ),
    Mutant(
        "queryset without expiry",
        "models/lease.py",
        "self.filter(lease_expires_at__gt=now)",
        "self.all()",
        SQLITE,
    ),
    Mutant(
        "queryset without state",
        "models/lease.py",
        "queryset.filter(state=JobState.RUNNING.value)",
        "queryset",
        SQLITE,
    ),
    Mutant(
        "settle past the fence",
        "store/settle.py",
        "leases = fence.held([entry.key.job_id for entry in group], attempt, worker, using=using, now=now)",
        "leases = Lease.objects.using(using).of([entry.key.job_id for entry in group])",
        SQLITE,
    ),
    Mutant(
        "heartbeat past the fence",
        "store/heartbeat.py",
        "fence.held([job_id], attempt, worker, using=using, now=now)",
        "Lease.objects.using(using).of([job_id])",
        SQLITE,
        ("test_fence", "test_heartbeat", "test_mutation"),
    ),
    Mutant(
        "release past the fence",
        "store/release.py",
        "fence.held([key.job_id], key.attempt, worker, using=using, now=now)",
        "Lease.objects.using(using).of([key.job_id])",
        SQLITE,
        ("test_fence", "test_release", "test_mutation"),
    ),
]

SWEEP = [
    Mutant(
        f"sweep without {condition}",
        "store/expire.py",
        "leases.held_by(lease.worker, lease.attempt).expired(at)",
        new,
        SQLITE,
        ("test_expire", "test_fence"),
    )
    for condition, new in (
        ("worker", "leases.filter(attempt=lease.attempt).expired(at)"),
        ("attempt", "leases.held_by(lease.worker).expired(at)"),
        ("expiry", "leases.held_by(lease.worker, lease.attempt)"),
    )
]

_IN_TIME = "AND j.due_at <= {statement} AND COALESCE(j.expires_at > {statement}, true)"

CLAIM = [
    Mutant(f"claim {name}", "store/postgres.py", old, new, POSTGRES, ("test_claim",))
    for name, old, new in (
        (
            "of another queue",
            "j.queue = {queue} AND j.priority = level.priority",
            "j.priority = level.priority",
        ),
        ("before it is due", "AND j.due_at <= {statement}", ""),
        ("that waits for locked rows", "FOR NO KEY UPDATE SKIP LOCKED) due", "FOR NO KEY UPDATE) due"),
        ("without a lock", "FOR NO KEY UPDATE SKIP LOCKED) due", ") due"),
        ("without an attempt", "ELSE j.attempt + 1 END", "ELSE j.attempt END"),
    )
] + [
    Mutant(f"claim {name}", "store/claim.py", old, new, SQLITE, ("test_claim",))
    for name, old, new in (
        (
            "of another queue, portable",
            "queue=queue, priority=priority, due_at__lte=at",
            "priority=priority, due_at__lte=at",
        ),
        (
            "before it is due, portable",
            "queue=queue, priority=priority, due_at__lte=at",
            "queue=queue, priority=priority",
        ),
        ("without an attempt, portable", "attempt=attempt + 1,\n", "attempt=attempt,\n"),
        ("of what a rival took, portable", ".filter(pk__in=ids, attempt=attempt)", ".filter(pk__in=ids)"),
    )
]

EXPIRY = [
    Mutant(f"claim {name}", file, old, new, database, ("test_lateness",))
    for name, file, old, new, database in (
        (
            "of expired jobs",
            "store/postgres.py",
            "COALESCE(j.expires_at <= {statement}, false) AS late",
            "false AS late",
            POSTGRES,
        ),
        (
            "that counts an expired job's attempt",
            "store/postgres.py",
            "CASE WHEN pick.late THEN j.attempt ELSE j.attempt + 1 END",
            "j.attempt + 1",
            POSTGRES,
        ),
        (
            "that steps over expired jobs",
            "store/postgres.py",
            "AND j.due_at <= {statement}",
            _IN_TIME,
            POSTGRES,
        ),
        (
            "of expired jobs, portable",
            "store/claim.py",
            "if pick.expires_at and to_utc(pick.expires_at) <= at]",
            "if at is None]",
            SQLITE,
        ),
    )
] + [
    Mutant(f"expiry {name}", file, old, new, SQLITE, ("test_lateness",))
    for name, file, old, new in (
        (
            "of jobs still in time",
            "store/expire.py",
            "filter(state=state, expires_at__lte=clock.statement(using, now))",
            "filter(state=state)",
        ),
        (
            "of finished jobs",
            "store/claim.py",
            "jobs.filter(state__in=PENDING).update",
            "jobs.update",
        ),
        ("of what waits only", "store/expire.py", "(JobState.READY.value, JobState.WAITING.value)", "(0,)"),
    )
]

CANCEL = [
    Mutant(
        "cancel that a failure forgets",
        "store/postgres.py",
        "SELECT j.cancel_requested_at IS NOT NULL AND v.state <> {_SUCCEEDED} AS cancelled",
        "SELECT false AS cancelled",
        POSTGRES,
        ("test_settle",),
    ),
    Mutant(
        "cancel that a success loses to",
        "store/postgres.py",
        "SELECT j.cancel_requested_at IS NOT NULL AND v.state <> {_SUCCEEDED} AS cancelled",
        "SELECT j.cancel_requested_at IS NOT NULL AS cancelled",
        POSTGRES,
        ("test_settle",),
    ),
    Mutant(
        "cancel that a failure forgets, portable",
        "store/settle.py",
        "entry if cancels[entry.key.job_id] is None else _under_cancel(entry)",
        "entry",
        SQLITE,
        ("test_settle",),
    ),
    Mutant(
        "cancel that the sweep forgets",
        "store/expire.py",
        "if not lease.cancelled:",
        "if True:",
        SQLITE,
        ("test_expire",),
    ),
    Mutant(
        "cancel of a finished job",
        "store/operate.py",
        "filter(pk__in=states, state__in=UNFINISHED)",
        "filter(pk__in=states)",
        SQLITE,
        ("test_operate",),
    ),
]

OPERATE = [
    Mutant(
        "change of a job that runs or has ended",
        "store/adjust.py",
        "filter(pk__in=states, state__in=PENDING)",
        "filter(pk__in=states)",
        SQLITE,
        ("test_adjust",),
    ),
    Mutant(
        "requeue of a job that may not be",
        "store/operate.py",
        "filter(pk__in=going, state__in=_REQUEUEABLE)",
        "filter(pk__in=going)",
        SQLITE,
        ("test_operate",),
    ),
    Mutant(
        "slice that does not check its filter again",
        "store/operate.py",
        "filter(matching or Q(), pk__in=list(job_ids))",
        "filter(pk__in=list(job_ids))",
        SQLITE,
        ("test_matching",),
    ),
    Mutant(
        "claim of a paused name",
        "store/aside.py",
        "\n    AND j.name <> ALL(%(without)s::varchar[])",
        "",
        POSTGRES,
        ("test_pause",),
    ),
    Mutant(
        "claim of a paused name, portable",
        "store/aside.py",
        ".exclude(name__in=self.names)",
        "",
        SQLITE,
        ("test_pause",),
    ),
    Mutant(
        "claim that looks for ever at the same window",
        "store/aside.py",
        "for part in _parts(due, window.after, window.end):",
        "for part in (due,):",
        SQLITE,
        ("test_pause",),
    ),
    Mutant(
        "window that steps over what is due later",
        "store/aside.py",
        "filter(priority=priority, due_at__lte=clock.statement(using, now))",
        "filter(priority=priority)",
        SQLITE,
        ("test_pause",),
    ),
]

_TURN = ("test_turn",)

AHEAD = [
    Mutant(
        "lease that ends unheard",
        "core/holding.py",
        "self._none_lapses_before = min(self._none_lapses_before, held.lease_ends)",
        "pass",
        SQLITE,
        ("../core/test_ahead",),
    ),
    Mutant(
        "cancel that is told as a success",
        "store/postgres.py",
        "THEN -place ELSE place END",
        "THEN place ELSE place END",
        POSTGRES,
        ("test_settle",),
    ),
    Mutant(
        "claim ahead of more who may not wait than there are slots",
        "store/postgres.py",
        "WHERE late OR may_wait OR nth <= %(slots)s",
        "WHERE late OR may_wait OR nth <= %(slots)s + 1",
        POSTGRES,
        _TURN,
    ),
    Mutant(
        "claim ahead that counts everybody for a slot",
        "store/postgres.py",
        "count(*) FILTER (WHERE NOT (late OR may_wait))",
        "count(*)",
        POSTGRES,
        _TURN,
    ),
    Mutant(
        "claim ahead that counts no running number",
        "store/postgres.py",
        "OVER (ROWS UNBOUNDED PRECEDING)",
        "OVER ()",
        POSTGRES,
        _TURN,
    ),
    *(
        Mutant(f"claim ahead of {name}", "store/postgres.py", old, new, POSTGRES, _TURN)
        for name, old, new in (
            ("a job with failures", "j.failures = 0 AND j.max_attempts > 1", "j.max_attempts > 1"),
            ("a job in its last attempt", "j.failures = 0 AND j.max_attempts > 1", "j.failures = 0"),
            ("a job with a time to start", " AND j.expires_at IS NULL", ""),
        )
    ),
    *(
        Mutant(f"claim ahead of {name}, portable", "store/claim.py", old, new, SQLITE, _TURN)
        for name, old, new in (
            ("more who may not wait than there are slots", "soon[order.slots :]", "soon[order.slots + 1 :]"),
            ("nobody who may not wait", "soon[order.slots :]", "soon"),
            ("a job with failures", "failures == 0 and max_attempts > 1", "max_attempts > 1"),
            ("a job in its last attempt", "failures == 0 and max_attempts > 1", "failures == 0"),
            ("a job with a time to start", " and expires_at is None", ""),
        )
    ),
    *(
        Mutant(f"watermark {name}", "store/postgres.py", old, new, POSTGRES, _TURN)
        for name, old, new in (
            (
                "that claims its own job again",
                "AND (j.due_at, j.id) > (COALESCE(past",
                "AND (j.due_at, j.id) >= (COALESCE(past",
            ),
            ("of another priority", "ON past.priority = level.priority", "ON true"),
            (
                "by instants alone",
                "COALESCE(past.id, '00000000-0000-0000-0000-000000000000')",
                "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            ),
            ("that is ignored", "past=order.among is None and bool(order.past)", "past=False"),
            (
                "while names are left alone",
                "past=order.among is None and bool(order.past)",
                "past=bool(order.past)",
            ),
        )
    ),
    Mutant(
        "turn that settles nothing",
        "store/settle.py",
        "answer = postgres.run(entries, looked,",
        "answer = postgres.run([], looked,",
        POSTGRES,
        _TURN,
    ),
    Mutant(
        "batch guard that the index of leases serves",
        "store/fence.py",
        "AND j.state + 0 = {",
        "AND j.state = {",
        POSTGRES,
        ("test_plans_turn",),
    ),
    *(
        Mutant(name, file, old, new, SQLITE, ("../core/test_ahead", "../worker/test_slots"))
        for name, file, old, new in (
            (
                "withdrawal of what has begun",
                "worker/slots.py",
                "waiting = list(self._waiting)",
                "waiting = []",
            ),
            (
                "withdrawal that leaves what it takes",
                "worker/slots.py",
                "for execution in waiting if execution.job.key not in keys)",
                "for execution in waiting)",
            ),
            (
                "withdrawal that counts for max_jobs",
                "core/driver.py",
                "self._started -= len(reports)",
                "pass",
            ),
            (
                "withdrawal upon withdrawal",
                "core/driver.py",
                "if not self._waiting or self._withdrawing or not among:",
                "if not self._waiting or not among:",
            ),
            (
                "claims during a withdrawal",
                "core/driver.py",
                "if self._withdrawing or not self._pauses.known:",
                "if not self._pauses.known:",
            ),
            (
                "slots for those who wait",
                "core/driver.py",
                "slots = min(room, max(0, self.options.concurrency - self._held.busy))",
                "slots = room",
            ),
            (
                "starts of those who may wait first",
                "core/driver.py",
                "key=lambda job: job.may_wait)",
                "key=lambda job: not job.may_wait)",
            ),
        )
    ),
]

IDENTITY = [
    Mutant(
        "key that is not held while it waits",
        "store/keys.py",
        "if _hold(plan.held, using):",
        "if True:",
        POSTGRES,
        ("test_keys_races",),
    ),
    Mutant(
        "requeue beside an unfinished generation",
        "store/keys.py",
        "        if job.key_id in busy:\n            refused.add(job.pk)\n        elif",
        "        if",
        SQLITE,
        ("test_keys",),
    ),
    Mutant(
        "prune that does not tell the key",
        "store/keys.py",
        "            row.settled_as = job.state\n",
        "",
        SQLITE,
        ("test_keys",),
    ),
    Mutant(
        "prepared enqueue after its deadline",
        "store/operations.py",
        "            if at > command.deadline:\n                return _too_late(command, using)\n",
        "",
        SQLITE,
        ("test_operations_door",),
    ),
    Mutant(
        "prepared enqueue of other work",
        "store/operations.py",
        "_landed(command, _checked(command, row), using)",
        "_landed(command, row, using)",
        SQLITE,
        ("test_operations_door",),
    ),
    Mutant(
        "verdict without a fence of the job's id",
        "store/operations.py",
        "if command.plain and not _insert_unless_there(_barrier(command.job, at), using):",
        "if False:",
        SQLITE,
        ("test_operations_door",),
    ),
]

MUTANTS = [*FENCE, *SWEEP, *CLAIM, *EXPIRY, *CANCEL, *OPERATE, *AHEAD, *IDENTITY]


def run(mutant: Mutant) -> str:
    """Return "killed", or what is wrong."""
    with tempfile.TemporaryDirectory(prefix="backwave-mutant-") as folder:
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, Path(folder) / name)
        path = Path(folder) / "django_backwave" / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return f"its text stands {text.count(mutant.old)} times in {mutant.file}, not once"
        path.write_text(text.replace(mutant.old, mutant.new))
        return _verdict(_pytest(mutant, folder))


def _pytest(mutant: Mutant, folder: str) -> int | None:
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
        "-o", "faulthandler_timeout=60", *(f"tests/store/{name}.py" for name in mutant.tests),
    ]  # fmt: skip
    environment = {**os.environ, "BACKWAVE_TEST_DATABASE": mutant.database, "PYTHONPATH": folder}
    environment.pop("BACKWAVE_TEST_FOLDER", None)
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def _verdict(code: int | None) -> str:
    if code == 0:
        return "SURVIVED: no test noticed"
    # 1: tests failed. A hang is red as well: faulthandler or the time-out ends it.
    return "killed" if code in (1, None) or code < 0 else f"pytest could not run: exit code {code}"


def main() -> int:
    """Run all mutants, or those whose name has one of the words given."""
    words = sys.argv[1:]
    chosen = [one for one in MUTANTS if not words or any(word in one.name for word in words)]
    if not chosen:
        print("No mutant has such a name.", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        verdicts = list(pool.map(run, chosen))
    for mutant, verdict in zip(chosen, verdicts, strict=True):
        print(f"{mutant.name:45} {mutant.database:9} {verdict}")
    alive = sum(verdict != "killed" for verdict in verdicts)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
