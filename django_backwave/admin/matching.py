"""Cancel or requeue all that a list's filters match: a page says how many, and does it slice by slice.

A request does a few slices and then offers to go on, so that none runs into a time-out. What is done stays
done.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import BadRequest, PermissionDenied
from django.db import connections, transaction
from django.db.models import Q
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_backwave.admin.filters import STATES
from django_backwave.admin.operations import (
    CANCEL,
    REQUEUE,
    Operation,
    actor_of,
    counted,
    log,
    tell_counts,
)
from django_backwave.backend import jobs_database
from django_backwave.core.limits import NAME_LENGTH
from django_backwave.core.states import REQUEUEABLE
from django_backwave.models.job import STATE_LABELS
from django_backwave.store import matching as store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

    from django.http import HttpRequest, HttpResponse, QueryDict

    from django_backwave.admin.jobs import JobAdmin

#: What one request does at most: slices that change jobs, and looks at stretches where nothing matches.
SLICES, LOOKS = 5, 40

#: The filters that can be turned into a condition; with any other one in use nothing is offered.
KNOWN = ("state", "queue", "name")


def urls(model_admin: JobAdmin) -> list[Any]:
    """Return the pages' addresses. They come before those of jobs."""
    return [
        path(
            f"matching/{operation.verb}/",
            _slice_by_slice(
                model_admin.admin_site.admin_view(
                    partial(matching_view, model_admin=model_admin, operation=operation)
                )
            ),
            name=f"django_backwave_job_matching_{operation.verb}",
        )
        for operation in (CANCEL, REQUEUE)
    ]


def links(model_admin: JobAdmin, request: HttpRequest) -> list[tuple[str, str]]:
    """Return what to offer below a list, each with its address."""
    query = request.GET.copy()
    for name in ("before", "after", "_changelist_filters", "e"):
        query.pop(name, None)
    if not _understood(query):
        return []
    state = STATES.get(_given(query)[0])
    offers = (
        (CANCEL, _("Cancel all…"), state is None or not state.is_terminal),
        (REQUEUE, _("Requeue all…"), state is None or state in REQUEUEABLE),
    )
    return [
        (label, _address(model_admin, operation, query))
        for operation, label, fits in offers
        if fits and operation.allowed(request)
    ]


def matching_view(request: HttpRequest, model_admin: JobAdmin, operation: Operation) -> HttpResponse:
    """Ask on GET; on POST do some slices, and ask whether to go on until all is done."""
    if not (model_admin.has_view_permission(request) and operation.allowed(request)):
        raise PermissionDenied
    if not _understood(request.GET):
        raise BadRequest("The address holds a filter by which jobs cannot be dealt with all at once.")
    where = _condition(request.GET)
    if request.method != "POST":
        total = store.count(_doable(where, operation), using=jobs_database())
        return _page(request, model_admin, operation, total=total)
    counts, before = _so_far(request.POST, operation)
    before = _work(request, operation, where, counts, before)
    if before is not None:
        return _page(request, model_admin, operation, counts=counts, before=before)
    tell_counts(request, operation, counts, counted(operation, counts) or [_("Nothing matched.")])
    there = reverse("admin:django_backwave_job_changelist", current_app=model_admin.admin_site.name)
    query = request.GET.urlencode()
    return HttpResponseRedirect(f"{there}?{query}" if query else there)


def _work(
    request: HttpRequest, operation: Operation, where: Q, counts: Counter[Enum], before: UUID | None
) -> UUID | None:
    """Do what one request may do; return where the next one goes on, None if all is done."""
    actor, using = actor_of(request), jobs_database()
    slices = looks = 0
    while slices < SLICES and looks < LOOKS:
        if operation is CANCEL:
            step = store.cancel_step(where, before=before, actor=actor, using=using)
        else:
            reset = "keep_failures" not in request.POST
            step = store.requeue_step(where, before=before, reset_failures=reset, actor=actor, using=using)
        log(request, operation, step.results)
        counts += Counter(step.results.values())
        before = step.before
        if before is None:
            break
        slices += bool(step.results)
        looks += 1
    return before


def _page(
    request: HttpRequest,
    model_admin: JobAdmin,
    operation: Operation,
    *,
    total: store.Count | None = None,
    counts: Counter[Enum] | None = None,
    before: UUID | None = None,
) -> HttpResponse:
    cancelling = operation is CANCEL
    context = {
        **model_admin.admin_site.each_context(request),
        "title": _("Cancel all that match") if cancelling else _("Requeue all that match"),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "filters": _in_words(request.GET),
        "total": total and _total(total),
        "is_cancel": cancelling,
        "counts": _(", ").join(counted(operation, counts)) if counts else "",
        "hidden": {result.name: counts[result] for result in operation.single if counts[result]}
        if counts
        else {},
        "before": before,
        "keep_failures": "keep_failures" in request.POST,
        "back_query": request.GET.urlencode(),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/django_backwave/matching.html", context)


def _so_far(form: QueryDict, operation: Operation) -> tuple[Counter[Enum], UUID | None]:
    """Read what earlier requests have done."""
    try:
        counts = Counter({result: int(form.get(result.name) or 0) for result in operation.single})
        before = UUID(str(form["before"])) if form.get("before") else None
    except ValueError as error:
        raise BadRequest("The form does not say where to go on.") from error
    return counts, before


def _understood(query: QueryDict) -> bool:
    state, queue, name = _given(query)
    known = set(query) <= set(KNOWN) and (not state or state in STATES)
    return known and "\0" not in queue + name and len(name) <= NAME_LENGTH


def _condition(query: QueryDict) -> Q:
    state, queue, name = _given(query)
    where = Q(state=STATES[state].value) if state else Q()
    if queue:
        where &= Q(queue=queue)
    if name:
        where &= Q(name__contains=name)
    return where


def _given(query: QueryDict) -> list[str]:
    """Return what the known filters say, as the lists understand it."""
    return [str(query.get(name, "")).strip() for name in KNOWN]


def _doable(where: Q, operation: Operation) -> Q:
    return where & (store.CANCELLABLE if operation is CANCEL else store.REQUEUEABLES)


def _in_words(query: QueryDict) -> list[tuple[str, Any]]:
    state, queue, name = _given(query)
    words: Mapping[str, Any] = {
        _("State"): STATE_LABELS[STATES[state]] if state else "",
        _("Queue"): queue,
        _("Name contains"): name,
    }
    return [(label, value) for label, value in words.items() if value]


def _total(total: store.Count) -> str:
    number = f"{total.number:,}"
    if total.exact:
        return ngettext("%(number)s job", "%(number)s jobs", total.number) % {"number": number}
    return _("At least %(number)s jobs: counting ended at its bound") % {"number": number}


def _address(model_admin: JobAdmin, operation: Operation, query: QueryDict) -> str:
    name = f"admin:django_backwave_job_matching_{operation.verb}"
    url = reverse(name, current_app=model_admin.admin_site.name)
    return f"{url}?{query.urlencode()}" if query else url


def _slice_by_slice(view: Any) -> Any:
    """Let each slice be a transaction of its own, also under ATOMIC_REQUESTS."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view
