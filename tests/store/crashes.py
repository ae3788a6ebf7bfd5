"""Each transaction with more than one write: how it is prepared, and how it is run.

`test_failpoints.py` runs them in its own process, and in others that are killed within. As a program:

    python -m tests.store.crashes POINT PREPARED

runs one and kills itself at that failpoint.
"""

from __future__ import annotations

import base64
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transaction:
    """`prepare` gives what `run` is told; both happen at `NOW`."""

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]


def transactions() -> dict[str, Transaction]:
    """Return the transaction that passes each failpoint; Django must have been set up."""
    from django_backwave.core.outcome import Succeeded
    from django_backwave.models import Attempt, Job, Pause
    from django_backwave.store import keys, mark, operations, pause
    from django_backwave.store.adjust import run_now
    from django_backwave.store.again import run_again
    from django_backwave.store.atomic import Gate, completing
    from django_backwave.store.claim import claim
    from django_backwave.store.enqueue import insert_one
    from django_backwave.store.expire import expire
    from django_backwave.store.operate import cancel, requeue
    from django_backwave.store.release import release_unknown
    from django_backwave.store.retention import prune
    from tests.app.models import Entry
    from tests.factories import (
        FAILED,
        LEASE,
        NOW,
        SUCCEEDED,
        WORKER,
        after,
        claimed,
        lapsed,
        new_job,
        ready,
        report,
        send,
    )
    from tests.store.generations import one_to_forget, one_to_replace, one_to_run_again, one_to_send_back

    def complete(job):
        with completing(
            Gate(),
            job,
            worker=WORKER,
            report=lambda: report(job, Succeeded('"done"'), tags=(("shop", "north"),)),
            using="default",
            now=NOW,
        ):
            Entry.objects.create(key=str(job.job_id), value="")

    def many_attempts():
        job = claimed()
        Job.objects.filter(pk=job.job_id).update(attempt=120)
        job = job._replace(attempt=120)
        Attempt.objects.bulk_create(
            Attempt(job_id=job.job_id, number=n, worker=WORKER, outcome="failed", finished_at=NOW)
            for n in range(1, 120)
        )
        return job

    def ended():
        job = claimed(now=after(-9))
        mark.begin(job.key, "charge", worker=WORKER, using="default", now=after(-9))
        send(report(job), now=after(-9))
        return []

    def command(**changes):
        days = {"deadline": after(300), "known_until": after(86_700)}
        return operations.Command(new_job(), "digest", **days, plain=True)._replace(**changes)

    def two_alike():
        ready(queue="both")
        ready(queue="both", lease_seconds=5.0)
        return "both"

    def marked():
        job = claimed()
        mark.begin(job.key, "charge", worker=WORKER, using="default", now=NOW)
        return job

    again = Transaction(one_to_run_again, lambda job: keys.enqueue([job], using="default", now=NOW))
    take = Transaction(
        two_alike, lambda queue: claim(queue, 9, worker=WORKER, lease=LEASE, using="default", now=NOW)
    )
    settle = Transaction(
        lambda: [many_attempts(), claimed()],
        lambda jobs: send(report(jobs[0], FAILED, tags=(("shop", "north"),)), report(jobs[1], SUCCEEDED)),
    )
    completion = Transaction(many_attempts, complete)
    sweep = Transaction(
        lambda: [lapsed(max_attempts=1), lapsed()],
        lambda _: expire(jitter=lambda: 0.0, using="default", now=NOW),
    )
    release = Transaction(
        lambda: [claimed(), claimed()],
        lambda _: release_unknown([], worker=WORKER, using="default", now=NOW),
    )
    by_operator = {"actor": "me", "using": "default", "now": NOW}
    finish = Transaction(
        marked,
        lambda job: mark.finish(job.key, "charge", '"R-1"', worker=WORKER, using="default", now=NOW),
    )
    return {
        "claim: group taken": take,
        "settle: rows written": settle,
        "settle: history written": settle,
        "settle: tags written": settle,
        "complete: row written": completion,
        "complete: history written": completion,
        "complete: tags written": completion,
        "enqueue: row written": Transaction(
            lambda: new_job(tags=(("shop", "north"), ("", "urgent"))),
            lambda job: insert_one(job, using="default", now=NOW),
        ),
        "key: row locked": again,
        "key: generation noted": again,
        "replace: row written": Transaction(
            one_to_replace, lambda job: keys.enqueue([job], using="default", now=NOW)
        ),
        "forget: keys deleted": Transaction(one_to_forget, lambda _: keys.forget(using="default", now=NOW)),
        "expire: rows written": sweep,
        "expire: history written": sweep,
        "release: row written": release,
        "cancel: rows written": Transaction(
            lambda: [ready().pk, claimed().job_id], lambda ids: cancel(ids, **by_operator)
        ),
        "requeue: rows written": Transaction(
            lambda: list(cancel([ready().pk, ready().pk], using="default", now=NOW)),
            lambda ids: requeue(ids, **by_operator),
        ),
        "run again: jobs written": Transaction(one_to_send_back, lambda ids: run_again(ids, **by_operator)),
        "adjust: rows written": Transaction(
            lambda: [ready(run_after=after(99)).pk, ready(run_after=after(99)).pk],
            lambda ids: run_now(ids, **by_operator),
        ),
        "pause: row written": Transaction(
            lambda: None, lambda _: pause.pause(Pause.Kind.QUEUE, "mail", **by_operator)
        ),
        "resume: row deleted": Transaction(
            lambda: bool(pause.pause(Pause.Kind.QUEUE, "mail", using="default", now=NOW)),
            lambda _: pause.resume(Pause.Kind.QUEUE, "mail", **by_operator),
        ),
        "prune: jobs deleted": Transaction(
            ended, lambda _: prune(keep_done=1.0, keep_dead=1.0, using="default", now=NOW)
        ),
        "operation: recorded": Transaction(
            command, lambda given: operations.carry_out(given, using="default", now=NOW)
        ),
        "resolve: tombstone written": Transaction(
            command, lambda given: operations.resolve(given, timeout=9.0, using="default", now=NOW)
        ),
        "prune: operations deleted": Transaction(
            lambda: operations.carry_out(command(), using="default", now=NOW) and None,
            lambda _: operations.prune(using="default", now=after(99_999)),
        ),
        "once: row locked": Transaction(
            claimed, lambda job: mark.begin(job.key, "charge", worker=WORKER, using="default", now=NOW)
        ),
        "once: mark written": finish,
    }


def packed(value: Any) -> str:
    """Return a value as a word for a command line."""
    return base64.b64encode(pickle.dumps(value)).decode()


if __name__ == "__main__":
    import django

    django.setup()
    from django_backwave.store import failpoint

    failpoint.arm(sys.argv[1], lambda: os.kill(os.getpid(), signal.SIGKILL))
    transactions()[sys.argv[1]].run(pickle.loads(base64.b64decode(sys.argv[2])))  # noqa: S301 - our own
