"""Handles: what leads to one generation of a job, in another process or tomorrow as well."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.signing import BadSignature, Signer

from django_backwave.exceptions import InvalidHandle, SchemaMismatch
from django_backwave.payload import shown

if TYPE_CHECKING:
    from datetime import timedelta

    from django_backwave.results import JobResult

#: The version of what a text of a handle says.
VERSION = 1

#: Sets these signatures apart from all others that the project makes with the same key.
SALT = "django_backwave.handle"

_READ: dict[str, Any] = {
    "queue": str,
    "key": str | None,
    "generation": int | None,
    "name": str,
    "schema": str | None,
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobHandle:
    """One generation of a job: its id decides, and so a newer generation of the same key is another one.

    ``key``, ``generation`` and ``schema`` are None where the job has none. ``queue`` and ``name`` are those
    that it was enqueued with. Two handles of one job are equal. A result gives it as ``result.handle``.
    """

    id: str
    queue: str = field(compare=False)
    key: str | None = field(default=None, compare=False)
    generation: int | None = field(default=None, compare=False)
    name: str = field(compare=False)
    schema: str | None = field(default=None, compare=False)
    version: int = field(default=VERSION, compare=False)

    def __repr__(self) -> str:
        """Say which job this is; its key, made of arguments, stays out of logs."""
        return f"<JobHandle {self}>"

    def __str__(self) -> str:
        """Name the job as messages do."""
        generation = "" if self.generation is None else f", generation {self.generation}"
        return f"{self.id} {self.name}{generation}"

    def dumps(self) -> str:
        """Return the handle as text for ``loads``: signed JSON, fit for an URL, and not encrypted."""
        return Signer(salt=SALT).sign_object(asdict(self))

    @classmethod
    def loads(cls, text: str) -> JobHandle:
        """Return the handle that ``dumps`` has written, here or in another process of this project.

        Raises InvalidHandle for a text that was changed, cut or signed with another SECRET_KEY, and for one
        of a version that this release does not know.
        """
        if not isinstance(text, str):
            raise InvalidHandle(f"A handle is read from the text that dumps() returned, got {shown(text)}.")
        try:
            values = Signer(salt=SALT).unsign_object(text)
        except BadSignature:
            raise InvalidHandle(
                "This is no handle that this project has signed: it was changed or cut off on its way, or "
                "SECRET_KEY is another one by now (SECRET_KEY_FALLBACKS keeps old handles readable)."
            ) from None
        return cls(**_checked(values))

    def get_result(self) -> JobResult:
        """Return the job's result as its row stands.

        Raises TaskResultDoesNotExist if the job has been pruned, and SchemaMismatch if an enqueue with
        ``on_conflict="replace"`` has given it another schema than the handle's.
        """
        from django_backwave import results
        from django_backwave.backend import backend_for

        result = backend_for(results.task_of(self.name), self.queue).get_result(self.id)
        if result.schema != self.schema:
            raise SchemaMismatch(
                f"Job {self} has the schema {shown(result.schema)} by now, and this handle the schema "
                f"{shown(self.schema)}: the job was replaced. Use the handle of the enqueue that did it.",
                result.schema,
                (self.schema,),
            )
        return result

    def wait(self, timeout: float | timedelta | None = None) -> Any:
        """Wait until the job has ended well, and return its output: that of this generation, and no other.

        ``timeout``: seconds or a timedelta, None for ever. A failure that will be tried again ends no wait.
        Raises CannotWait while a transaction is open, JobFailed, JobCancelled, JobPruned, SchemaMismatch,
        and WaitTimeout while the job goes on.
        """
        from django_backwave import waiting

        return waiting.wait(self, timeout)

    async def await_(self, timeout: float | timedelta | None = None) -> Any:
        """Do what ``wait`` does, from a coroutine, which may be cancelled at any time."""
        from django_backwave import waiting

        return await waiting.await_(self, timeout)


def _checked(values: Any) -> dict[str, Any]:
    """Return what a signed text says, as fields of a handle; another release may have written it."""
    version = values.get("version") if isinstance(values, dict) else None
    if version != VERSION:
        raise InvalidHandle(
            f"This handle is of version {shown(version)}, and this release reads version {VERSION}: "
            "it was written by another release of django-backwave. Read it with that one, or a newer one."
        )
    fields = {name: values.get(name) for name in ("id", *_READ)}
    if not all(isinstance(fields[name], kind) for name, kind in _READ.items()) or not _is_id(fields["id"]):
        raise InvalidHandle("This handle is signed, and what it says is no job. Was it written by dumps()?")
    return fields


def _is_id(value: Any) -> bool:
    try:
        return bool(str(UUID(value)) == value)
    except (AttributeError, TypeError, ValueError):
        return False
