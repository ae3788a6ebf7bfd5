"""The filters of the lists: states to choose from; queues, names and workers to type.

What can be typed is not looked up in the jobs' table: a DISTINCT would read millions of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.utils.translation import gettext_lazy as _

from django_backwave import registry
from django_backwave.backend import jobs_database
from django_backwave.core.limits import NAME_LENGTH
from django_backwave.core.states import JobState
from django_backwave.models.job import STATE_LABELS
from django_backwave.notes import Word
from django_backwave.store import generations, monitor
from django_backwave.store.tags import tagged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from uuid import UUID

    from django.contrib.admin.views.main import ChangeList
    from django.db.models import QuerySet
    from django.http import HttpRequest

#: How many suggestions a typed filter makes, at most.
MOST_SUGGESTIONS = 200

#: How many jobs with one tag are listed, at most.
MOST_TAGGED = 1_000

#: How many jobs with one key are listed, at most.
MOST_KEYED = 1_000

STATES = {state.label: state for state in JobState}


class StateFilter(admin.SimpleListFilter):
    """Jobs of one state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Offer every state."""
        return [(label, STATE_LABELS[state]) for label, state in STATES.items()]

    def value(self) -> str | None:
        """Return the state's label, if it is one."""
        value = super().value()
        if value is not None and value not in STATES:
            raise IncorrectLookupParameters(value)
        return value

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the jobs of that state."""
        value = self.value()
        return queryset if value is None else queryset.filter(state=STATES[value].value)


class TypedFilter(admin.SimpleListFilter):
    """A filter that is typed, with suggestions."""

    template = "admin/django_backwave/typed_filter.html"
    column = ""
    lookup = "exact"
    strips = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return one entry, so that Django shows the filter at all."""
        return [("", "")]

    def value(self) -> str | None:
        """Return what was typed, None for nothing."""
        value = super().value() or ""
        value = value.strip() if self.strips else value
        if "\0" in value or len(value) > NAME_LENGTH:  # SQLite, for one, looks for no longer pattern
            raise IncorrectLookupParameters(value)
        return value or None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep what fits."""
        value = self.value()
        return queryset if value is None else queryset.filter(**{f"{self.column}__{self.lookup}": value})

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield what the template needs: the value, suggestions, and the other filters to keep."""
        others = {name: value for name, value in changelist.params.items() if name != self.parameter_name}
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "suggestions": sorted(self.suggestions())[:MOST_SUGGESTIONS],
            "others": others,
            "clear": changelist.get_query_string(remove=[str(self.parameter_name)]),
        }

    def suggestions(self) -> Collection[str]:
        """Return values that are likely to exist, found without reading many rows."""
        return ()


class QueueFilter(TypedFilter):
    """Jobs of one queue."""

    title = _("queue")
    parameter_name = column = "queue"

    def suggestions(self) -> Collection[str]:
        """Return the queues that are known."""
        return known_queues()


def known_queues() -> set[str]:
    """Return queues with ready jobs, those that workers serve, and those that code names."""
    using = jobs_database()
    lanes = monitor.ready_lanes(limit=MOST_SUGGESTIONS, using=using)
    served = {queue for worker in monitor.live_workers(using=using) for queue in worker.queues or ()}
    return {lane[0] for lane in lanes} | served | {task.queue_name for task in registry.tasks()}


class NameFilter(TypedFilter):
    """Jobs whose name contains some text."""

    title = _("name")
    parameter_name = column = "name"
    lookup = "contains"

    def suggestions(self) -> Collection[str]:
        """Return the names that workers serve, and those that code defines."""
        workers = monitor.live_workers(using=jobs_database())
        return {name for worker in workers for name in worker.names} | set(registry.names())


class TagFilter(TypedFilter):
    """Jobs with a label or a tag, the newest of them."""

    title = _("tag")
    parameter_name = "tag"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the jobs with that tag, and say so if there may be more."""
        value = self.value()
        if value is None:
            return queryset
        jobs = jobs_tagged(value)
        if len(jobs) == MOST_TAGGED:
            text = _("Only the newest %(most)s jobs with this tag are shown.")
            messages.info(request, text % {"most": f"{MOST_TAGGED:,}"})
        return queryset.filter(pk__in=jobs)


def jobs_tagged(text: str) -> list[UUID]:
    """Return the newest jobs with a tag as it is typed, ``vip`` or ``customer=7``."""
    return tagged(*Word.parse(text), limit=MOST_TAGGED, using=jobs_database())


class KeyFilter(TypedFilter):
    """Jobs of one key: of the queue that is chosen, or of all."""

    title = _("key")
    parameter_name = column = "key"
    strips = False  # keys are compared byte for byte

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the jobs with that key, and say so if there may be more."""
        value = self.value()
        if value is not None and len(jobs_keyed(value, request.GET.get("queue", "").strip())) == MOST_KEYED:
            text = _("Only %(most)s jobs with this key are shown: the newest of one queue, if one is chosen.")
            messages.info(request, text % {"most": f"{MOST_KEYED:,}"})
        return super().queryset(request, queryset)


def jobs_keyed(key: str, queue: str | None) -> list[UUID]:
    """Return the jobs with a key; the newest of them, if a queue is given."""
    return generations.with_key(key, queue or None, limit=MOST_KEYED, using=jobs_database())


class WorkerFilter(TypedFilter):
    """Leases of one worker."""

    title = _("worker")
    parameter_name = column = "worker"

    def suggestions(self) -> Collection[str]:
        """Return the live workers."""
        return {worker.name for worker in monitor.live_workers(using=jobs_database())}
