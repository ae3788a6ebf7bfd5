"""What all our admin pages share: they only read, from the jobs' database, and never count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.utils.translation import gettext as _

from django_backwave.admin.changelist import KeysetChangeList
from django_backwave.admin.paging import FirstPage, Walk
from django_backwave.backend import jobs_database
from django_backwave.instants import to_rim
from django_backwave.store import clock
from django_backwave.store.unreadable import is_sound, is_unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.contrib.admin.views.main import ChangeList
    from django.db.models import Model, QuerySet
    from django.http import HttpRequest

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

#: What the secrets of a job need: arguments, output, causes, messages, tracebacks.
VIEW_PAYLOAD = "django_backwave.view_payload"


class ReadOnlyAdmin(ModelAdmin):
    """An admin of rows that nobody adds, changes or deletes by hand."""

    change_list_template = "admin/django_backwave/change_list.html"
    list_per_page = 50
    list_max_show_all = 0
    paginator = FirstPage
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering: ClassVar[Any] = ("-pk",)
    search_column = "pk"
    list_defer: Sequence[str] = ()

    class Media:
        """One small style sheet, in the colours of Django's admin."""

        css = {"all": ["django_backwave/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read where jobs are written, for a replica may lag behind."""
        return super().get_queryset(request).using(jobs_database())

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        """Return the list that goes by key."""
        return KeysetChangeList

    def get_walk(self, values: dict[str, str | None]) -> Walk:
        """Return the way through the rows for the values of the filters, by parameter."""
        return Walk()

    def walk_labels(self, walk: Walk) -> tuple[str, str]:
        """Return what leads to the page before and to the page after."""
        return (_("Newer"), _("Older")) if walk.descending else (_("Earlier"), _("Later"))

    def prepare(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Give the rows of a page what their columns need: the time of the database, above all."""
        now = self.now() if rows else None
        for row in rows:
            row.read_at = now

    def now(self) -> datetime:
        """Return the time of the jobs' database, as rows have it."""
        return to_rim(clock.read(jobs_database()))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: only the store writes."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse: only the store writes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse: rows go by retention."""
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow our own filters only: any other lookup may read secrets letter by letter, or every row."""
        filters = self.list_filter if request is None else self.get_list_filter(request)
        return lookup in {getattr(each, "parameter_name", None) for each in filters}

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find nothing by a key that no row can have: PostgreSQL fails of a NUL. Say what cannot be read."""
        if "\0" in object_id:
            return None
        try:
            row = super().get_object(request, object_id, from_field)
        except Exception as error:
            if not is_unreadable(error):
                raise
        else:
            if row is None or is_sound(row):
                return row
        self.tell_unreadable(request)
        return None

    def tell_unreadable(self, request: HttpRequest) -> None:
        """Say that a row is not shown, and what to do."""
        text = _("Somebody has written by hand what cannot be read. Run manage.py backwave_doctor.")
        messages.error(request, text)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by the whole id, and by nothing else."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(**{self.search_column: UUID(term)}), False
        except ValueError:
            messages.warning(request, _("The search takes a job's whole id, for example from a log line."))
            return queryset.none(), False


class ListedAdmin(ReadOnlyAdmin):
    """An admin whose rows have no page of their own: links to one lead on."""

    def leads_to(self, object_id: str) -> str:
        """Return the address that shows all there is of a row."""
        raise NotImplementedError

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Lead on; there is no form."""
        if object_id is None or request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(self.leads_to(unquote(object_id)))
