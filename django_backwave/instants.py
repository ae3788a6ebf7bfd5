"""Instants at the rim: inside the package they are aware and in UTC, users see them as Django does."""

from __future__ import annotations

import zoneinfo
from datetime import UTC
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils import timezone

if TYPE_CHECKING:
    from datetime import datetime


def to_rim(value: datetime) -> datetime:
    """Return an aware instant as users see it: aware in UTC under USE_TZ, else naive local time."""
    if settings.USE_TZ:
        return value
    return timezone.make_naive(value, zoneinfo.ZoneInfo(settings.TIME_ZONE))


def to_utc(value: datetime) -> datetime:
    """Return any datetime as an aware one in UTC; a naive one is local time."""
    if timezone.is_naive(value):
        value = timezone.make_aware(value, zoneinfo.ZoneInfo(settings.TIME_ZONE))
    return value.astimezone(UTC)
