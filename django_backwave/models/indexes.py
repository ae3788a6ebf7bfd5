"""Indexes over some of the jobs only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.backends.ddl_references import Statement


class _PerVendor(models.Index):
    """An index that each vendor gets in its own words."""

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **kwargs: Any,
    ) -> Statement:
        """Return the statement for the editor's vendor."""
        return self._plain(schema_editor).create_sql(model, schema_editor, using=using, **kwargs)

    def _plain(self, schema_editor: BaseDatabaseSchemaEditor) -> models.Index:
        raise NotImplementedError


class StateIndex(_PerVendor):
    """Partial on PostgreSQL; elsewhere a plain index that starts with the state.

    SQLite has partial indexes, too, but does not use them for a state that is a bound parameter, and
    MySQL has none.
    """

    def __init__(self, *, states: Sequence[int], fields: Sequence[str], name: str) -> None:
        """Take the states as stored numbers."""
        self.states = tuple(int(state) for state in states)
        super().__init__(fields=list(fields), name=name)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        """Describe the index to the migration writer."""
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "states": list(self.states)}

    def _plain(self, schema_editor: BaseDatabaseSchemaEditor) -> models.Index:
        if schema_editor.connection.vendor == "postgresql":
            lone = len(self.states) == 1
            state = models.Q(state=self.states[0]) if lone else models.Q(state__in=list(self.states))
            return models.Index(fields=self.fields, name=self.name, condition=state)
        lead = [] if self.fields[0] == "state" else ["state"]
        return models.Index(fields=[*lead, *self.fields], name=self.name)


class PresentIndex(StateIndex):
    """Leaves out the rows whose first column is null as well, where the database can."""

    def _plain(self, schema_editor: BaseDatabaseSchemaEditor) -> models.Index:
        index = super()._plain(schema_editor)
        if schema_editor.connection.features.supports_partial_indexes:
            present = models.Q(**{f"{self.fields[0]}__isnull": False})
            index.condition = present if index.condition is None else index.condition & present
        return index


class FilledIndex(_PerVendor):
    """Leaves out the rows whose first column is null, where the database can."""

    def _plain(self, schema_editor: BaseDatabaseSchemaEditor) -> models.Index:
        partial = schema_editor.connection.features.supports_partial_indexes
        filled = models.Q(**{f"{self.fields[0]}__isnull": False}) if partial else None
        return models.Index(fields=self.fields, name=self.name, condition=filled)
