"""The leases: who holds what, until when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Q
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_backwave.admin import display, page
from django_backwave.admin.base import ListedAdmin
from django_backwave.admin.filters import WorkerFilter
from django_backwave.admin.paging import Walk
from django_backwave.backend import jobs_database
from django_backwave.models import Lease
from django_backwave.store import monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString

_SHOWN = (
    "name",
    "enqueued_at",
    "finished_at",
    "queue",
    "state",
    "attempt",
    "worker",
    "lease_expires_at",
    "started_at",
    "cancel_requested_at",
)


@admin.register(Lease)
class LeaseAdmin(ListedAdmin):
    """Lists running jobs by the end of their lease, the first to lapse first."""

    list_display = (
        "job",
        "name_column",
        "queue_column",
        "worker_column",
        "attempt_column",
        "until",
        "running_for",
    )
    list_display_links = None
    list_filter = (WorkerFilter,)
    search_fields = ("id__exact",)
    search_help_text = gettext_lazy("A job's whole id.")
    ordering = ("lease_expires_at", "pk")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lease]:
        """Read nothing of what jobs carry."""
        return super().get_queryset(request).only(*_SHOWN)

    def get_walk(self, values: dict[str, str | None]) -> Walk:
        """Return the way along the leases' index; few jobs run at a time."""
        worker = values.get("worker")
        held = Q(lease_expires_at__isnull=False)
        rest = Q(worker=worker) if worker else Q()
        return Walk(key="lease_expires_at", descending=False, lanes=(held,), rest=rest)

    def prepare(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Add the workers' rows, and whether this user may follow the links."""
        super().prepare(request, rows)
        workers = monitor.workers_named((row.worker for row in rows), using=jobs_database())
        may_view_jobs = request.user.has_perm("django_backwave.view_job")
        may_view_workers = request.user.has_perm("django_backwave.view_worker")
        for row in rows:
            row.worker_row = workers.get(row.worker)
            row.job_url = self._url("job", row.pk) if may_view_jobs else ""
            row.worker_url = self._url("worker", row.worker) if may_view_workers and row.worker_row else ""

    def leads_to(self, object_id: str) -> str:
        """Lead to the job: a lease has no page of its own."""
        return self._url("job", object_id)

    @admin.display(description=gettext_lazy("job"))
    def job(self, lease: Any) -> SafeString:
        """The job's id, which leads to its page."""
        text = display.short_id(lease.pk)
        return format_html('<a href="{}">{}</a>', lease.job_url, text) if lease.job_url else text

    @admin.display(description=gettext_lazy("name"))
    def name_column(self, lease: Lease) -> SafeString:
        """The job's name."""
        return display.job_name(lease.name)

    @admin.display(description=gettext_lazy("queue"))
    def queue_column(self, lease: Lease) -> str:
        """The job's queue."""
        return str(lease.queue)

    @admin.display(description=gettext_lazy("worker"))
    def worker_column(self, lease: Any) -> SafeString:
        """Who holds it, and when that worker was last heard of."""
        name = format_html("<code>{}</code>", lease.worker)
        if lease.worker_url:
            name = format_html('<a href="{}">{}</a>', lease.worker_url, name)
        if lease.worker_row is None:
            return display.two_lines(name, _("not known any more"))
        seen = _("seen %(when)s") % {"when": display.relative(lease.worker_row.seen_at, lease.read_at)}
        return display.two_lines(name, seen)

    @admin.display(description=gettext_lazy("attempt"))
    def attempt_column(self, lease: Lease) -> int:
        """The fence's number."""
        return lease.attempt

    @admin.display(description=gettext_lazy("held until"))
    def until(self, lease: Any) -> SafeString:
        """The lease's end, and what remains of it."""
        if lease.lease_expires_at is None:  # written by hand, and no instant
            return display.two_lines(display.NOTHING, display.badge(_("unknown"), "bad"))
        left = display.seconds_between(lease.read_at, lease.lease_expires_at)
        if left > 0:
            first: Any = _("%(duration)s left") % {"duration": display.duration(left)}
        else:
            first = display.badge(_("lapsed %(duration)s ago") % {"duration": display.duration(-left)}, "bad")
        return display.two_lines(first, display.instant(lease.lease_expires_at))

    @admin.display(description=gettext_lazy("running for"))
    def running_for(self, lease: Any) -> SafeString | str:
        """How long the handler has been running, and whether it was asked to stop."""
        if lease.cancel_requested_at is None:
            return page.took(lease, lease.read_at)
        return display.two_lines(page.took(lease, lease.read_at), display.badge(_("asked to stop"), "warn"))

    def _url(self, model: str, pk: Any) -> str:
        name = f"admin:django_backwave_{model}_change"
        return reverse(name, args=[quote(pk)], current_app=self.admin_site.name)
