"""Prepared enqueues: what is to be enqueued, fixed, with an id that makes a repetition harmless."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from asgiref.sync import sync_to_async

from django_backwave import conf
from django_backwave.core.identity import Intent, OnConflict, Window
from django_backwave.core.jsontext import decode_json, encode_json
from django_backwave.core.operation import DEADLINE, REMEMBERED
from django_backwave.core.policy import Backoff
from django_backwave.exceptions import InvalidJob
from django_backwave.ids import made_at
from django_backwave.instants import to_rim
from django_backwave.outcome import in_thread
from django_backwave.payload import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_backwave.backend import BackWaveBackend
    from django_backwave.core.operation import Resolution
    from django_backwave.results import JobResult
    from django_backwave.store.enqueue import NewJob
    from django_backwave.store.operations import Command

#: Of the text that ``dumps`` writes.
VERSION = 1

#: Seconds for which ``resolve`` waits, unless it is told otherwise.
PATIENCE = 10.0

#: The longest that it can be told to wait, in seconds.
LONGEST_PATIENCE = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PreparedEnqueue:
    """An enqueue that can be repeated, by anybody who has this: all of them together make one job.

    It can be pickled, and is text by ``dumps()``; that is not signed, so keep it where only your own code
    writes. ``until``: the deadline, in UTC. ``plain``: it stands for an enqueue that was not prepared, whose
    outcome is unknown.
    """

    job: NewJob
    backend: str
    until: datetime
    plain: bool = False

    def __repr__(self) -> str:
        """Say which operation this is; arguments stay out of logs."""
        return f"<PreparedEnqueue {self.id} {self.job_name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text."""
        return PreparedEnqueue.loads, (self.dumps(),)

    @property
    def id(self) -> str:
        """The operation's id, and the id of the job that it makes."""
        return str(self.job.id)

    @property
    def job_name(self) -> str:
        """The stored name of the handler."""
        return self.job.name

    @property
    def deadline(self) -> datetime:
        """Until when it can be enqueued, by the database's clock."""
        return to_rim(self.until)

    def enqueue(self) -> JobResult:
        """Enqueue it in the caller's transaction, unless that was done; return the result either way.

        The result is of the same job, ``generation`` and ``created`` as at the first time. Raises
        OperationExpired after the deadline if nothing is recorded, and whenever it was resolved as not
        applied; OperationMismatch if its id was used for other work; and whatever an enqueue raises.
        """
        return _backend(self.backend).enqueue_prepared(self)

    async def aenqueue(self) -> JobResult:
        """Do what ``enqueue`` does, from a coroutine."""
        return await in_thread(self.enqueue)

    def resolve(self, *, timeout: float | timedelta = PATIENCE) -> Resolution:
        """Say whether it was applied. If it was not, it never will be from now on.

        ``timeout``: for how long it waits, seconds or a timedelta, where an insert of it is still open in
        somebody's transaction; then the answer is "unknown". Raises CannotResolve inside a transaction, and
        database errors, which leave everything as unknown as it was.
        """
        return _backend(self.backend).resolve(self, _seconds(timeout))

    async def aresolve(self, *, timeout: float | timedelta = PATIENCE) -> Resolution:
        """Do what ``resolve`` does, from a coroutine."""
        return await sync_to_async(self.resolve, thread_sensitive=True)(timeout=timeout)

    def dumps(self) -> str:
        """Return it as JSON text."""
        rest = {"backend": self.backend, "deadline": self.until.isoformat(), "plain": self.plain}
        return encode_json(
            {"version": VERSION, "id": self.id, "digest": self.digest, **rest, "job": _plain(self.job)}
        )

    @classmethod
    def loads(cls, text: str) -> PreparedEnqueue:
        """Return what ``dumps`` has made text of. Raises InvalidJob for any other text."""
        try:
            document = decode_json(text)
            version, digest = document["version"], document["digest"]
            prepared = cls(
                job=_job(UUID(document["id"]), document["job"]),
                backend=str(document["backend"]),
                until=datetime.fromisoformat(document["deadline"]),
                plain=bool(document["plain"]),
            )
            whole = (version, digest) == (VERSION, prepared.digest)
        except (AttributeError, LookupError, TypeError, RecursionError, ValueError) as error:
            raise InvalidJob(f"{shown(text)} is no prepared enqueue. Give what dumps() returned.") from error
        if not whole:
            raise InvalidJob(
                f"{prepared!r} of version {shown(version)} is not as dumps() returned it, or not of version "
                f"{VERSION}. Prepare another one."
            )
        return prepared

    @property
    def digest(self) -> str:
        """A fingerprint of all that decides what is enqueued."""
        return hashlib.sha256(encode_json(_plain(self.job)).encode()).hexdigest()

    def command(self) -> Command:
        """Return it as the store takes it."""
        from django_backwave.store.operations import Command

        known_until = self.until + timedelta(seconds=REMEMBERED)
        if self.plain and (kept := _kept()) is not None:
            known_until = min(known_until, made_at(self.job.id) + timedelta(seconds=kept))
        return Command(self.job, self.digest, self.until, known_until, self.plain)


def of_plain(job: NewJob, backend: str) -> PreparedEnqueue:
    """Return a plain enqueue, whose outcome is unknown, as if it had been prepared.

    A lost connection cannot be asked for the time: its deadline counts from when this host made the id. Until
    then its job must still be there, if there is one.
    """
    seconds = min(DEADLINE, DEADLINE if (kept := _kept()) is None else kept)
    until = made_at(job.id) + timedelta(seconds=seconds)
    return PreparedEnqueue(job=job, backend=backend, until=until, plain=True)


def _kept() -> float | None:
    """Return for how many seconds a job is kept at least, after its end; None: for ever."""
    ages = (conf.seconds_or_none("KEEP_DONE"), conf.seconds_or_none("KEEP_DEAD"))
    return min((age for age in ages if age is not None), default=None)


def _backend(alias: str) -> BackWaveBackend:
    from django_backwave.backend import by_alias

    return by_alias(alias)


def _seconds(timeout: Any) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= LONGEST_PATIENCE
    ):
        raise ValueError(
            f"timeout must be from 0 to {LONGEST_PATIENCE:,.0f} seconds or a timedelta, got {shown(timeout)}."
        )
    return float(seconds)


# What is to be enqueued, as plain JSON.


def _plain(job: NewJob) -> dict[str, Any]:
    """Return all that decides what is enqueued, but for the id.

    What is as it is by default is left out: so a text, and its digest, outlive a field that is added.
    """
    values, defaults = job._asdict(), job._field_defaults
    del values["id"]
    return {
        name: _WRITERS.get(name, _as_it_is)(value)
        for name, value in sorted(values.items())
        if name not in defaults or value != defaults[name]
    }


def _job(id: UUID, values: dict[str, Any]) -> NewJob:
    from django_backwave.store.enqueue import NewJob

    return NewJob(id=id, **{name: _READERS.get(name, _as_it_is)(value) for name, value in values.items()})


def _as_it_is(value: Any) -> Any:
    return value


def _intent_plain(intent: Intent) -> list[Any]:
    return [intent.key, intent.on_conflict, intent.window, sorted(intent.names)]


def _intent(values: list[Any]) -> Intent:
    key, on_conflict, window, names = values
    until = Window(window) if isinstance(window, str) else window
    return Intent(key, OnConflict(on_conflict), until, frozenset(names))


def _backoff_plain(backoff: Backoff) -> list[float]:
    return [backoff.base, backoff.cap, backoff.jitter]


def _backoff(values: list[float]) -> Backoff:
    base, cap, jitter = values
    return Backoff(base=base, cap=cap, jitter=jitter)


def _instant_plain(at: datetime | float | None) -> str | float | None:
    return at.isoformat() if isinstance(at, datetime) else at


def _instant(value: str | float | None) -> datetime | float | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _tags(pairs: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in pairs)


#: How a field is written and read that is not plain JSON itself.
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "backoff": _backoff_plain,
    "expires": _instant_plain,
    "intent": _intent_plain,
    "run_after": _instant_plain,
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "backoff": _backoff,
    "expires": _instant,
    "intent": _intent,
    "run_after": _instant,
    "tags": _tags,
}
