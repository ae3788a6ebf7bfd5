"""The workers: who is alive, who fell silent, what each serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_backwave.admin import display
from django_backwave.admin.base import ReadOnlyAdmin
from django_backwave.admin.paging import Walk
from django_backwave.models import Worker
from django_backwave.store.overview import SILENCE

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.utils.safestring import SafeString


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    """Lists workers, the last heard of first."""

    list_display = ("name_column", "life", "serves", "names_count", "concurrency_column", "started")
    list_display_links = ("name_column",)
    ordering = ("-seen_at", "-pk")
    fields = (
        "name",
        "life",
        "host",
        "pid",
        "version",
        "started",
        "concurrency",
        "queues_list",
        "names_list",
        "leases_link",
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All of them."""
        return self.fields

    def get_walk(self, values: dict[str, str | None]) -> Walk:
        """Return the way along the index of when workers were seen."""
        return Walk(key="seen_at")

    def walk_labels(self, walk: Walk) -> tuple[str, str]:
        """Return what leads on: it goes by when they were seen."""
        return _("Seen later"), _("Seen earlier")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Add the time at which the row was read."""
        worker = super().get_object(request, object_id, from_field)
        if worker is not None:
            self.prepare(request, [worker])
        return worker

    @admin.display(description=gettext_lazy("name"))
    def name_column(self, worker: Worker) -> SafeString:
        """The worker's name, which says host and process."""
        return format_html("<code>{}</code>", worker.name)

    @admin.display(description=gettext_lazy("seen"))
    def life(self, worker: Any) -> SafeString:
        """Whether it is alive, and when it was last heard of."""
        alive = display.seconds_between(worker.seen_at, worker.read_at) < SILENCE
        state = display.badge(_("alive"), "good") if alive else display.badge(_("silent"), "bad")
        return display.two_lines(state, display.relative(worker.seen_at, worker.read_at))

    @admin.display(description=gettext_lazy("queues"))
    def serves(self, worker: Worker) -> SafeString | str:
        """The first queues that it serves."""
        return _("all") if worker.queues is None else display.listed(worker.queues, most=3)

    @admin.display(description=gettext_lazy("queues"))
    def queues_list(self, worker: Worker) -> SafeString | str:
        """The queues that it serves."""
        return _("all") if worker.queues is None else display.listed(worker.queues, most=1000)

    @admin.display(description=gettext_lazy("job names"))
    def names_count(self, worker: Worker) -> str:
        """How many job names it serves."""
        count = len(worker.names)
        return ngettext("%(count)d name", "%(count)d names", count) % {"count": count}

    @admin.display(description=gettext_lazy("job names served"))
    def names_list(self, worker: Worker) -> SafeString | str:
        """The job names that it serves."""
        return display.listed(worker.names, most=1000)

    @admin.display(description=gettext_lazy("at a time"))
    def concurrency_column(self, worker: Worker) -> int:
        """How many jobs it runs at the same time."""
        return worker.concurrency

    @admin.display(description=gettext_lazy("started"))
    def started(self, worker: Any) -> SafeString:
        """When the process started."""
        return display.when(worker.started_at, worker.read_at)

    @admin.display(description=gettext_lazy("leases"))
    def leases_link(self, worker: Worker) -> SafeString:
        """A link to what it holds."""
        url = reverse("admin:django_backwave_lease_changelist", current_app=self.admin_site.name)
        query = urlencode({"worker": worker.name})
        return format_html('<a href="{}?{}">{}</a>', url, query, _("What it holds"))
