"""What a job's page says: facts, the next run, the lease, attempts and what operators did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.translation import gettext as _

from django_backwave.admin import display
from django_backwave.admin.base import VIEW_PAYLOAD
from django_backwave.core.states import FAILURES, PENDING, REQUEUEABLE, UNFINISHED, AttemptOutcome, JobState
from django_backwave.models.action import Action
from django_backwave.models.pause import Pause
from django_backwave.notes import Progress, Word
from django_backwave.store import monitor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from django.utils.safestring import SafeString

    from django_backwave.models import Attempt, Job, Worker

Facts = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPart:
    """One attempt as the page shows it."""

    number: int
    badge: SafeString
    facts: Facts
    error_class: str
    message: Any
    traceback: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """All parts of the page, ready for the template."""

    state: SafeString
    next_run: str
    may_cancel: bool
    may_requeue: bool
    may_operate: bool
    due_input: str
    time_zone: str
    facts: Facts
    lease: Facts
    progress: Facts
    tags: Any
    arguments: Any
    headers: Any
    output: Any
    cause: Any
    attempts: list[AttemptPart]
    actions: list[tuple[Any, ...]] = field(default_factory=list)


def job_page(job: Job, *, now: datetime, secrets: bool, may: Mapping[str, bool], using: str) -> JobPage:
    """Read what else belongs to a job, and lay it out.

    Without ``secrets``, the permission to see payloads, neither arguments nor headers, tags, output, cause,
    messages and tracebacks are read from the database.
    """
    state = display.state_of(job)
    running, ready = state is JobState.RUNNING, state is JobState.READY
    attempts = monitor.history(job.pk, secrets=secrets, using=using)
    return JobPage(
        state=display.state_badge(job),
        next_run=next_run(
            job,
            now,
            monitor.live_workers(using=using) if ready else [],
            monitor.pauses_of(job.queue, job.name, using=using) if ready else [],
        ),
        may_cancel=may["cancel"] and state in UNFINISHED and job.cancel_requested_at is None,
        may_requeue=may["requeue"] and state in REQUEUEABLE,
        may_operate=may["operate"] and state in PENDING,
        due_input=display.for_input(job.due_at),
        time_zone=timezone.get_current_timezone_name(),
        facts=_facts(job, now),
        lease=_lease(job, now, using) if running else [],
        arguments=display.pretty(job.payload) if secrets else display.hidden(VIEW_PAYLOAD),
        progress=_progress(job, now, secrets=secrets),
        tags=display.tags(_words(job.pk, using)) if secrets else "",
        headers=display.pretty(job.headers) if secrets and job.headers else "",
        output=_output(job, secrets=secrets),
        cause=_secret(lambda: job.cause, secrets=secrets),
        attempts=[_attempt(attempt, now, secrets=secrets) for attempt in attempts],
        actions=[_action(action) for action in monitor.actions_on(job.pk, using=using)],
    )


def took(job: Any, now: datetime) -> SafeString:
    """Return how long the handler ran, or has been running; for a job that has not run, its age."""
    if display.state_of(job) is JobState.RUNNING or job.finished_at:
        end = job.finished_at or now
        if job.started_at:
            ran = display.duration(display.seconds_between(job.started_at, end))
            return display.two_lines(ran, _("ran") if job.finished_at else _("running"))
        return display.two_lines(display.NOTHING, _("did not start") if job.finished_at else _("starting"))
    age = display.duration(display.seconds_between(job.enqueued_at, now))
    return display.two_lines(age, _("old"))


def next_run(job: Job, now: datetime, workers: Sequence[Worker], pauses: Sequence[Pause] = ()) -> str:
    """Return when a job runs next, or why it does not."""
    state = display.state_of(job)
    if state is JobState.READY:
        return _next_ready_run(job, now, workers, pauses)
    if state is JobState.RUNNING:
        return _running(job, now)
    return {
        None: _("None: there is no such state. Somebody has written it by hand."),
        JobState.WAITING: _("When the jobs that it waits for have finished."),
        JobState.SUCCEEDED: _("None: it has succeeded."),
        JobState.CANCELLED: _("None: it was cancelled. It can be requeued."),
        JobState.DEAD_LETTERED: _("None: it was given up. It can be requeued."),
        JobState.QUARANTINED: _(
            "None: for too long no worker knew its name or could take its arguments, or its row could not be"
            " read. It can be requeued."
        ),
    }[state]


def _next_ready_run(job: Job, now: datetime, workers: Sequence[Worker], pauses: Sequence[Pause]) -> str:
    late = display.seconds_between(job.due_at, now)
    if late < 0:
        when = _("It is due in %(duration)s.") % {"duration": display.duration(-late)}
    else:
        when = _("It has been due for %(duration)s and runs as soon as a worker takes it.") % {
            "duration": display.duration(late)
        }
    return " ".join(filter(None, (when, *map(_paused, pauses), _obstacle(job, workers))))


def _paused(pause: Pause) -> str:
    text = _("Its queue is paused.") if pause.kind == Pause.Kind.QUEUE else _("Its job name is paused.")
    return text if not pause.actor else _("%(what)s By %(actor)s.") % {"what": text, "actor": pause.actor}


def _obstacle(job: Job, workers: Sequence[Worker]) -> str:
    """Return why no worker will take a job, as far as their rows tell."""
    if not workers:
        return _("No worker is alive.")
    here = [worker for worker in workers if worker.queues is None or job.queue in worker.queues]
    if not here:
        return _("No live worker serves the queue %(queue)s.") % {"queue": job.queue}
    if not any(job.name in worker.names for worker in here):
        return _("No live worker of its queue knows the name %(name)s.") % {"name": job.name}
    if job.unroutable_since is not None:
        return _("No worker could route it yet.")
    return ""


def _running(job: Job, now: datetime) -> str:
    if display.seconds_between(now, job.lease_expires_at or now) <= 0:
        return _("Its lease has lapsed; the next sweep of any worker decides whether it runs again.")
    if job.cancel_requested_at is not None:
        return _("It is running and was asked to stop. Unless it succeeds first, it ends cancelled.")
    return _("It is running now.")


def _facts(job: Job, now: datetime) -> Facts:
    lease, timeout = job.lease_seconds, job.timeout_seconds
    facts: Facts = [
        (_("Queue"), job.queue),
        (_("Priority"), job.priority),
        (_("Attempt"), job.attempt),
        (_("Failures"), display.failures(job)),
        (_("Enqueued"), display.instant_and_relative(job.enqueued_at, now)),
        (_("Due"), display.instant_and_relative(job.due_at, now)),
    ]
    moments = (
        (_("Expires"), job.expires_at),
        (_("Started"), job.started_at),
        (_("Finished"), job.finished_at),
        (_("Cancel requested"), job.cancel_requested_at),
        (_("Unroutable since"), job.unroutable_since),
    )
    facts += [(label, display.instant_and_relative(at, now)) for label, at in moments if at is not None]
    if job.started_at and job.finished_at:
        facts.append(
            (_("Ran for"), display.duration(display.seconds_between(job.started_at, job.finished_at)))
        )
    if job.schema is not None:
        facts.append((_("Schema"), job.schema))
    return [
        *facts,
        (_("Backoff"), display.backoff(job)),
        (_("Lease"), _("as the worker has it") if lease is None else display.duration(lease)),
        (_("Time-out"), _("none") if timeout is None else display.duration(timeout)),
    ]


def _progress(job: Job, now: datetime, *, secrets: bool) -> Facts:
    """Return what the handler last said of itself; its words are as secret as its output."""
    progress = Progress.read(job.progress)
    if progress is None:
        return []
    facts: Facts = [(_("Progress"), display.progress_bar(progress))]
    if progress.message:
        facts.append((_("It says"), progress.message if secrets else display.hidden(VIEW_PAYLOAD)))
    return [*facts, (_("As of"), display.instant_and_relative(progress.at, now))]


def _words(job_id: UUID, using: str) -> list[Word]:
    return sorted(Word(tag.key, tag.value) for tag in monitor.tags_of(job_id, using=using))


def _lease(job: Job, now: datetime, using: str) -> Facts:
    worker = monitor.workers_named([job.worker], using=using).get(job.worker)
    return [
        (_("Worker"), job.worker),
        (_("Worker seen"), seen(worker, now)),
        (_("Held until"), display.instant_and_relative(job.lease_expires_at, now)),
    ]


def seen(worker: Worker | None, now: datetime) -> SafeString | str:
    """Return when a worker was last heard of."""
    if worker is None:
        return display.badge(_("unknown"), "quiet")
    return display.instant_and_relative(worker.seen_at, now)


def _secret(read: Any, *, secrets: bool) -> Any:
    if not secrets:
        return display.hidden(VIEW_PAYLOAD)
    text = read()
    return display.block(text) if text else ""


def _output(job: Job, *, secrets: bool) -> Any:
    if display.state_of(job) is not JobState.SUCCEEDED:
        return ""
    return display.pretty(job.output) if secrets else display.hidden(VIEW_PAYLOAD)


def _attempt(attempt: Attempt, now: datetime, *, secrets: bool) -> AttemptPart:
    outcome = attempt.outcome
    tone = "good" if outcome == AttemptOutcome.SUCCEEDED else "bad" if outcome in FAILURES else "quiet"
    facts: Facts = [
        (_("Started"), display.instant(attempt.started_at)),
        (_("Ended"), display.instant_and_relative(attempt.finished_at, now)),
    ]
    if attempt.started_at:
        ran = display.seconds_between(attempt.started_at, attempt.finished_at)
        facts.append((_("Ran for"), display.duration(ran)))
    facts.append((_("Worker"), attempt.worker))
    told = bool(attempt.error_class) or outcome == AttemptOutcome.UNROUTABLE
    return AttemptPart(
        number=attempt.number,
        badge=display.badge(attempt.get_outcome_display(), tone),
        facts=facts,
        error_class=attempt.error_class,
        message=_secret(lambda: attempt.message, secrets=secrets) if told else "",
        traceback=display.block(attempt.traceback) if secrets and attempt.traceback else "",
    )


def _action(action: Action) -> tuple[Any, ...]:
    return (display.instant(action.at), action.actor, verb(action), result(action))


def verb(action: Action) -> str:
    """Return what was done, in the reader's language."""
    known = {
        "cancel": _("cancel"),
        "requeue": _("requeue"),
        "reschedule": _("reschedule"),
        "run_now": _("run now"),
        "run_again": _("run again"),
        "change": _("change"),
        "pause": _("pause"),
        "resume": _("resume"),
    }
    return known.get(action.verb, action.verb)


def result(action: Action) -> str:
    """Return what came of it, in the reader's language."""
    known = {
        "cancelled": _("cancelled"),
        "asked to stop": _("asked to stop"),
        "requeued": _("requeued"),
        "due now": _("due now"),
        "changed": _("changed"),
        "paused": _("paused"),
        "already paused": _("already paused"),
        "resumed": _("resumed"),
        "not paused": _("not paused"),
    }
    told = known.get(action.result, action.result)
    if action.job_id is not None and action.queue:
        return _("%(result)s, to the queue %(queue)s") % {"result": told, "queue": action.queue}
    return told
