"""The queues: what stands in each, and what is paused; pause and resume of queues and job names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_backwave import operations, registry
from django_backwave.admin import display, page
from django_backwave.admin.base import ListedAdmin
from django_backwave.admin.operations import OPERATE, actor_of
from django_backwave.backend import jobs_database
from django_backwave.core.protocol import PauseResult, ResumeResult
from django_backwave.exceptions import InvalidJob
from django_backwave.models import Pause
from django_backwave.store import monitor, queues

if TYPE_CHECKING:
    from enum import Enum

    from django.http import HttpRequest, HttpResponse

#: How many names a typed field suggests, at most.
MOST_SUGGESTIONS = 200


@admin.register(Pause)
class PauseAdmin(ListedAdmin):
    """Shows queues and job names in place of a list of pauses; pauses and resumes them."""

    def get_urls(self) -> list[Any]:
        """Add the two buttons' addresses."""
        buttons = [
            path(
                f"{verb}/",
                self.admin_site.admin_view(partial(self.operation_view, verb=verb)),
                name=f"django_backwave_pause_{verb}",
            )
            for verb in ("pause", "resume")
        ]
        return [*buttons, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            **self._context(request),
            "title": _("Queues"),
            "opts": self.opts,
            "media": self.media,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/django_backwave/queues.html", context)

    def leads_to(self, object_id: str) -> str:
        """Lead to the page: it shows all there is of a pause."""
        return self._url()

    def operation_view(self, request: HttpRequest, verb: str) -> HttpResponse:
        """Pause or resume on POST, then show the page; a GET, as after a new login, only shows it."""
        if not (self.has_view_permission(request) and request.user.has_perm(OPERATE)):
            raise PermissionDenied
        if request.method == "POST":
            kind = "name" if request.POST.get("kind") == Pause.Kind.NAME else "queue"
            target = request.POST.get("target", "")
            doing = operations.pause if verb == "pause" else operations.resume
            try:
                result = doing(**{kind: target}, actor=actor_of(request))
            except InvalidJob as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self._tell(request, result, kind, target)
        return HttpResponseRedirect(self._url())

    def _tell(self, request: HttpRequest, result: Enum, kind: str, target: str) -> None:
        what = (_("The queue %(name)s") if kind == "queue" else _("The job name %(name)s")) % {"name": target}
        texts: dict[Enum, str] = {
            PauseResult.PAUSED: _(
                "%(what)s is paused. Within 5 seconds workers stop claiming; what runs goes on."
            ),
            PauseResult.ALREADY_PAUSED: _("Nothing was changed: %(what)s was paused already."),
            ResumeResult.RESUMED: _("%(what)s goes on. Workers learn of it within 5 seconds."),
            ResumeResult.NOT_PAUSED: _("Nothing was changed: %(what)s was not paused."),
        }
        changed = result in (PauseResult.PAUSED, ResumeResult.RESUMED)
        self.message_user(
            request, texts[result] % {"what": what}, messages.SUCCESS if changed else messages.WARNING
        )

    def _context(self, request: HttpRequest) -> dict[str, Any]:
        using, now = jobs_database(), self.now()
        workers = monitor.live_workers(using=using)
        served = {queue for worker in workers for queue in worker.queues or ()}
        known = served | {task.queue_name for task in registry.tasks()}
        names = {name for worker in workers for name in worker.names} | set(registry.names())
        return {
            "may_operate": request.user.has_perm(OPERATE),
            "queues": [
                {
                    "name": line.queue,
                    "numbers": [_shown(number) for number in (line.ready, line.due, line.running)],
                    "pause": line.pause,
                    "since": _since(line.pause, now),
                    "jobs_url": self._jobs_url(request, line.queue),
                }
                for line in queues.queue_lines(sorted(known)[:MOST_SUGGESTIONS], using=using)
            ],
            "names": [
                {"name": pause.target, "since": _since(pause, now)}
                for pause in queues.paused(Pause.Kind.NAME, using=using)
            ],
            "suggestions": sorted(names)[:MOST_SUGGESTIONS],
            "actions": [
                (
                    display.instant(action.at),
                    action.actor or display.NOTHING,
                    page.verb(action),
                    action.queue or action.name,
                    page.result(action),
                )
                for action in monitor.actions_on_pauses(using=using)
            ],
        }

    def _jobs_url(self, request: HttpRequest, queue: str) -> str:
        if not request.user.has_perm("django_backwave.view_job"):
            return ""
        url = reverse("admin:django_backwave_job_changelist", current_app=self.admin_site.name)
        return f"{url}?{urlencode({'queue': queue})}"

    def _url(self) -> str:
        return reverse("admin:django_backwave_pause_changelist", current_app=self.admin_site.name)


def _shown(number: queues.Number) -> str:
    return f"{number.value:,}{'+' if number.more else ''}"


def _since(pause: Pause | None, now: Any) -> Any:
    if pause is None:
        return ""
    by = _("by %(actor)s") % {"actor": pause.actor} if pause.actor else ""
    return display.two_lines(display.instant_and_relative(pause.at, now), by)
