"""Write a literal into a row as somebody at a database's own prompt would."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, connection, transaction
from django.db.models import Model


def write(model: type[Model], pk: Any, column: str, literal: str) -> bool:
    """Write a literal into a column of a row; False if the database itself keeps that out."""
    quote = connection.ops.quote_name
    key = model._meta.pk
    table, address = quote(model._meta.db_table), quote(key.column)
    literal = literal.replace("%", "%%")
    sql = f"UPDATE {table} SET {quote(column)} = {literal} WHERE {address} = %s"  # noqa: S608 - all of it is ours
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SET SESSION sql_mode = ''")
        try:
            with transaction.atomic():
                cursor.execute(sql, [key.get_db_prep_value(pk, connection)])
        except DatabaseError:
            return False
        finally:
            if connection.vendor == "mysql":
                cursor.execute("SET SESSION sql_mode = 'STRICT_TRANS_TABLES'")
    return True
