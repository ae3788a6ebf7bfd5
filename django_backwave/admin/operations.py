"""What operators do to jobs in the admin: who may, what it did in words, and the record of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_backwave import operations
from django_backwave.admin.display import NOTHING
from django_backwave.backend import jobs_database
from django_backwave.core.limits import QUEUE_LENGTH
from django_backwave.core.protocol import (
    CancelResult,
    ChangeResult,
    RequeueResult,
    RescheduleResult,
    RunAgain,
    RunAgainResult,
)
from django_backwave.models import Job
from django_backwave.store import adjust, operate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from enum import Enum
    from uuid import UUID

    from django.http import HttpRequest, QueryDict


#: What came of it for one job; where other jobs have a part in it, with them.
type Outcome = Enum | RunAgain


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that operators do to jobs.

    ``options`` reads from a form what it shall be done with. ``changes`` has, for each result that changed a
    job, the line for Django's log; ``single`` the sentence that tells the result to who asked for one job.
    """

    verb: str
    permission: str
    run: Callable[..., Mapping[UUID, Outcome]]
    changes: Mapping[Enum, Any]
    single: Mapping[Enum, Any]
    options: Callable[[QueryDict, Job], dict[str, Any]] = field(default=lambda _form, _job: {})

    def allowed(self, request: HttpRequest) -> bool:
        """Whether this user may do it."""
        return bool(request.user.has_perm(self.permission))


def _requeue_options(form: QueryDict, _job: Job) -> dict[str, Any]:
    return {"reset_failures": "keep_failures" not in form}


def _due_at(form: QueryDict, _job: Job) -> dict[str, Any]:
    # What browsers send of an <input type="datetime-local">, in the current time zone.
    due_at = forms.DateTimeField(input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
    return {"due_at": due_at.clean(form.get("due_at"))}


def _changes(form: QueryDict, job: Job) -> dict[str, Any]:
    priority = forms.IntegerField(min_value=-100, max_value=100).clean(form.get("priority"))
    queue = forms.CharField(max_length=QUEUE_LENGTH).clean(form.get("queue"))
    options = {
        name: value
        for name, value, old in (("priority", priority, job.priority), ("queue", queue, job.queue))
        if value != old
    }
    if not options:
        raise ValidationError(_("Nothing was changed: it has this priority and this queue."))
    return options


CANCEL = Operation(
    verb="cancel",
    permission="django_backwave.cancel_job",
    run=operate.cancel,
    changes={
        CancelResult.CANCELLED: gettext_lazy("Cancelled."),
        CancelResult.ASKED_TO_STOP: gettext_lazy("Asked to stop."),
    },
    single={
        CancelResult.CANCELLED: gettext_lazy("The job was cancelled. It had not started and will not run."),
        CancelResult.ASKED_TO_STOP: gettext_lazy(
            "The job is running and was asked to stop. Its handler learns of it at its worker's next "
            "heartbeat; unless it succeeds first, the job ends cancelled."
        ),
        CancelResult.ALREADY_FINISHED: gettext_lazy("Nothing was changed: the job had already finished."),
    },
)

REQUEUE = Operation(
    verb="requeue",
    permission="django_backwave.requeue_job",
    run=operate.requeue,
    changes={RequeueResult.REQUEUED: gettext_lazy("Requeued.")},
    single={
        RequeueResult.REQUEUED: gettext_lazy("The job was requeued: it is due now."),
        RequeueResult.NOT_REQUEUEABLE: gettext_lazy(
            "Nothing was changed: only dead-lettered, quarantined and cancelled jobs can be requeued."
        ),
        RequeueResult.KEY_BUSY: gettext_lazy(
            "Nothing was changed: another generation of the job's key is unfinished. Wait for that one, or "
            "cancel it first."
        ),
    },
    options=_requeue_options,
)

_RUNNING = gettext_lazy("Nothing was changed: the job is running already.")
_FINISHED = gettext_lazy("Nothing was changed: the job has finished.")
_NOT_RESCHEDULED: dict[Enum, Any] = {
    RescheduleResult.RUNNING: _RUNNING,
    RescheduleResult.ALREADY_FINISHED: _FINISHED,
}

#: What the rest of an operator's work needs: times, priorities, queues, pauses.
OPERATE = "django_backwave.operate_job"

RESCHEDULE = Operation(
    verb="reschedule",
    permission=OPERATE,
    run=adjust.reschedule,
    changes={RescheduleResult.RESCHEDULED: gettext_lazy("Rescheduled.")},
    single={
        RescheduleResult.RESCHEDULED: gettext_lazy("The job was rescheduled."),
        **_NOT_RESCHEDULED,
    },
    options=_due_at,
)

RUN_NOW = Operation(
    verb="run_now",
    permission=OPERATE,
    run=adjust.run_now,
    changes={RescheduleResult.RESCHEDULED: gettext_lazy("Made due now.")},
    single={
        RescheduleResult.RESCHEDULED: gettext_lazy("The job is due now."),
        **_NOT_RESCHEDULED,
    },
)

MOVE = Operation(
    verb="move",
    permission=OPERATE,
    run=adjust.change,
    changes={ChangeResult.CHANGED: gettext_lazy("Priority or queue changed.")},
    single={
        ChangeResult.CHANGED: gettext_lazy("The job's priority or queue was changed."),
        ChangeResult.RUNNING: _RUNNING,
        ChangeResult.ALREADY_FINISHED: _FINISHED,
        ChangeResult.KEYED: gettext_lazy(
            "Nothing was changed: the job has a key, which names work of its queue, and so its queue stays."
        ),
    },
    options=_changes,
)

RUN_AGAIN = Operation(
    verb="run_again",
    permission=REQUEUE.permission,
    run=operations.run_again,
    changes={RunAgainResult.ENQUEUED: gettext_lazy("Run again as a new generation.")},
    single={
        RunAgainResult.ENQUEUED: gettext_lazy("The same work was enqueued as generation {generation}: {job}"),
        RunAgainResult.NO_KEY: gettext_lazy(
            "Nothing was changed: the job has no key, and so there are no generations of it. Requeue it, or "
            "enqueue the work again."
        ),
        RunAgainResult.KEY_BUSY: gettext_lazy(
            "Nothing was changed: generation {generation} of the job's key is unfinished. Wait for it, or "
            "cancel it first: {job}"
        ),
        RunAgainResult.KEY_TAKEN: gettext_lazy(
            "Nothing was changed: the job's key belongs to jobs of another name by now: {job}"
        ),
    },
)

OPERATIONS = (CANCEL, REQUEUE, RESCHEDULE, RUN_NOW, MOVE, RUN_AGAIN)

GONE = gettext_lazy("Nothing was changed: the job does not exist any more.")


def operate_on(
    request: HttpRequest, operation: Operation, job_ids: Sequence[UUID], **options: Any
) -> Mapping[UUID, Outcome]:
    """Do it to these jobs, and write it into Django's log; return what it did to those that exist."""
    outcomes = operation.run(job_ids, actor=actor_of(request), using=jobs_database(), **options)
    log(request, operation, {job_id: _result(outcome) for job_id, outcome in outcomes.items()})
    return outcomes


def _result(outcome: Outcome) -> Enum:
    return outcome.result if isinstance(outcome, RunAgain) else outcome


def log(request: HttpRequest, operation: Operation, results: Mapping[UUID, Enum]) -> None:
    """Write a line into Django's log for each job that was changed."""
    using = jobs_database()
    for result, line in operation.changes.items():
        changed = [job_id for job_id, its in results.items() if its is result]
        if changed:
            jobs = Job.objects.using(using).filter(pk__in=changed).only("pk", "name").order_by("pk")
            LogEntry.objects.log_actions(cast("int", request.user.pk), jobs, CHANGE, str(line))


def actor_of(request: HttpRequest) -> str:
    """Return who asks, as Action rows have it: the user's key and name."""
    return f"{request.user.pk} {request.user.get_username()}"


def tell_one(request: HttpRequest, operation: Operation, outcome: Outcome | None, *, site: str) -> None:
    """Tell what was done to one job; what it names leads to pages of this site of the admin."""
    if outcome is None:
        messages.warning(request, GONE)
        return
    result = _result(outcome)
    level = messages.SUCCESS if result in operation.changes else messages.WARNING
    text = operation.single[result]
    text = _naming(text, outcome, site) if isinstance(outcome, RunAgain) else text
    messages.add_message(request, level, text)


def _naming(text: Any, outcome: RunAgain, site: str) -> str:
    """Return a sentence with the generation of which it tells."""
    job = NOTHING
    if outcome.job_id is not None:
        address = reverse("admin:django_backwave_job_change", args=[quote(outcome.job_id)], current_app=site)
        job = format_html('<a href="{}">{}</a>', address, outcome.job_id)
    return format_html(str(text), generation=outcome.generation, job=job)


def tell_many(
    request: HttpRequest, operation: Operation, outcomes: Iterable[Outcome], *, selected: int
) -> None:
    """Tell how many jobs met each result: "3 cancelled, 1 asked to stop, 2 already finished"."""
    counts = Counter(map(_result, outcomes))
    missing = selected - counts.total()
    parts = counted(operation, counts)
    if missing:
        parts.append(ngettext("%(count)d not found", "%(count)d not found", missing) % {"count": missing})
    tell_counts(request, operation, counts, parts)


def tell_counts(
    request: HttpRequest, operation: Operation, counts: Counter[Enum], parts: Sequence[str]
) -> None:
    """Show counts as a message, a warning if nothing was changed."""
    changed = any(counts[result] for result in operation.changes)
    level = messages.SUCCESS if changed else messages.WARNING
    messages.add_message(request, level, _(", ").join(parts))


def counted(operation: Operation, counts: Counter[Enum]) -> list[str]:
    """Return how many jobs met each result, in words."""
    return [_counted(result, counts[result]) for result in operation.single if counts[result]]


def _counted(result: Enum, count: int) -> str:
    busy = ngettext(
        "%(count)d whose key has an unfinished generation",
        "%(count)d whose keys have an unfinished generation",
        count,
    )
    texts: dict[Enum, str] = {
        CancelResult.CANCELLED: ngettext("%(count)d cancelled", "%(count)d cancelled", count),
        CancelResult.ASKED_TO_STOP: ngettext("%(count)d asked to stop", "%(count)d asked to stop", count),
        CancelResult.ALREADY_FINISHED: ngettext(
            "%(count)d already finished", "%(count)d already finished", count
        ),
        RequeueResult.REQUEUED: ngettext("%(count)d requeued", "%(count)d requeued", count),
        RequeueResult.NOT_REQUEUEABLE: ngettext(
            "%(count)d cannot be requeued", "%(count)d cannot be requeued", count
        ),
        RequeueResult.KEY_BUSY: busy,
        RunAgainResult.ENQUEUED: ngettext(
            "%(count)d run again as a new generation", "%(count)d run again as new generations", count
        ),
        RunAgainResult.NO_KEY: ngettext(
            "%(count)d without a key (requeue it, or enqueue the work again)",
            "%(count)d without a key (requeue them, or enqueue the work again)",
            count,
        ),
        RunAgainResult.KEY_BUSY: busy,
        RunAgainResult.KEY_TAKEN: ngettext(
            "%(count)d whose key belongs to jobs of another name by now",
            "%(count)d whose keys belong to jobs of other names by now",
            count,
        ),
    }
    return texts[result] % {"count": count}
