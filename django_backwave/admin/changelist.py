"""A changelist that pages by key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_backwave.admin.paging import WINDOW, Page, Position, Walk, read_page
from django_backwave.store.unreadable import only_sound, sound_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet
    from django.http import HttpRequest

BEFORE, AFTER = "before", "after"


class KeysetChangeList(ChangeList):
    """Shows the rows beyond a position in place of page numbers, and counts nothing."""

    model_admin: Any

    def __init__(self, request: HttpRequest, *args: Any, **options: Any) -> None:
        """Take the position from the address."""
        self._positions = {name: request.GET[name] for name in (BEFORE, AFTER) if name in request.GET}
        self.before_url = self.after_url = self.searched = ""
        self.before_label = self.after_label = ""
        super().__init__(request, *args, **options)
        if not self.is_popup:  # nothing is to be selected in order to change it
            self.title = str(capfirst(self.opts.verbose_name_plural))

    def get_queryset(self, request: HttpRequest, *args: Any, **options: Any) -> QuerySet[Any]:
        """Leave the position out of the filters, and so out of every link to another list."""
        for name in (BEFORE, AFTER):
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        return super().get_queryset(request, *args, **options)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        if self.query:
            rows = self.queryset.defer(*self.model_admin.list_defer)
            page = Page(rows=sound_rows(rows, self.list_per_page))
        else:
            page = self._page(request)
        self.model_admin.prepare(request, page.rows)
        self.result_list = page.rows
        # Equal numbers: Django's templates then offer neither a total nor "select all".
        self.result_count = self.full_result_count = len(page.rows)
        self.show_full_result_count = False
        self.show_admin_actions = bool(page.rows)
        self.can_show_all = False
        self.multi_page = False

    @property
    def paginator(self) -> None:
        """There is none."""
        return None

    def _page(self, request: HttpRequest) -> Page:
        values = {str(spec.parameter_name): spec.value() for spec in self.filter_specs}  # type: ignore[attr-defined]
        walk = self.model_admin.get_walk(values)
        forward = BEFORE not in self._positions
        rows, start = self.root_queryset.defer(*self.model_admin.list_defer), self._start(walk)

        def read(these: QuerySet[Any]) -> Page:
            if these is not rows:
                self.model_admin.tell_unreadable(request)
            return read_page(these, walk, size=self.list_per_page, start=start, forward=forward)

        page = only_sound(rows, read, lambda page: page.rows)
        self._link(page, walk)
        return page

    def _start(self, walk: Walk) -> Position | None:
        for token in self._positions.values():
            try:
                return Position.parse(token, self.model, timed=walk.key is not None)
            except ValueError as error:
                raise IncorrectLookupParameters(error) from error
        return None

    def _link(self, page: Page, walk: Walk) -> None:
        self.before_label, self.after_label = self.model_admin.walk_labels(walk)
        if page.before is not None:
            self.before_url = self.get_query_string({BEFORE: page.before.token()})
        if page.after is not None:
            self.after_url = self.get_query_string({AFTER: page.after.token()})
        if page.searched_to is not None:
            self.searched = _searched(page.rows, page.searched_to)


def _searched(rows: Sequence[Any], end: Position) -> str:
    found = ngettext("%(count)d found", "%(count)d found", len(rows)) % {"count": len(rows)}
    text = _("Searched %(window)s jobs, %(found)s. The search can go on from here.")
    return text % {"window": f"{WINDOW:,}", "found": found}
