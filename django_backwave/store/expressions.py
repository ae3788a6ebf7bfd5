"""SQL expressions that Django has no good ones for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import Expression

from django_backwave.models.fields import InstantField

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID


class InstantByKey(Expression):
    """An instant for each row of an UPDATE by its primary key; rows without one keep what the column has.

    ``Case`` with a ``When`` a row says the same, and takes longer to compile than the UPDATE to run.
    """

    def __init__(self, column: str, instants: Mapping[UUID, datetime]) -> None:
        """Take the column that is kept, and the instants by key."""
        super().__init__(output_field=InstantField())
        self._column = column
        self._instants = instants

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        """Return one simple CASE over the key."""
        table, instant = compiler.query.get_meta(), self.output_field
        quote = connection.ops.quote_name
        params: list[Any] = []
        for key, at in self._instants.items():
            params.append(table.pk.get_db_prep_value(key, connection))
            params.append(instant.get_db_prep_value(at, connection))
        whens = "WHEN %s THEN %s " * len(self._instants)
        return f"CASE {quote(table.pk.column)} {whens}ELSE {quote(self._column)} END", tuple(params)
