"""The keys: which logical work has been done, and which job stands in the way of an enqueue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Q
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_backwave.admin import display, keyed
from django_backwave.admin.base import ListedAdmin
from django_backwave.admin.filters import QueueFilter, known_queues
from django_backwave.admin.paging import Walk
from django_backwave.backend import jobs_database
from django_backwave.core.limits import KEY_LENGTH
from django_backwave.models import Key
from django_backwave.store import generations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString


@admin.register(Key)
class KeyAdmin(ListedAdmin):
    """Lists keys. There is no order among them but that of their ids, which is chance."""

    list_display = ("key_column", "queue_column", "name_column", "last", "used", "remembered")
    list_display_links = None
    list_filter = (QueueFilter,)
    ordering = ("pk",)
    search_fields = ("key__exact",)
    search_help_text = _(
        "A whole key. It is looked for in the queue that is chosen, or else in those that are known. What is "
        "remembered for ever goes by manage.py backwave_prune --keys-idle-for alone."
    )

    def get_walk(self, values: dict[str, str | None]) -> Walk:
        """Return the way by id, along which a queue is looked for."""
        queue = values.get("queue")
        return Walk(descending=False, rest=Q(queue=queue) if queue else Q())

    def walk_labels(self, walk: Walk) -> tuple[str, str]:
        """Return what leads on: no time says it."""
        return str(_("Previous")), str(_("Next"))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by the whole key, to the letter: queue and key together make a row's id."""
        if not search_term:
            return queryset, False
        if "\0" in search_term or len(search_term) > KEY_LENGTH:
            return queryset.none(), False
        queues = {request.GET.get("queue", "").strip(), *known_queues()}
        queues |= generations.queues_of(search_term, using=jobs_database())
        return queryset.filter(pk__in={Key.id_of(queue, search_term) for queue in queues}), False

    def prepare(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Add the jobs of the last generations, and whether this user may follow links to them."""
        super().prepare(request, rows)
        jobs = generations.states_of((row.job_id for row in rows), using=jobs_database()) if rows else {}
        may_view_jobs = request.user.has_perm("django_backwave.view_job")
        for row in rows:
            row.job = jobs.get(row.job_id)
            row.linked = may_view_jobs

    def leads_to(self, object_id: str) -> str:
        """Lead to the list: it shows all there is of a key."""
        return reverse("admin:django_backwave_key_changelist", current_app=self.admin_site.name)

    @admin.display(description=_("key"))
    def key_column(self, key: Any) -> SafeString:
        """The key, which leads to the list of its generations."""
        text = format_html('<code class="bw-key">{}</code>', key.key)
        if not key.linked:
            return text
        return format_html(
            '<a href="{}">{}</a>', keyed.list_address(key.queue, key.key, self.admin_site.name), text
        )

    @admin.display(description=_("queue"))
    def queue_column(self, key: Key) -> str:
        """The queue within which it names work."""
        return str(key.queue)

    @admin.display(description=_("name"))
    def name_column(self, key: Key) -> SafeString:
        """The name of the jobs that it belongs to."""
        return display.job_name(key.name)

    @admin.display(description=_("last generation"))
    def last(self, key: Any) -> SafeString:
        """The last generation: its number, its state, its job."""
        if key.job is None:
            return keyed.pruned(key)
        number = format_html("{}", key.generation)
        if key.linked:
            number = format_html(
                '<a href="{}">{}</a>', keyed.job_address(key.job_id, self.admin_site.name), number
            )
        return format_html("{} {}", number, display.state_badge(key.job))

    @admin.display(description=_("last asked for"))
    def used(self, key: Any) -> SafeString:
        """When somebody last enqueued with it."""
        return display.when(key.used_at, key.read_at)

    @admin.display(description=_("remembered"))
    def remembered(self, key: Any) -> Any:
        """Until when it is remembered."""
        return keyed.remembered(key, key.read_at)
