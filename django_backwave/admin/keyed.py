"""What a job's page says of its key: which generation that leads to, and which there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_backwave.admin import display
from django_backwave.core.states import TERMINAL
from django_backwave.store import generations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.utils.safestring import SafeString

    from django_backwave.admin.page import Facts
    from django_backwave.models import Job, Key

#: How many generations a page lists, the newest of them.
MOST = 20

_TERMINAL = [state.value for state in TERMINAL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One generation: whether it is the job whose page this is, and its cells."""

    here: bool
    cells: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """The page's part about the key. ``all_url``: the list of all generations, if there are more."""

    facts: Facts
    rows: list[Row]
    all_url: str
    busy: str
    may_run_again: bool


def key_part(job: Job, *, now: datetime, may_run: bool, site: str, using: str) -> KeyPart | None:
    """Read what is known of a job's key, None if it has none. ``site``: where links lead."""
    if job.key is None:
        return None
    row = generations.row(job.queue, job.key, using=using)
    there = generations.listed(job.queue, job.key, limit=MOST + 1, using=using)
    unfinished = generations.unfinished(job.queue, job.key, using=using)
    address = list_address(job.queue, job.key, site)
    facts: Facts = [
        (_("Key"), format_html('<a href="{}"><code>{}</code></a>', address, job.key)),
        (_("Generation"), job.generation),
        (_("Leads to"), _leads_to(job, row, unfinished, there, site)),
        (_("Remembered"), _("not any more") if row is None else remembered(row, now)),
    ]
    if row is not None:
        facts.append((_("Last asked for"), display.instant_and_relative(row.used_at, now)))
    return KeyPart(
        facts=facts,
        rows=[_row(each, job, now, site) for each in there[:MOST]],
        all_url=address if len(there) > MOST else "",
        busy=_busy(job, unfinished),
        may_run_again=may_run and unfinished is None and job.state in _TERMINAL,
    )


def _leads_to(job: Job, row: Key | None, unfinished: Job | None, there: Sequence[Job], site: str) -> Any:
    """Return what an enqueue meets: the newest unfinished generation, or else the newest."""
    if unfinished is None and row is not None and row.job_id not in {each.pk for each in there}:
        return pruned(row)
    current = unfinished or next(iter(there), None)
    if current is None or current.pk == job.pk:
        return _("this job")
    return format_html("{} {}", _linked(current, site), display.state_badge(current))


def pruned(key: Key) -> SafeString:
    """Return the last generation of a key whose job is gone, and how that ended."""
    text = _("generation %(number)s, pruned") % {"number": key.generation}
    return format_html("{} {}", text, display.ended_as(key.settled_as))


def remembered(key: Key, now: datetime) -> Any:
    """Return until when a key is remembered."""
    if key.forget_at is None:
        return _("for ever")
    if display.seconds_between(now, key.forget_at) <= 0:
        return _("as long as a job of it is kept")
    return display.instant_and_relative(key.forget_at, now)


def _busy(job: Job, unfinished: Job | None) -> str:
    if unfinished is None or unfinished.pk == job.pk or job.state not in _TERMINAL:
        return ""
    text = _("Generation %(number)s of its key is unfinished: until it ends, this job cannot run again.")
    return text % {"number": unfinished.generation}


def _row(each: Job, job: Job, now: datetime, site: str) -> Row:
    here = each.pk == job.pk
    return Row(
        here=here,
        cells=(
            each.generation if here else _linked(each, site),
            display.state_badge(each),
            display.when(each.enqueued_at, now),
            display.NOTHING if each.finished_at is None else display.when(each.finished_at, now),
            each.attempt,
            display.failures(each),
        ),
    )


def _linked(job: Job, site: str) -> SafeString:
    text = _("generation %(number)s") % {"number": job.generation}
    return format_html('<a href="{}">{}</a>', job_address(job.pk, site), text)


def job_address(job_id: Any, site: str) -> str:
    """Return the address of a job's page."""
    return reverse("admin:django_backwave_job_change", args=[quote(job_id)], current_app=site)


def list_address(queue: str, key: str, site: str) -> str:
    """Return the address of the list of a key's generations."""
    query = urlencode({"queue": queue, "key": key})
    return f"{reverse('admin:django_backwave_job_changelist', current_app=site)}?{query}"


def prepared(job: Job, *, now: datetime, using: str) -> Facts:
    """Return what is known of the prepared enqueue that fixed a job's id, if there was one."""
    operation = generations.operation_of(job.pk, using=using)
    if operation is None:
        return []
    never = _("nothing, and it never will: it was resolved as not applied")
    return [
        (_("Came to"), never if operation.job_id is None else _("this job")),
        (_("Recorded"), display.instant_and_relative(operation.recorded_at, now)),
        (_("Deadline"), display.instant_and_relative(operation.deadline, now)),
    ]
