"""Tags: words on jobs, inserted with the enqueue or with an attempt's outcome, and in no other way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_backwave.core.limits import KEPT_TAGS
from django_backwave.models import Tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    #: Key and value; a label has an empty key.
    type Pair = tuple[str, str]

#: Rows per INSERT.
BATCH = 500


def insert_tags(tags: Mapping[UUID, Sequence[Pair]], *, using: str) -> None:
    """Insert tags of jobs in the caller's transaction; one that a job has already stays as it is."""
    rows = [Tag(job_id=job_id, key=key, value=value) for job_id in tags for key, value in tags[job_id]]
    if rows:
        Tag.objects.using(using).bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)


def trim_tags(job_ids: Iterable[UUID], *, using: str) -> None:
    """Keep the newest ``KEPT_TAGS`` tags of jobs: one that snoozes for ever must not grow for ever."""
    for job_id in job_ids:
        tags = Tag.objects.using(using).filter(job_id=job_id)
        newest = tags.order_by("-pk").values_list("pk", flat=True)
        oldest_kept = newest[KEPT_TAGS - 1 : KEPT_TAGS].first()
        if oldest_kept is not None:
            tags.filter(pk__lt=oldest_kept).delete()


def tagged(key: str, value: str, *, limit: int, using: str) -> list[UUID]:
    """Return the jobs with a tag, newest first, at most ``limit``: one range of one index."""
    tags = Tag.objects.using(using).filter(key=key, value=value).order_by("-job_id")
    return list(tags.values_list("job_id", flat=True)[:limit])
