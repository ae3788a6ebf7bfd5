"""How rows read: badges, instants, durations, JSON, and what stands where something is hidden."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_backwave.core.states import JobState
from django_backwave.instants import to_utc
from django_backwave.models.job import STATE_LABELS
from django_backwave.notes import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.utils.safestring import SafeString

    from django_backwave.models import Job
    from django_backwave.notes import Word

NOTHING = "\N{EN DASH}"

#: The most seconds that are told apart; a row written by hand may say more, or NaN.
LONGEST = 1e12

# Tones are classes of the style sheet; the words say the same without any colour.
_TONES = {
    JobState.WAITING: "quiet",
    JobState.READY: "info",
    JobState.RUNNING: "active",
    JobState.SUCCEEDED: "good",
    JobState.CANCELLED: "quiet",
    JobState.DEAD_LETTERED: "bad",
    JobState.QUARANTINED: "warn",
}


def badge(text: Any, tone: str) -> SafeString:
    """Return words in a coloured pill."""
    return format_html('<span class="bw-badge bw-{}">{}</span>', tone, text)


def state_of(job: Job) -> JobState | None:
    """Return a job's state; None if somebody has written a number by hand that is none."""
    return JobState(job.state) if job.state in STATE_LABELS else None


def state_badge(job: Job, *, bar: bool = False) -> SafeString:
    """Return a job's state, that it was asked to stop where it was, and with ``bar`` how far it has come."""
    known = state_of(job)
    if known is None:
        return badge(_("unknown state %(number)s") % {"number": job.state}, "bad")
    state = badge(STATE_LABELS[known], _TONES[known])
    if known is not JobState.RUNNING:
        return state
    if job.cancel_requested_at is not None:
        state = two_lines(state, badge(_("asked to stop"), "warn"))
    progress = Progress.read(job.progress) if bar else None
    return state if progress is None else two_lines(state, progress_bar(progress))


def ended_as(state: int | None) -> SafeString | str:
    """Return the state in which a job ended whose row is gone."""
    known = JobState(state) if state in STATE_LABELS else None
    return NOTHING if known is None else badge(STATE_LABELS[known], _TONES[known])


def progress_bar(progress: Progress) -> SafeString:
    """Return a bar with its numbers beside it; the numbers alone if the total is unknown."""
    if progress.total is None:
        return format_html("{}", _("%(done)s done") % {"done": number(progress.done)})
    numbers = _("%(done)s of %(total)s") % {"done": number(progress.done), "total": number(progress.total)}
    percent = int((progress.share or 0.0) * 100)
    return format_html(
        '<progress class="bw-progress" max="100" value="{}" aria-label="{}">{} %</progress> {}',
        percent,
        _("progress"),
        percent,
        numbers,
    )


def number(value: float) -> str:
    """Return a number without digits that say nothing."""
    return f"{value:,.16g}"


def tags(words: Iterable[Word]) -> SafeString:
    """Return tags in pills."""
    return format_html_join(" ", "{}", ((badge(word, "quiet"),) for word in words))


def two_lines(first: Any, second: Any) -> SafeString:
    """Return a line and a quiet one below it."""
    return format_html('{}<span class="bw-below">{}</span>', first, second)


def short_id(job_id: Any) -> SafeString:
    """Return an id's end, which is chance: jobs of one minute begin alike."""
    return format_html('<code title="{}">…{}</code>', job_id, str(job_id)[-8:])


def job_name(name: str) -> SafeString:
    """Return the function's name, and its module below; long ones break where words end."""
    module, _dot, function = name.rpartition(".")
    return format_html('<span class="bw-name">{}</span>', two_lines(_breaking(function), _breaking(module)))


def _breaking(name: str) -> SafeString:
    parts = name.replace("_", "_\n").replace(".", ".\n").split("\n")
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


def instant(value: datetime | None) -> SafeString | str:
    """Return an instant to the second, in the current time zone."""
    if value is None:
        return NOTHING
    local = _local(value)
    return format_html(
        '<time datetime="{}">{}</time>',
        to_utc(value).isoformat(timespec="milliseconds"),
        f"{local:%Y-%m-%d %H:%M:%S}",
    )


def _local(value: datetime) -> datetime:
    """Return an instant in the current time zone; in its own, where the calendar ends there."""
    try:
        return timezone.localtime(value) if timezone.is_aware(value) else value
    except OverflowError:
        return value


def for_input(value: datetime) -> str:
    """Return an instant as an <input type="datetime-local"> has it, in the current time zone."""
    local = _local(value)
    return f"{local:%Y-%m-%dT%H:%M:%S}"


def relative(value: datetime, now: datetime) -> str:
    """Return how far an instant lies from now, in words."""
    seconds = seconds_between(now, value)
    if seconds > 0:
        return _("in %(duration)s") % {"duration": duration(seconds)}
    return _("%(duration)s ago") % {"duration": duration(-seconds)}


def instant_and_relative(value: datetime | None, now: datetime) -> SafeString | str:
    """Return an instant and, after it, how far from now it lies."""
    if value is None:
        return NOTHING
    return format_html('{} <span class="bw-quiet">{}</span>', instant(value), relative(value, now))


def seconds_between(start: datetime, end: datetime) -> float:
    """Return the seconds from one instant to another, either of them as it comes from a row."""
    return (to_utc(end) - to_utc(start)).total_seconds()


def duration(seconds: float | None) -> str:
    """Return a duration by its two largest units."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, min(LONGEST, seconds))
    if seconds < 1:
        return _("%(count)d ms") % {"count": round(seconds * 1000)} if seconds < 0.9995 else _in_units(1)
    return _in_units(int(seconds))


def _in_units(seconds: int) -> str:
    days, rest = divmod(timedelta(seconds=seconds), timedelta(days=1))
    hours, rest_of_hour = divmod(rest.seconds, 3600)
    minutes, last = divmod(rest_of_hour, 60)
    parts = (
        (days, _("%(count)d d")),
        (hours, _("%(count)d h")),
        (minutes, _("%(count)d min")),
        (last, _("%(count)d s")),
    )
    first = next((i for i, (count, text) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(text % {"count": count} for count, text in parts[first : first + 2] if count) or _(
        "%(count)d s"
    ) % {"count": 0}


def when(value: datetime, now: datetime) -> SafeString:
    """Return how far an instant lies from now, and the instant below."""
    return two_lines(relative(value, now), instant(value))


def failures(job: Job) -> str:
    """Return how many of a job's tries are used up."""
    return _("%(failures)d of %(most)d") % {"failures": job.failures, "most": job.max_attempts}


def backoff(job: Job) -> str:
    """Return a job's backoff in a phrase."""
    return _("%(base)s, doubled after each failure up to %(cap)s") % {
        "base": duration(job.backoff_base),
        "cap": duration(job.backoff_cap),
    }


def pretty(value: Any) -> SafeString:
    """Return a JSON value, indented, as it stands in the row."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return block(text.encode(errors="backslashreplace").decode())  # no page can hold a lone surrogate


def block(text: str) -> SafeString:
    """Return text as it is, in a box that scrolls by itself, also by keyboard."""
    return format_html('<pre class="bw-pre" tabindex="0">{}</pre>', text)


def hidden(permission: str) -> SafeString:
    """Return what stands in the place of something that a user may not see."""
    text = _("hidden: needs the permission %(permission)s") % {"permission": permission}
    return format_html('<span class="bw-hidden">{}</span>', text)


def listed(values: Iterable[str], *, most: int = 5) -> SafeString | str:
    """Return the first of some names, and how many more there are."""
    names = list(values)
    shown = format_html_join(", ", "<code>{}</code>", ((name,) for name in names[:most]))
    rest = len(names) - most
    if rest <= 0:
        return shown or NOTHING
    more = ngettext("and %(count)d more", "and %(count)d more", rest) % {"count": rest}
    return format_html("{} {}", shown, more)
