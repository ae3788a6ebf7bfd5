"""Cancel and requeue from the admin: who may, what it did in words, and the record of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_backwave.backend import jobs_database
from django_backwave.core.protocol import CancelResult, RequeueResult
from django_backwave.models import Job
from django_backwave.store import operate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from enum import Enum
    from uuid import UUID

    from django.http import HttpRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that operators do to jobs.

    ``changes`` has, for each result that changed a job, the line for Django's log; ``single`` the sentence
    that tells the result to who asked for one job.
    """

    verb: str
    permission: str
    run: Callable[..., Mapping[UUID, Enum]]
    changes: Mapping[Enum, Any]
    single: Mapping[Enum, Any]

    def allowed(self, request: HttpRequest) -> bool:
        """Whether this user may do it."""
        return bool(request.user.has_perm(self.permission))


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
        RequeueResult.REQUEUED: gettext_lazy("The job was requeued: it is due now, with all its tries."),
        RequeueResult.NOT_REQUEUEABLE: gettext_lazy(
            "Nothing was changed: only dead-lettered, quarantined and cancelled jobs can be requeued."
        ),
    },
)

GONE = gettext_lazy("Nothing was changed: the job does not exist any more.")


def operate_on(request: HttpRequest, operation: Operation, job_ids: Sequence[UUID]) -> Mapping[UUID, Enum]:
    """Do it to these jobs, and write it into Django's log; return what it did to those that exist."""
    using = jobs_database()
    results = operation.run(job_ids, actor=actor_of(request), using=using)
    for result, line in operation.changes.items():
        changed = [job_id for job_id, its in results.items() if its is result]
        if changed:
            jobs = Job.objects.using(using).filter(pk__in=changed).only("pk", "name").order_by("pk")
            LogEntry.objects.log_actions(cast("int", request.user.pk), jobs, CHANGE, str(line))
    return results


def actor_of(request: HttpRequest) -> str:
    """Return who asks, as Action rows have it: the user's key and name."""
    return f"{request.user.pk} {request.user.get_username()}"


def tell_one(request: HttpRequest, operation: Operation, result: Enum | None) -> None:
    """Tell what was done to one job."""
    level = messages.SUCCESS if result in operation.changes else messages.WARNING
    messages.add_message(request, level, GONE if result is None else operation.single[result])


def tell_many(request: HttpRequest, operation: Operation, results: Iterable[Enum], *, selected: int) -> None:
    """Tell how many jobs met each result: "3 cancelled, 1 asked to stop, 2 already finished"."""
    counts = Counter(results)
    missing = selected - counts.total()
    parts = [_counted(result, counts[result]) for result in operation.single if counts[result]]
    if missing:
        parts.append(ngettext("%(count)d not found", "%(count)d not found", missing) % {"count": missing})
    changed = any(counts[result] for result in operation.changes)
    text = _(", ").join(parts)
    messages.add_message(request, messages.SUCCESS if changed else messages.WARNING, text)


def _counted(result: Enum, count: int) -> str:
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
    }
    return texts[result] % {"count": count}
