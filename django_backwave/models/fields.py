"""Fields that mean the same on every database: exact text, instants in UTC, JSON kept as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import models
from django.db.models import ExpressionWrapper, F, OrderBy

from django_backwave.core.jsontext import decode_json, encode_json
from django_backwave.instants import to_rim, to_utc

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.expressions import Combinable


# Type checkers know fields as generic in what is set and what is got; at run time they are not.
if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
    _CharField = models.CharField[str | Combinable, str]
    _TextField = models.TextField[str | Combinable, str]
    _AnyTextField = models.TextField[Any, Any]
    _DateTimeField = models.DateTimeField[Any, Any]
else:
    _Field = object
    _CharField, _TextField, _AnyTextField = models.CharField, models.TextField, models.TextField
    _DateTimeField = models.DateTimeField


def _exact_collation(connection: BaseDatabaseWrapper) -> str | None:
    """Return the collation that compares byte for byte, trailing spaces included."""
    if connection.vendor == "mysql":
        is_mariadb = getattr(connection, "mysql_is_mariadb", False)
        return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    # PostgreSQL's other collations order by language rules, which is slower and differs by server.
    return "C" if connection.vendor == "postgresql" else None


class _Exact(_Field):
    """Gives a text column the vendor's byte-wise collation."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Add the vendor's byte-wise collation to the column's type."""
        return {**super().db_parameters(connection), "collation": _exact_collation(connection)}


class ExactCharField(_Exact, _CharField):
    """A CharField that never merges "order:A" and "order:a", nor "x" and "x "."""


class ExactTextField(_Exact, _TextField):
    """A TextField that stores any text, whatever the database's default character set."""


class JSONTextField(_Exact, _AnyTextField):
    """A JSON value, stored as the very text that was encoded.

    Databases' own JSON types change what they store: jsonb turns 1e22 into an integer and reorders
    keys, MySQL rounds numbers. A job's arguments must come out as they went in.
    """

    def from_db_value(self, value: str | None, *_: object) -> Any:
        """Decode the stored text; what is no JSON comes as it stands, for it must not hide its row."""
        try:
            return None if value is None else decode_json(value)
        except (RecursionError, TypeError, ValueError):
            return BrokenJSON(value)

    def get_prep_value(self, value: Any) -> str | None:
        """Encode a value; text already encoded comes as ``EncodedJSON`` and is kept as it is."""
        if value is None or isinstance(value, EncodedJSON):
            return value
        return encode_json(value)

    def to_python(self, value: Any) -> Any:
        """Return the value as it is: it is never parsed from a form."""
        return value

    def value_to_string(self, obj: models.Model) -> Any:
        """Give ``dumpdata`` the value itself, as Django's JSONField does: ``loaddata`` encodes it again."""
        return self.value_from_object(obj)


class EncodedJSON(str):
    """JSON text that was checked and encoded before."""

    __slots__ = ()


def readable(sql: str, vendor: str = "postgresql") -> str:
    """Return a vendor's words for an instant as far as a datetime can hold it.

    PostgreSQL's infinities and years that Python does not have come as the nearest that it has. What is no
    instant at all, as people can write by hand on SQLite and MySQL, comes as NULL. To read it as it stands
    would fail, and take everything along that is read in the same statement.
    """
    if vendor == "postgresql":
        bounded = f"LEAST(GREATEST({sql}, '0001-01-02Z'::timestamptz), '9999-12-30Z'::timestamptz)"
        return f"CASE WHEN {sql} IS NOT NULL THEN {bounded} END"  # those two ignore NULL
    if vendor == "sqlite":
        # A modifier, or SQLite gives the 31st of February back as it was written.
        day = f"date({sql}, '+0 days') = substr({sql}, 1, 10)"
        sound = f"typeof({sql}) = 'text' AND substr({sql}, 1, 4) > '0000' AND {day}"
    else:
        sound = f"YEAR({sql}) > 0 AND MONTH({sql}) > 0 AND DAYOFMONTH({sql}) > 0"
    return f"CASE WHEN {sound} THEN {sql} END"


def by_instant(name: str, *, descending: bool = False) -> OrderBy:
    """Order by a column that the same query selects with ``values_list``, so that an index serves.

    Django would order by what is selected, which is what ``readable`` makes of the column.
    """
    return OrderBy(ExpressionWrapper(F(name), output_field=InstantField()), descending=descending)


class BrokenJSON(EncodedJSON):
    """Text in a column for JSON that is none: somebody has written it by hand."""

    __slots__ = ()


class InstantField(_DateTimeField):
    """A DateTimeField whose column holds UTC, whatever USE_TZ and TIME_ZONE say.

    In Python it follows Django's custom: aware values under USE_TZ, else naive ones in TIME_ZONE.
    Given values may be either; an aware one is exact under both settings.
    """

    def get_prep_value(self, value: Any) -> Any:
        """Turn any datetime, or text or date that means one, into an aware one in UTC."""
        value = self.to_python(models.Field.get_prep_value(self, value))
        return to_utc(value) if isinstance(value, datetime) else value

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        """Give the database UTC: PostgreSQL with its zone, the others as bare wall time."""
        if not prepared:
            value = self.get_prep_value(value)
        if not isinstance(value, datetime) or connection.vendor == "postgresql":
            return value
        return str(value.replace(tzinfo=None))

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Read what can be read; on PostgreSQL without USE_TZ as UTC: local time is ambiguous in autumn."""
        vendor = compiler.connection.vendor
        shown = readable(sql, vendor)
        params = tuple(params) * shown.count(sql)
        if vendor == "postgresql" and not settings.USE_TZ:
            return f"(({shown}) AT TIME ZONE 'UTC')", params
        return shown, params

    def from_db_value(self, value: datetime | None, *context: Any) -> datetime | None:
        """Read the column's wall time as UTC, then follow Django's custom."""
        if value is None:
            return None
        connection = context[-1]
        if connection.vendor == "postgresql" and settings.USE_TZ:
            return value.astimezone(UTC)
        value = value.replace(tzinfo=UTC)  # whatever zone the backend assumed, the column is UTC
        return value if settings.USE_TZ else to_rim(value)
