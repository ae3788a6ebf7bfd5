"""What stored jobs depend on in the code: names, schemas, signatures, queues and keys, as a file for review.

A job outlives the code that enqueued it. The file says what the last reviewed code took, so that a change
which would strand stored jobs is seen before it is deployed. Nothing here asks a database.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from django_backwave import identity, registry
from django_backwave.core.signature import as_text, breach, from_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from django_backwave.jobs import BackWaveTask

#: Of the file's form.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What jobs of one name depend on. Of ``signature`` only what binding looks at."""

    aliases: tuple[str, ...]
    accepts: tuple[str | None, ...]
    key: str | None
    queue: str
    schema: str | None
    signature: str

    @property
    def schemas(self) -> tuple[str | None, ...]:
        """Every schema that it takes."""
        return (self.schema, *self.accepts)


type Manifest = Mapping[str, Entry]


def of_code() -> Manifest:
    """Return the manifest of the jobs that this process has registered, by their job names."""
    return {task.job_name: _entry(task) for task in registry.tasks()}


def dumps(manifest: Manifest) -> str:
    """Return a manifest as JSON, the same for the same jobs, one line for each value."""
    jobs = {name: asdict(entry) for name, entry in manifest.items()}
    return json.dumps({"jobs": jobs, "version": VERSION}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def loads(text: str) -> Manifest:
    """Return the manifest that ``dumps`` made this of. Raises ValueError, and says where."""
    content = json.loads(text)
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(f'it is not of the form {{"jobs": {{…}}, "version": {VERSION}}}')
    jobs = content.get("jobs")
    if not isinstance(jobs, dict):
        raise ValueError('"jobs" must be an object of job names')
    return {name: _read(name, values) for name, values in jobs.items()}


def breaches(before: Manifest, after: Manifest) -> list[str]:
    """Return what a change of the code does to jobs that are stored, one line each; empty if nothing."""
    targets = {alias: entry for entry in after.values() for alias in entry.aliases} | dict(after)
    return [line for name, entry in sorted(before.items()) for line in _of_job(name, entry, targets)]


def _entry(task: BackWaveTask) -> Entry:
    return Entry(
        aliases=tuple(sorted(task.aliases)),
        accepts=tuple(sorted(set(task.accepts), key=lambda schema: schema or "")),
        key=identity.key_text(task.key),
        queue=task.queue_name,
        schema=task.schema,
        signature=as_text(registry.signature(task)),
    )


def _read(name: str, values: Any) -> Entry:
    wanted = set(Entry.__dataclass_fields__)
    if not isinstance(values, dict) or set(values) != wanted:
        raise ValueError(f"the job {name!r} must have {', '.join(sorted(wanted))}")
    for field in ("aliases", "accepts"):
        if not isinstance(values[field], list):
            raise ValueError(f"{field} of the job {name!r} must be a list")
    texts = [*values["aliases"], values["queue"], values["signature"]]
    texts += [text for text in (*values["accepts"], values["key"], values["schema"]) if text is not None]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"values of the job {name!r} must be strings")
    try:
        from_text(values["signature"])
    except ValueError as error:
        raise ValueError(f"signature of the job {name!r}: {error}") from None
    lists = {field: tuple(values[field]) for field in ("aliases", "accepts")}
    return Entry(**values | lists)


def _of_job(name: str, before: Entry, targets: Mapping[str, Entry]) -> Iterator[str]:
    seen: list[Entry] = []
    for each in (name, *before.aliases):
        if each not in targets:
            yield (
                f"{each}: no job has this name or alias any more, and stored ones would be quarantined. Add "
                f"{each!r} to the aliases of the job that takes its place."
            )
        elif targets[each] not in seen:
            seen.append(targets[each])
            yield from (f"{each}: {line}" for line in _of_entry(before, targets[each]))


def _of_entry(before: Entry, after: Entry) -> Iterator[str]:
    for schema in (schema for schema in before.schemas if schema not in after.schemas):
        yield (
            f"jobs stored {identity.with_schema(schema)} are not taken any more, and would be quarantined. "
            f"Put {schema!r} into accepts until none is left."
        )
    if set(before.schemas) & set(after.schemas):
        reason = breach(from_text(before.signature), from_text(after.signature))
        if reason is not None:
            yield (
                f"not every call stored for {before.signature} fits {after.signature}: {reason}. Keep the "
                "old parameters as they are, and give new ones a default."
            )
    yield from _of_logical_work(before, after)


def _of_logical_work(before: Entry, after: Entry) -> Iterator[str]:
    """Tell what a change of queue or key means. Jobs without a key are found in their queue, and no more."""
    if before.queue != after.queue:
        yield (
            f"the queue changes from {before.queue!r} to {after.queue!r}. Keep a worker on "
            f"{before.queue!r} until its stored jobs are done."
        )
    if before.key is not None and (before.queue, before.key) != (after.queue, after.key):
        yield (
            f"the key changes from {_place(before)} to {_place(after)}. Enqueues do not meet the generations "
            "that exist, so their work may be done twice."
        )


def _place(entry: Entry) -> str:
    return f"{entry.key!r} in queue {entry.queue!r}" if entry.key is not None else "none"
