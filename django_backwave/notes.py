"""Tags and progress: what a job says of itself, and what is refused of it where it is said."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from django_backwave.core.limits import (
    MOST_TAGS,
    PROGRESS_MESSAGE_LENGTH,
    PROGRESS_MOST,
    TAG_KEY_LENGTH,
    TAG_VALUE_LENGTH,
)
from django_backwave.payload import plain_json, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    #: A label, or a key and its value: as users write tags, and read them.
    type Tag = str | tuple[str, str]

_FORMS = 'A tag is a label, "vip", or a pair of key and value, ("customer", "7").'


class Word(NamedTuple):
    """A tag as it is stored; a label has an empty key."""

    key: str
    value: str

    @property
    def tag(self) -> Tag:
        """The tag as users write it."""
        return (self.key, self.value) if self.key else self.value

    def __str__(self) -> str:
        return f"{self.key}={self.value}" if self.key else self.value

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a tag as a person types it, ``vip`` or ``customer=7``."""
        key, sign, value = text.partition("=")
        return cls(key, value) if sign else cls("", text)


def word(key: Any, value: Any = None) -> Word:
    """Return the tag of ``tag(label)`` or ``tag(key, value)``. Raises TypeError or ValueError."""
    if value is None:
        return Word("", _no_sign(_text(key, "A label", TAG_VALUE_LENGTH), "A label"))
    name = _no_sign(_text(key, "A tag's key", TAG_KEY_LENGTH), "A tag's key")
    return Word(name, _text(value, "A tag's value", TAG_VALUE_LENGTH))


def words(tags: Any) -> tuple[Word, ...]:
    """Return the tags of ``using(tags=...)``, each once. Raises TypeError or ValueError."""
    if isinstance(tags, str | bytes | Mapping) or not isinstance(tags, Iterable):
        raise TypeError(f'Tags come in a list, ["vip", ("customer", "7")], got {shown(tags)}.')
    found = dict.fromkeys(_word_of(tag) for tag in tags)
    if len(found) > MOST_TAGS:
        raise ValueError(f"At most {MOST_TAGS} tags can be given at once, got {len(found)}.")
    return tuple(found)


def _word_of(tag: Any) -> Word:
    if isinstance(tag, str):
        return word(tag)
    if isinstance(tag, tuple | list) and len(tag) == 2 and tag[1] is not None:
        return word(*tag)
    raise TypeError(f"{_FORMS} Got {shown(tag)}.")


def _text(value: Any, what: str, longest: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, got {shown(value)}. {_FORMS}")
    if not 0 < len(value) <= longest:
        raise ValueError(
            f"{what} must have 1 to {longest} characters, got {len(value)}: {shown(value)}. {_FORMS}"
        )
    if value != value.strip():
        raise ValueError(f"{what} must not begin or end with white space, got {shown(value)}.")
    return _plain(value, what)


def _no_sign(value: str, what: str) -> str:
    """Refuse what would read as a key with its value."""
    if "=" in value:
        raise ValueError(f"{what} must not contain '=', got {shown(value)}. {_FORMS}")
    return value


def _plain(value: str, what: str) -> str:
    try:
        plain_json(value)
    except ValueError as error:
        raise ValueError(f"{what} must be plain text, got: {error}.") from None
    return value


class Progress(NamedTuple):
    """How far a handler has come: ``done`` of ``total`` (None: unknown), and what it does now.

    ``at`` is when it said so, by the database's clock.
    """

    done: float
    total: float | None
    message: str
    at: datetime | None = None

    @classmethod
    def checked(cls, done: Any, total: Any, message: Any) -> Self:
        """Return a progress as a handler gave it. Raises TypeError or ValueError."""
        if not isinstance(message, str):
            raise TypeError(f"The message of progress() must be a string, got {shown(message)}.")
        if len(message) > PROGRESS_MESSAGE_LENGTH:
            raise ValueError(
                f"The message of progress() must have at most {PROGRESS_MESSAGE_LENGTH} characters, "
                f"got {len(message)}."
            )
        _plain(message, "The message of progress()")
        return cls(_count(done, "done"), None if total is None else _count(total, "total"), message)

    @classmethod
    def read(cls, value: Any) -> Self | None:
        """Return the progress in a row's column, None if there is none."""
        try:
            progress = cls.checked(value["done"], value["total"], value["message"])
            return progress._replace(at=datetime.fromisoformat(value["at"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def share(self) -> float | None:
        """The done share of the total, from 0 to 1; None if the total is unknown."""
        if self.total is None:
            return None
        return min(1.0, self.done / self.total) if self.total else 1.0

    def encoded(self, at: datetime) -> str:
        """Return the JSON text to store. Pure ASCII, so that no database refuses it."""
        value = {"done": self.done, "total": self.total, "message": self.message, "at": at.isoformat()}
        return json.dumps(value, separators=(",", ":"))


def _count(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} of progress() must be a number, got {shown(value)}.")
    if not (math.isfinite(value) and 0 <= value <= PROGRESS_MOST):
        raise ValueError(f"{what} of progress() must be from 0 to {PROGRESS_MOST:,}, got {shown(value)}.")
    return value


class Notes:
    """What a handler says while it runs, kept in memory until its worker writes it. Safe from any thread."""

    def __init__(self, *, told: Callable[[], object] | None = None) -> None:
        """Begin with nothing said; ``told`` is called when there is progress to write."""
        self._told = told
        self._words: dict[Word, None] = {}
        self._progress: Progress | None = None
        self._written: Progress | None = None

    def tag(self, key: Any, value: Any) -> None:
        """Keep a tag. Raises TypeError or ValueError."""
        new = word(key, value)
        if new not in self._words and len(self._words) >= MOST_TAGS:
            raise ValueError(
                f"An attempt can give at most {MOST_TAGS} tags, and {shown(new.tag)} is one more."
            )
        self._words[new] = None

    def say(self, progress: Progress) -> None:
        """Keep a progress in the place of the one before."""
        self._progress = progress
        if self._told is not None:
            self._told()

    @property
    def tags(self) -> tuple[Word, ...]:
        """The tags so far."""
        return tuple(self._words)

    @property
    def news(self) -> Progress | None:
        """The newest progress, if it has not been written."""
        progress = self._progress
        return None if progress is self._written else progress

    def wrote(self, progress: Progress) -> None:
        """Take note that a progress was written."""
        self._written = progress
