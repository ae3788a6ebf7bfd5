"""Plans: on a worker's own connection PostgreSQL plans a statement once, and keeps the plan.

To plan a claim, or a settle, takes longer than to carry it out, and a worker repeats the same few for as long
as it runs. So they are prepared by name, and executed by that name from then on. The name holds a digest of
the text: whatever stands between us and the server, no statement can ever run as another one.

A kept plan may be older than the rows that it meets. What makes that safe is ``UNSHAKEN``: where no table is
read whole, and nothing sorted that an index has in order, a plan that was made for empty tables is right for
full ones, too. Where these settings did not take effect (a pooler swallowed them), and where the server does
not know a name that it was given (the pooler gives each transaction another session), nothing is kept, and
statements are sent as they are.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db import DatabaseError, connections

from django_backwave.store.errors import sqlstate
from django_backwave.store.locking import single_statement

if TYPE_CHECKING:
    from collections.abc import Mapping

#: In a connection's settings: whether plans may be kept on it.
KEPT = "BACKWAVE_KEEPS_PLANS"

#: Parameters of a session whose plans do not depend on how full the tables are just now, nor on the values of
#: the moment. Our statements find each row by an index, and end in milliseconds: to compile one takes longer.
UNSHAKEN = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "jit": "off",
}

#: What says that names do not stay with us, that a migration has changed what a statement returns, or that
#: the project's own cursors send parameters apart from the text, which EXECUTE does not take: an unknown
#: name, one that is taken, "cached plan must not change result type", no parameter $1, no type for it.
_SHAKEN = frozenset({"26000", "42P05", "0A000", "42P02", "42P18"})

_PARAMETER = re.compile(r"%\((\w+)\)s")

#: The names that each connection has prepared; None if nothing is kept on it.
_names: WeakKeyDictionary[Any, set[str] | None] = WeakKeyDictionary()


class _Statement(NamedTuple):
    """A statement as it is prepared and executed, and its parameters in order."""

    name: str
    prepare: str
    execute: str
    parameters: tuple[str, ...]


def fetch(what: str, sql: str, values: Mapping[str, Any], *, using: str) -> list[tuple[Any, ...]]:
    """Run a statement of ours and return its rows, by a kept plan where that is possible.

    ``what``: a word for it, by which it is known in ``pg_stat_activity`` and ``pg_prepared_statements``. In a
    transaction its failure leaves the transaction usable.
    """
    connection = connections[using]
    names = _names_of(connection)
    with single_statement(using), connection.cursor() as cursor:
        if names is None:
            cursor.execute(sql, values)
        else:
            _execute(cursor, _statement(what, sql), sql, values, names)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _names_of(connection: Any) -> set[str] | None:
    # In a transaction an unknown name would cost more than one statement.
    if not connection.settings_dict.get(KEPT) or connection.in_atomic_block:
        return None
    connection.ensure_connection()
    raw = connection.connection
    if raw not in _names:
        _names[raw] = set() if _is_unshaken(connection) else None
    return _names[raw]


def _is_unshaken(connection: Any) -> bool:
    with connection.cursor() as cursor:
        settings = ", ".join(["current_setting(%s)"] * len(UNSHAKEN))
        cursor.execute(f"SELECT {settings}", list(UNSHAKEN))
        return bool(cursor.fetchone() == tuple(UNSHAKEN.values()))


def _execute(
    cursor: Any, statement: _Statement, sql: str, values: Mapping[str, Any], names: set[str]
) -> None:
    try:
        if statement.name not in names:
            cursor.execute(statement.prepare)
            names.add(statement.name)
        cursor.execute(statement.execute, [values[parameter] for parameter in statement.parameters])
    except DatabaseError as error:
        if sqlstate(error) not in _SHAKEN:
            raise
        # It was refused before it did anything.
        _names[cursor.db.connection] = None
        cursor.execute(sql, values)


@lru_cache(maxsize=64)
def _statement(what: str, sql: str) -> _Statement:
    numbers: dict[str, int] = {}

    def number(parameter: re.Match[str]) -> str:
        return f"${numbers.setdefault(parameter[1], len(numbers) + 1)}"

    text = _PARAMETER.sub(number, sql).replace("%%", "%")
    name = f"backwave_{what}_{blake2b(text.encode(), digest_size=8).hexdigest()}"
    given = f"({', '.join(['%s'] * len(numbers))})" if numbers else ""
    return _Statement(name, f"PREPARE {name} AS {text}", f"EXECUTE {name}{given}", tuple(numbers))
