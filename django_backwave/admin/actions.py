"""The actions: what operators did. They outlive the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_backwave.admin import display, page
from django_backwave.admin.base import ListedAdmin
from django_backwave.models import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.http import HttpRequest
    from django.utils.safestring import SafeString


@admin.register(Action)
class ActionAdmin(ListedAdmin):
    """Lists operator actions, newest first."""

    list_display = ("when", "who", "what", "job", "result_column")
    list_display_links = None
    search_fields = ("job_id__exact",)
    search_help_text = _("A job's whole id.")
    search_column = "job_id"

    def prepare(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        """Add whether this user may follow a link to the job."""
        super().prepare(request, rows)
        may_view_jobs = request.user.has_perm("django_backwave.view_job")
        for row in rows:
            row.linked = may_view_jobs and row.job_id is not None

    def leads_to(self, object_id: str) -> str:
        """Lead to the list: it shows all there is of an action."""
        return reverse("admin:django_backwave_action_changelist", current_app=self.admin_site.name)

    @admin.display(description=_("at"))
    def when(self, action: Any) -> SafeString:
        """When it was done."""
        return display.when(action.at, action.read_at)

    @admin.display(description=_("actor"))
    def who(self, action: Action) -> str:
        """Who did it: a user's key and name."""
        return str(action.actor)

    @admin.display(description=_("action"))
    def what(self, action: Action) -> str:
        """What was done."""
        return page.verb(action)

    @admin.display(description=_("job, queue or name"))
    def job(self, action: Any) -> SafeString | str:
        """What it was done to."""
        if action.job_id is None:
            return action.queue or action.name or display.NOTHING
        text = format_html("<code>{}</code>", action.job_id)
        if not action.linked:
            return text
        url = reverse(
            "admin:django_backwave_job_change", args=[quote(action.job_id)], current_app=self.admin_site.name
        )
        return format_html('<a href="{}">{}</a>', url, text)

    @admin.display(description=_("result"))
    def result_column(self, action: Action) -> str:
        """What came of it."""
        return page.result(action)
