"""What an enqueue with a key came to, as users see it: the results of generations, and what is in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave import results
from django_backwave.core.identity import Verdict
from django_backwave.exceptions import DuplicateKey, KeyBusy
from django_backwave.payload import shown
from django_backwave.store import generations, monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_backwave.backend import BackWaveBackend
    from django_backwave.compat import AnyTask
    from django_backwave.exceptions import KeyConflict
    from django_backwave.outcome import Receipt
    from django_backwave.results import JobResult
    from django_backwave.store.enqueue import NewJob
    from django_backwave.store.keys import Landed, Refused

#: Of these an enqueue is told: it has written what is to be done.
WRITTEN = (Verdict.NEW, Verdict.REPLACE)

#: What a generation must be like that does not admit an enqueue, by its on_conflict.
_ADMITTED = {"new_generation": "is settled", "replace": "has never started"}


def results_of(
    backend: BackWaveBackend,
    task: AnyTask,
    new: Sequence[NewJob],
    landed: Sequence[Landed],
    receipt: Receipt | None = None,
    *,
    read: bool = False,
    using: str,
) -> list[JobResult]:
    """Return the result of the generation to which each enqueue has led.

    ``read``: also those that are new may have come further already.
    """
    # What one call has begun, a later one of the same batch may have replaced.
    existing = {end.job_id for end in landed if read or end.verdict is not Verdict.NEW}
    rows = monitor.find_all(existing, using=using) if existing else {}
    found = []
    for job, end in zip(new, landed, strict=True):
        created = end.verdict is Verdict.NEW
        if end.job_id in rows:
            found.append(results.of_row(rows[end.job_id], backend, created=created))
        elif created and not read:
            own = job._replace(generation=end.generation)
            found.append(results.Enqueued(task, [own], end.enqueued_at, backend=backend.alias)[0])
        else:
            found.append(results.of_pruned(job, end, backend=backend.alias))
        results.give_receipt(found[-1], receipt)
    return found


def conflict(
    backend: BackWaveBackend, task: AnyTask, new: Sequence[NewJob], refused: Refused, *, using: str
) -> KeyConflict:
    """Return why a key does not admit an enqueue."""
    job, landed = new[refused.number], refused.landed
    where = f"Key {shown(job.key)} of queue {job.queue!r}"
    asked = "" if job.intent is None else job.intent.on_conflict.value
    if refused.earlier is not None:
        kind = KeyBusy if landed.verdict is Verdict.BUSY else DuplicateKey
        told = f"is that of number {refused.earlier}, too, and on_conflict={asked!r} admits one of them."
        return kind(f"{where} {told} Nothing was enqueued.", None)
    [result] = results_of(backend, task, [job], [landed], using=using)
    if landed.verdict is Verdict.TAKEN:
        return DuplicateKey(
            f"{where} belongs to jobs named {landed.name!r}, and one named {job.name!r} was to be "
            "enqueued. Give it another key, or another queue.",
            result,
        )
    there = f"{where} has generation {landed.generation}, {result.state.label}: job {landed.job_id}"
    if landed.verdict is Verdict.BUSY:
        return KeyBusy(
            f"{there}. on_conflict={asked!r} needs one that {_ADMITTED[asked]}. The error's result is "
            "that job's.",
            result,
        )
    return DuplicateKey(
        f"{there}. on_conflict={asked!r} admits no second one. The error's result is that job's; "
        "another run of the same work is on_conflict='new_generation'.",
        result,
    )


def busy(backend: BackWaveBackend, job_id: str, *, using: str) -> KeyBusy:
    """Return why a job cannot be sent back. Raises TaskResultDoesNotExist if it has been pruned meanwhile."""
    job = backend.get_result(job_id)
    row = generations.unfinished(job.task.queue_name, job.key or "", using=using)
    other = job if row is None else backend.get_result(str(row.pk))
    return KeyBusy(
        f"Job {job.id} is generation {job.generation} of key {shown(job.key)} of queue "
        f"{job.task.queue_name!r}, and generation {other.generation} of it is {other.state.label}. Wait "
        "for that one, or cancel it, before you requeue another.",
        other,
    )
