"""What an enqueue refuses before any SQL: the caller's transaction must not be broken by us.

Every message says what was wrong, shows the value, and says what is allowed or what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from django_backwave import conf
from django_backwave.core.jsontext import encode_json
from django_backwave.core.limits import KEY_LENGTH, MARK_LENGTH, NAME_LENGTH, QUEUE_LENGTH, SCHEMA_LENGTH
from django_backwave.exceptions import InvalidArguments, InvalidJob
from django_backwave.instants import to_utc

#: Levels of lists and dicts inside one argument.
DEEPEST = 100

#: An integer of more bits has more than 4,300 digits, and Python refuses to read it back.
LARGEST_INTEGER_BITS = 14_284

_REMEDY = (
    "Jobs take and return JSON: None, booleans, numbers, strings, lists, dicts with string keys. "
    "Pass a model instance's primary key, a date's isoformat(), a Decimal's str()."
)


def encode_arguments(
    where: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, most: int | None = None
) -> str:
    """Return the payload text of a call of the function ``where``.

    ``most``: the bytes that it may have, as far as the caller has read the setting already.

    Raises InvalidArguments if a value is not JSON or would be changed by it (but tuples become
    lists and UTF-8 bytes become strings, as everywhere in Django's tasks), and InvalidJob if the
    text is longer than ``BACKWAVE["MAX_PAYLOAD"]`` bytes.
    """
    plain = {
        "args": [_argument(where, f"args[{i}]", value) for i, value in enumerate(args)],
        "kwargs": {
            _argument(where, "an argument's name", name): _argument(where, f"kwargs[{shown(name)}]", value)
            for name, value in kwargs.items()
        },
    }
    return _text_of(plain, f"The payload of {where}", "MAX_PAYLOAD", most)


def encode_output(where: str, value: Any) -> str:
    """Return the text of the value that the function ``where`` returned.

    Raises InvalidArguments or InvalidJob as for arguments; the limit is ``BACKWAVE["MAX_OUTPUT"]``.
    """
    if value is None:
        return "null"
    plain = _argument(where, "the output", value)
    return _text_of(plain, f"The output of {where}", "MAX_OUTPUT")


def encode_result(where: str, value: Any) -> str:
    """Return the text of the result that a mark keeps; bounded and refused as an output is."""
    try:
        plain = plain_json(value)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"{error} in the result of {where}. {_REMEDY}") from None
    return _text_of(plain, f"The result of {where}", "MAX_OUTPUT")


def plain_json(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON's own types: containers copied, scalars as they are.

    Raises ValueError or TypeError, with a noun phrase for its message, for what is not JSON.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _checked_text(value)
    if isinstance(value, int | float):
        return _checked_number(value)
    if isinstance(value, bytes):
        return _checked_text(_decoded(value))
    if not isinstance(value, Mapping | Sequence):
        raise TypeError(f"Unsupported type {type(value).__qualname__} ({shown(value)})")
    if depth == DEEPEST:
        raise ValueError(f"Lists or dicts nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        return {_checked_key(key): plain_json(item, depth + 1) for key, item in value.items()}
    return [plain_json(item, depth + 1) for item in value]


def check_name(name: Any, where: str) -> str:
    """Return a job name that its column can hold; raise InvalidJob for any other."""
    return _checked_word(name, f"The job name of {where}", NAME_LENGTH, "Choose one with @job(name=...).")


def check_mark(name: Any) -> str:
    """Return a mark's name that its column can hold; raise InvalidJob for any other."""
    return _checked_word(name, "The name in context.once(name)", MARK_LENGTH, "Choose a short fixed word.")


def check_key(key: Any, what: str) -> str:
    """Return a key that its column can hold; raise InvalidJob for any other."""
    remedy = "Let it name the work; a long one can be hashed by a function of your own."
    return _checked_word(key, what, KEY_LENGTH, remedy)


def check_schema(name: Any, what: str) -> str:
    """Return a schema's name that its column can hold; raise InvalidJob for any other."""
    return _checked_word(name, what, SCHEMA_LENGTH, 'For example: "receipt/2".')


def check_queue(name: Any, where: str) -> str:
    """Return a queue name that its column can hold; raise InvalidJob for any other."""
    return _checked_word(name, f"The queue name of {where}", QUEUE_LENGTH, "Choose another queue_name.")


def instant_of(run_after: datetime | None, where: str) -> datetime | None:
    """Return a run_after as an aware instant in UTC.

    Under USE_TZ=False it must be naive, in TIME_ZONE. (That it must be aware otherwise is Django's
    own rule for tasks, and checked there.) Raises InvalidJob.
    """
    return None if run_after is None else _in_utc(run_after, f"run_after of {where}")


def expiry_of(
    expires: datetime | float | None, run_after: datetime | None, where: str
) -> datetime | float | None:
    """Return an instant of expiry in UTC, and seconds from the enqueue on as they are.

    Raises InvalidJob if a job would expire before it is due.
    """
    if not isinstance(expires, datetime):
        return expires
    at = _in_utc(expires, f"expires of {where}")
    if run_after is not None and at <= run_after:
        raise InvalidJob(
            f"expires of {where} must be later than run_after, or the job never runs; got {shown(expires)}."
        )
    return at


def check_run_after(run_after: Any, where: str) -> None:
    """Raise InvalidJob if a run_after is neither None nor a datetime."""
    if run_after is not None and not isinstance(run_after, datetime):
        raise InvalidJob(
            f"run_after of {where} must be a datetime, got {shown(run_after)}. For a delay add a "
            "timedelta to django.utils.timezone.now()."
        )


def check_expires(value: datetime, what: str) -> datetime:
    """Return a datetime that says when a job expires; raise InvalidJob for one that says no instant."""
    if settings.USE_TZ and timezone.is_naive(value):
        raise InvalidJob(
            f"{what} must be an aware datetime, because USE_TZ is True; got {shown(value)}. "
            "Start from django.utils.timezone.now(), or give seconds or a timedelta."
        )
    _in_utc(value, what)
    return value


def shown(value: Any) -> str:
    """Return a value's repr for a message: short, and never an error of its own."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _in_utc(value: datetime, what: str) -> datetime:
    if not settings.USE_TZ and timezone.is_aware(value):
        raise InvalidJob(
            f"{what} must be a naive datetime in TIME_ZONE, because USE_TZ is False; "
            f"got {shown(value)}. Convert it with django.utils.timezone.make_naive()."
        )
    try:
        return to_utc(value)
    except (OverflowError, ValueError):
        raise InvalidJob(
            f"{what} must be an instant that exists in UTC, between the years 1 and 9999; got {shown(value)}."
        ) from None


def _argument(where: str, label: str, value: Any) -> Any:
    try:
        return plain_json(value)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"{error} in {label} of {where}. {_REMEDY}") from None


def _text_of(value: Any, what: str, limit: str, most: int | None = None) -> str:
    try:
        text = encode_json(value)
    except ValueError as error:  # this process limits the digits of integers further
        raise InvalidArguments(f"{what} is not JSON: {error}.") from None
    size = len(text) if text.isascii() else len(text.encode())
    if size > (most := conf.value(limit) if most is None else most):
        raise InvalidJob(
            f"{what} is {size:,} bytes of JSON, more than {most:,}. Store the data elsewhere and "
            f"hand over its key, or raise BACKWAVE[{limit!r}]."
        )
    return text


def _checked_text(value: str) -> str:
    if "\0" in value:
        raise ValueError(f"NUL character ({shown(value)})")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"Lone surrogate ({shown(value)})") from None
    return value


def _checked_number(value: float) -> float:
    if isinstance(value, int):
        if value.bit_length() > LARGEST_INTEGER_BITS:
            raise ValueError(f"Integer of {value.bit_length():,} bits (at most {LARGEST_INTEGER_BITS:,})")
    elif not math.isfinite(value):
        raise ValueError(f"Number that JSON does not have ({shown(value)})")
    return value


def _checked_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"Dict key that is not a string ({shown(key)})")
    return _checked_text(key)


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"Bytes that are not UTF-8 ({shown(value)})") from None


def _checked_word(value: Any, what: str, longest: int, remedy: str) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"{what} must be a string, got {shown(value)}. {remedy}")
    if not 0 < len(value) <= longest:
        raise InvalidJob(
            f"{what} must have 1 to {longest} characters, got {len(value)}: {shown(value)}. {remedy}"
        )
    try:
        return _checked_text(value)
    except ValueError as error:
        raise InvalidJob(f"{what} must be plain text, got: {error}. {remedy}") from None
