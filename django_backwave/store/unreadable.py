"""Rows that cannot be read, for somebody has written by hand what is no value of the column.

SQLite keeps any value in any column, and MySQL dates of zeros. One such row would fail every claim or sweep
that comes across it, and its whole queue would stand still. No read is made slower for that: only one that
has failed has the rows looked for that cannot be read, sets them aside, and begins again.

A row set aside is QUARANTINED. Its cause says what could not be read, which is replaced by what can be, so
that every page and command can show the job, and an operator may requeue it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import DatabaseError, connections, models
from django.db.models import BooleanField, Max
from django.db.models.expressions import RawSQL

from django_backwave.core.states import JobState
from django_backwave.models import Attempt, Job
from django_backwave.models.fields import EncodedJSON, InstantField, JSONTextField, readable
from django_backwave.store import clock
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import is_postgres, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django.db.models import QuerySet

logger = logging.getLogger("django_backwave.store")

#: How many rows are set aside before a read begins again.
SLICE = 100

#: The most rows that a page leaves out.
MOST_LEFT_OUT = 500

#: The most characters of a value that a cause repeats.
SHOWN = 100

_PENDING = f"{JobState.WAITING.value}, {JobState.READY.value}"
_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Unreadable(TypeError):
    """Raised by a read that has met a value of another type than its column's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that cannot be read. ``address`` is what finds it even if its id is none."""

    address: Any
    fields: tuple[models.Field[Any, Any], ...]


def require(fits: bool) -> None:
    """Raise ``Unreadable`` unless what was read is of its column's type."""
    if not fits:
        raise Unreadable("a column holds a value of another type, which can only have been written by hand")


def past_unreadable[Read](
    read: Callable[[], Read], *, dead: str | None = None, using: str, now: datetime | None = None
) -> Read:
    """Read; if it fails of rows that cannot be read, set these aside and read again.

    ``read`` opens its own transaction, if it needs one. ``dead`` names a worker whose process has ended.
    """
    while True:
        try:
            return read()
        except (DatabaseError, *_ERRORS) as error:
            if not is_unreadable(error) or not set_aside(dead=dead, using=using, now=now):
                raise


def is_unreadable(error: Exception) -> bool:
    """Whether an error of a read may come of a row that cannot be read."""
    # SQLite tells of text that is no UTF-8 as an error of the database.
    return isinstance(error, _ERRORS) or (isinstance(error, DatabaseError) and "decode" in str(error))


def set_aside(*, dead: str | None = None, using: str, now: datetime | None = None) -> int:
    """Quarantine some rows that cannot be read and that no live attempt holds; return how many.

    The history is left as it is. A row whose id is none gets a new one.
    """
    at = clock.read(using, now)
    rows = list(_found(Job, _NOT_HELD, {"at": _sql_value(at, using), "dead": dead or ""}, SLICE, using))
    return sum(_quarantine(row, at, dead or "", using) for row in rows)


def find_open(limit: int, *, using: str) -> list[Row]:
    """Return up to so many jobs that have not ended and cannot be read."""
    states = f"state IN ({_PENDING}, {JobState.RUNNING.value})"
    return list(_found(Job, states, {}, limit, using))


def is_sound(row: models.Model) -> bool:
    """Whether all that was read of a row is of its column's type."""
    deferred = row.get_deferred_fields()
    fields = (field for field in row._meta.concrete_fields if field.attname not in deferred)
    return all(_fits(field, getattr(row, field.attname)) for field in fields)


def _fits(field: models.Field[Any, Any], value: Any) -> bool:
    field = field.target_field if isinstance(field, models.ForeignKey) else field
    if value is None:
        return field.null
    kinds = (kind for fields, kind in _KINDS.items() if isinstance(field, fields))
    return isinstance(value, next(kinds, object))


#: What is read of fields, the narrower kind first. JSON may be anything.
_KINDS: dict[type[models.Field[Any, Any]], Any] = {
    InstantField: datetime,
    JSONTextField: object,
    models.UUIDField: UUID,
    models.FloatField: float | int,
    models.IntegerField: int,
    models.CharField: str,
    models.TextField: str,
}


def sound_rows[AnyModel: models.Model](rows: QuerySet[AnyModel], most: int | None = None) -> list[AnyModel]:
    """Return rows, the first ``most`` of them if that is given, without those that cannot be read."""
    return only_sound(rows, lambda rows: list(rows[:most]), lambda found: found)


def only_sound[AnyModel: models.Model, Read](
    rows: QuerySet[AnyModel],
    read: Callable[[QuerySet[AnyModel]], Read],
    read_of: Callable[[Read], Iterable[AnyModel]],
) -> Read:
    """Read rows; if that fails, or brings what cannot be read, read again without those rows.

    ``read_of`` returns the rows in what was read.
    """
    if is_postgres(rows.db):  # all of its columns hold what they are for
        return read(rows)
    try:
        found = read(rows)
        if all(map(is_sound, read_of(found))):
            return found
    except Exception as error:
        if not is_unreadable(error):
            raise
    return read(without_unreadable(rows))


def without_unreadable[AnyModel: models.Model](rows: QuerySet[AnyModel]) -> QuerySet[AnyModel]:
    """Leave out the rows that cannot be read, up to ``MOST_LEFT_OUT`` of them: for pages and commands."""
    model = rows.model
    found = [row.address for row in _found(model, "1 = 1", {}, MOST_LEFT_OUT, rows.db)]
    if not found:
        return rows
    address = f"{_table(model, rows.db)}.{_address(model, rows.db)}"
    return rows.exclude(RawSQL(f"{address} IN ({', '.join(['%s'] * len(found))})", found, BooleanField()))  # noqa: S611


#: Rows that nobody writes to but who claims or sweeps. What has ended is left alone, if only it has an id.
_NOT_HELD = f"""(state IN ({_PENDING}) OR (state = {JobState.RUNNING.value}
                 AND (lease_expires_at <= %(at)s OR (worker <> '' AND worker = %(dead)s))){{or_nameless}})"""


def _found(
    model: type[models.Model], condition: str, params: dict[str, Any], limit: int, using: str
) -> Iterator[Row]:
    unsound = {field: sql for field in model._meta.concrete_fields if (sql := _unsound(field, using))}
    if not unsound:
        return
    nameless = unsound.get(model._meta.pk)
    condition = condition.format(or_nameless=f" OR ({nameless})" if nameless else "")
    sql = f"""
        SELECT {_address(model, using)}, {", ".join(f"({each})" for each in unsound.values())}
          FROM {_table(model, using)}
         WHERE {condition} AND ({" OR ".join(f"({each})" for each in unsound.values())}) LIMIT {limit:d}
    """
    for address, *flags in _fetched(sql, params, using):
        broken = tuple(field for field, flag in zip(unsound, flags, strict=True) if flag)
        yield Row(address=address, fields=broken)


def _unsound(field: models.Field[Any, Any], using: str) -> str:
    """Return the condition under which a column of this vendor cannot be read; empty if there is none."""
    column, vendor = _quoted(field, using), connections[using].vendor
    field = field.target_field if isinstance(field, models.ForeignKey) else field
    if isinstance(field, InstantField) and vendor != "postgresql":
        sql = f"{readable(column, vendor)} IS NULL"
    elif vendor == "sqlite":
        sql = _unsound_sqlite(field, column)
    else:
        return ""
    return f"{column} IS NOT NULL AND {sql}"


def _unsound_sqlite(field: models.Field[Any, Any], column: str) -> str:
    if isinstance(field, models.UUIDField):
        return f"(typeof({column}) <> 'text' OR length({column}) <> 32 OR {column} GLOB '*[^0-9a-f]*')"
    if isinstance(field, models.FloatField):
        return f"typeof({column}) NOT IN ('real', 'integer')"
    if isinstance(field, models.IntegerField | models.BooleanField):
        return f"typeof({column}) <> 'integer'"
    return f"(typeof({column}) <> 'text' OR NOT backwave_is_text(CAST({column} AS BLOB)))"


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _quarantine(row: Row, at: datetime, dead: str, using: str) -> int:
    """Write one row, unless somebody else has been quicker."""
    with writing(using):
        texts = _texts(row, using)
        if texts is None:
            return 0
        told = ", ".join(f"{field.name} ({texts[field.name][:SHOWN]!a})" for field in row.fields)
        values = {field.name: _instead(field, row, texts, at, using) for field in row.fields}
        values |= {
            "state": JobState.QUARANTINED.value,
            "worker": "",
            "lease_expires_at": None,
            "finished_at": at,
            "cause": f"Could not be read, and was replaced: {told}.",
        }
        count = _write(row, values, at, dead, using)
        passing("unreadable: row written")
    if count:
        columns = ",".join(field.name for field in row.fields)
        logger.warning("action=set_aside job=%s columns=%s: they cannot be read", texts["id"], columns)
    return count


def _write(row: Row, values: dict[str, Any], at: datetime, dead: str, using: str) -> int:
    connection = connections[using]
    fields = [field for field in Job._meta.concrete_fields if field.name in values]
    params = {field.name: field.get_db_prep_save(values[field.name], connection) for field in fields}
    sets = ", ".join(f"{_quoted(field, using)} = %({field.name})s" for field in fields)
    condition = _NOT_HELD.format(or_nameless=" OR 1 = 1" if Job._meta.pk in row.fields else "")
    params |= {"at": _sql_value(at, using), "dead": dead, "address": row.address}
    here = f"{_address(Job, using)} = %(address)s"
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {_table(Job, using)} SET {sets} WHERE {here} AND {condition}", params)
        return int(cursor.rowcount)


def _texts(row: Row, using: str) -> dict[str, str] | None:
    """Return what stands in the columns that cannot be read, and the id; None if the row is gone."""
    kind = "BLOB" if connections[using].vendor == "sqlite" else "CHAR"
    fields = (Job._meta.pk, *row.fields)
    columns = ", ".join(f"CAST({_quoted(field, using)} AS {kind})" for field in fields)
    sql = f"SELECT {columns} FROM {_table(Job, using)} WHERE {_address(Job, using)} = %(address)s"
    for values in _fetched(sql, {"address": row.address}, using):
        texts = [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in values]
        return {field.name: text for field, text in zip(fields, texts, strict=True)}
    return None


def _instead(field: models.Field[Any, Any], row: Row, texts: dict[str, str], at: datetime, using: str) -> Any:
    """Return what replaces a value that cannot be read."""
    if field.name == "attempt":
        # The fence's epoch never falls below what has been recorded.
        return 0 if Job._meta.pk in row.fields else _highest_number(texts["id"], using)
    if field.null:
        return None
    if isinstance(field, InstantField):
        return at
    if field.has_default():
        return field.get_default()
    if isinstance(field, models.IntegerField | models.FloatField):
        return 0
    return EncodedJSON(texts[field.name]) if isinstance(field, JSONTextField) else texts[field.name]


def _highest_number(job_id: str, using: str) -> int:
    attempts = Attempt.objects.using(using).filter(job_id=job_id)
    return int(attempts.aggregate(highest=Max("number"))["highest"] or 0)


def _quoted(field: models.Field[Any, Any], using: str) -> str:
    return connections[using].ops.quote_name(str(field.column))


def _address(model: type[models.Model], using: str) -> str:
    return "rowid" if connections[using].vendor == "sqlite" else _quoted(model._meta.pk, using)


def _table(model: type[models.Model], using: str) -> str:
    return connections[using].ops.quote_name(model._meta.db_table)


def _sql_value(at: datetime, using: str) -> Any:
    return InstantField().get_db_prep_value(at, connections[using])


def _fetched(sql: str, params: dict[str, Any], using: str) -> list[tuple[Any, ...]]:
    connection: Any = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            connection.connection.create_function("backwave_is_text", 1, _is_text, deterministic=True)
        cursor.execute(sql, params)
        return list(cursor.fetchall())
