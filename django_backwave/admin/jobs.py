"""The jobs: a list by state, queue and name; a page for each; cancel and requeue."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_POPUP_VAR, TO_FIELD_VAR
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import Q
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext_lazy as _

from django_backwave.admin import display, keyed, matching, page
from django_backwave.admin.base import VIEW_PAYLOAD, ReadOnlyAdmin
from django_backwave.admin.filters import (
    STATES,
    KeyFilter,
    NameFilter,
    QueueFilter,
    StateFilter,
    TagFilter,
    jobs_keyed,
    jobs_tagged,
)
from django_backwave.admin.operations import (
    CANCEL,
    OPERATE,
    OPERATIONS,
    REQUEUE,
    RUN_AGAIN,
    Operation,
    operate_on,
    tell_many,
    tell_one,
)
from django_backwave.admin.paging import Walk
from django_backwave.backend import jobs_database
from django_backwave.core.states import JobState
from django_backwave.models import Job
from django_backwave.store import monitor

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

#: Columns that need ``view_payload``; they may be large, too, and no list reads them.
_SECRET = ("payload", "output", "cause", "headers")

#: More pairs of queue and priority than this are not merged into one list of ready jobs.
MOST_LANES = 60


@admin.action(permissions=["cancel"], description=_("Cancel selected jobs"))
def cancel_selected(model_admin: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> None:
    """Cancel the jobs that were ticked."""
    model_admin.operate_on_selected(request, CANCEL)


@admin.action(permissions=["requeue"], description=_("Requeue selected jobs"))
def requeue_selected(model_admin: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> None:
    """Requeue the jobs that were ticked."""
    model_admin.operate_on_selected(request, REQUEUE)


@admin.action(permissions=["requeue"], description=_("Run selected jobs again as new generations"))
def run_again_selected(model_admin: JobAdmin, request: HttpRequest, queryset: QuerySet[Job]) -> None:
    """Run the jobs again that were ticked."""
    model_admin.operate_on_selected(request, RUN_AGAIN)


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Shows jobs; changes them through the store's doors for operators only."""

    list_display = ("short_id", "name_column", "state_column", "queue_column", "tries", "when", "took")
    list_display_links = ("short_id",)
    list_filter = (StateFilter, QueueFilter, NameFilter, KeyFilter)
    list_defer = _SECRET
    search_fields = ("id__exact",)
    search_help_text = _("A job's whole id.")
    actions = (cancel_selected, requeue_selected, run_again_selected)
    change_form_template = "admin/django_backwave/job.html"

    # The list.

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Leave secrets in the database for users who may not see them."""
        jobs = super().get_queryset(request)
        return jobs if request.user.has_perm(VIEW_PAYLOAD) else jobs.defer(*_SECRET)

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Offer tags to those who may see them."""
        return (*self.list_filter, TagFilter) if request.user.has_perm(VIEW_PAYLOAD) else self.list_filter

    def get_walk(self, values: dict[str, str | None]) -> Walk:
        """Return the way that the existing indexes serve; what they do not serve is looked for in a window.

        All jobs: newest first. Ended ones: last ended first. Running ones: first to lose their lease first.
        Ready ones: first due first, merged from one lane for each queue and priority. With a tag or a key:
        newest first.
        """
        state = STATES.get(values.get("state") or "")
        queue, name = values.get("queue"), values.get("name")
        rest = Q(name__contains=name) if name else Q()
        if (few := _few(values)) is not None:
            # Whatever else is asked for is looked for among all of them.
            rest &= Q(queue=queue) if queue else Q()
            rest &= Q() if state is None else Q(state=state.value)
            return Walk(lanes=(Q(pk__in=few) & rest,))
        if state is JobState.READY:
            lanes = monitor.ready_lanes(queue=queue, limit=MOST_LANES + 1, using=jobs_database())
            if len(lanes) <= MOST_LANES:
                ready = (Q(state=state.value, queue=queue, priority=priority) for queue, priority in lanes)
                return Walk(key="due_at", descending=False, lanes=tuple(ready), rest=rest)
        if queue:
            rest &= Q(queue=queue)
        if state is JobState.RUNNING:
            held = Q(state=state.value)
            return Walk(key="lease_expires_at", descending=False, lanes=(held,), rest=rest)
        if state is not None and state.is_terminal:
            ended = Q(state=state.value, finished_at__isnull=False)
            return Walk(key="finished_at", lanes=(ended,), rest=rest)
        return Walk(rest=rest if state is None else rest & Q(state=state.value))

    @admin.display(description=_("id"))
    def short_id(self, job: Job) -> SafeString:
        """The id's end, with the generation below if the job has a key."""
        job_id = display.short_id(job.pk)
        if job.generation is None:
            return job_id
        return display.two_lines(job_id, _("generation %(number)s") % {"number": job.generation})

    @admin.display(description=_("name"))
    def name_column(self, job: Job) -> SafeString:
        """The function's name, with its module below."""
        return display.job_name(job.name)

    @admin.display(description=_("queue"))
    def queue_column(self, job: Job) -> str:
        """The queue."""
        return str(job.queue)

    @admin.display(description=_("state"))
    def state_column(self, job: Job) -> SafeString:
        """The state in a coloured pill."""
        return display.state_badge(job, bar=True)

    @admin.display(description=_("attempt"))
    def tries(self, job: Job) -> SafeString:
        """The attempt's number, and the failures of the most that are allowed."""
        failed = _("%(failures)d/%(most)d failed") % {"failures": job.failures, "most": job.max_attempts}
        return display.two_lines(job.attempt, failed)

    @admin.display(description=_("due or finished"))
    def when(self, job: Any) -> SafeString:
        """When the job ended; before that, when it is or was due."""
        return display.when(job.finished_at or job.due_at, job.read_at)

    @admin.display(description=_("took or waits"))
    def took(self, job: Any) -> SafeString:
        """How long the handler ran, or how old the job is if it has not run."""
        return page.took(job, job.read_at)

    # Cancel and requeue.

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the user may cancel."""
        return CANCEL.allowed(request)

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        """Whether the user may requeue."""
        return REQUEUE.allowed(request)

    def operate_on_selected(self, request: HttpRequest, operation: Operation) -> None:
        """Do it to the rows that were ticked: never to "all that match", nor less because one moved on."""
        selected = _selected(request)
        visible = self.get_queryset(request).filter(pk__in=selected).values_list("pk", flat=True)
        results = operate_on(request, operation, sorted(visible.order_by()))
        tell_many(request, operation, results.values(), selected=len(selected))

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Job], *args: Any, **options: Any
    ) -> Any:
        """Refuse what is no id before Django builds a query of it."""
        _selected(request)
        return super().response_action(request, queryset, *args, **options)

    def get_urls(self) -> list[Any]:
        """Add the buttons' addresses, and those of what is done to all that match."""
        buttons = [
            path(
                f"<path:object_id>/{operation.verb}/",
                self.admin_site.admin_view(partial(self.operation_view, operation=operation)),
                name=f"django_backwave_job_{operation.verb}",
            )
            for operation in OPERATIONS
        ]
        return [*matching.urls(self), *buttons, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Offer to deal with all that match, where that can be said by what it is filtered by."""
        links = matching.links(self, request)
        return super().changelist_view(request, {"matching_links": links, **(extra_context or {})})

    def operation_view(self, request: HttpRequest, object_id: str, operation: Operation) -> HttpResponse:
        """Do it to one job on POST, then show that job; a GET, as after a new login, only shows it."""
        if not (self.has_view_permission(request) and operation.allowed(request)):
            raise PermissionDenied
        job = self.get_object(request, unquote(object_id))
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        if request.method == "POST":
            self._operate(request, operation, job)
        there = reverse(
            "admin:django_backwave_job_change", args=[quote(job.pk)], current_app=self.admin_site.name
        )
        query = request.GET.urlencode()
        return HttpResponseRedirect(f"{there}?{query}" if query else there)

    def _operate(self, request: HttpRequest, operation: Operation, job: Job) -> None:
        try:
            options = operation.options(request.POST, job)
        except ValidationError as error:
            self.message_user(request, " ".join(error.messages), messages.ERROR)
            return
        results = operate_on(request, operation, [job.pk], **options)
        tell_one(request, operation, results.get(job.pk), site=self.admin_site.name)

    # A job's page.

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show one job. There is no form."""
        if object_id is None or request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        to_field = request.GET.get(TO_FIELD_VAR)
        if to_field and not self.to_field_allowed(request, to_field):
            raise BadRequest(f"The field {to_field} cannot be referenced.")
        job = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        context = {
            **self.admin_site.each_context(request),
            **self._page_context(request, job),
            "is_popup": IS_POPUP_VAR in request.GET,
            "opts": self.opts,
            "app_label": self.opts.app_label,
            "original": job,
            "media": self.media,
            "change": True,
            "add": False,
            "has_view_permission": True,
            "preserved_filters": self.get_preserved_filters(request),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, str(self.change_form_template), context)

    def _page_context(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        secrets = request.user.has_perm(VIEW_PAYLOAD)
        may = {operation.verb: operation.allowed(request) for operation in (CANCEL, REQUEUE)}
        may["operate"] = request.user.has_perm(OPERATE)
        now, using, site = self.now(), jobs_database(), self.admin_site.name
        return {
            "title": job.name,
            "page": page.job_page(job, now=now, secrets=secrets, may=may, using=using),
            "key": keyed.key_part(job, now=now, may_run=may["requeue"], site=site, using=using),
            "prepared": keyed.prepared(job, now=now, using=using),
        }


def _few(values: dict[str, str | None]) -> Collection[UUID] | None:
    """Return the jobs among which all others are looked for, None if neither tag nor key is asked for."""
    tag, key = values.get("tag"), values.get("key")
    if key is None:
        return jobs_tagged(tag) if tag else None
    found = jobs_keyed(key, values.get("queue"))
    return set(found).intersection(jobs_tagged(tag)) if tag else found


def _selected(request: HttpRequest) -> set[UUID]:
    try:
        return {UUID(value) for value in request.POST.getlist(ACTION_CHECKBOX_NAME)}
    except ValueError as error:
        raise BadRequest("The selection holds what is no job's id.") from error
