"""Row locks and transactions, as far as each vendor can.

Lock order: job rows first, in id order, then rows that hang on them. Everything a worker locks it locks with
SKIP LOCKED, so that one locked row neither blocks a batch nor closes a circle of waiters.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, connections, transaction

from django_backwave.models import Job, Key
from django_backwave.store.committing import committing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import Model, QuerySet


def unlocked[AnyModel: Model](rows: QuerySet[AnyModel], *, using: str) -> QuerySet[AnyModel]:
    """Lock the rows that nobody else has locked, and leave out the others.

    On SQLite, which has no row locks, this is a plain read: there the writing transaction itself is the
    lock, or the guarded UPDATE that follows fails as a whole.
    """
    return _locking(rows, using, skip_locked=True)


def waiting[AnyModel: Model](rows: QuerySet[AnyModel], *, using: str) -> QuerySet[AnyModel]:
    """Lock all of the rows, waiting for those that somebody else has locked."""
    return _locking(rows, using, skip_locked=False)


def _locking[AnyModel: Model](
    rows: QuerySet[AnyModel], using: str, *, skip_locked: bool
) -> QuerySet[AnyModel]:
    features = connections[using].features
    if not features.has_select_for_update:
        return rows
    options: dict[str, Any] = {"skip_locked": skip_locked}
    if features.has_select_for_no_key_update:
        options["no_key"] = True  # nothing here changes a key, so inserts that point at it may go on
    return rows.select_for_update(**options)


#: MySQL's variable with the isolation level of a session.
MYSQL_ISOLATION = "transaction_isolation"

#: MySQL's error: the isolation level cannot be changed while a transaction is in progress.
MYSQL_REFUSES_IN_TRANSACTION = 1568


def is_in_transaction(using: str) -> bool:
    """Ask a MySQL server whether this thread has a transaction open, for drivers that do not know."""
    connection: Any = connections[using]
    with connection.cursor() as cursor:
        if connection.mysql_is_mariadb:
            cursor.execute("SELECT @@in_transaction")
            return bool(cursor.fetchone()[0])
        # MySQL has no such variable: try what it refuses in one, with the level that it has anyway.
        cursor.execute(f"SELECT @@{MYSQL_ISOLATION}")
        level = cursor.fetchone()[0].replace("-", " ")
        try:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        except OperationalError as error:
            if error.args[0] != MYSQL_REFUSES_IN_TRANSACTION:
                raise
            return True
    return False


@contextmanager
def writing(using: str) -> Iterator[None]:
    """Open a transaction (a savepoint inside the caller's) in which job rows are written."""
    with by_primary_key(using), committing(using):
        yield


def by_primary_key(using: str) -> AbstractContextManager[Any]:
    """Tell MySQL to find the rows that are to be locked or updated by their primary key.

    Left to itself it may walk an index on the state instead, or a small table, and then waits for every
    locked row on its way, whether or not that row is wanted.
    """
    connection = connections[using]
    if connection.vendor == "mysql":
        return connection.execute_wrapper(_by_primary_key)
    return nullcontext()


def _by_primary_key(
    execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    quoted = context["connection"].ops.quote_name
    for model in (Job, Key):
        sql = _hinted(sql, quoted(model._meta.db_table), quoted(model._meta.pk.column))
    return execute(sql, params, many, context)


def _hinted(sql: str, table: str, pk: str) -> str:
    hinted = f"{table} FORCE INDEX (PRIMARY)"
    if "FOR UPDATE" in sql and f"{table}.{pk} IN (" in sql:
        return sql.replace(f"FROM {table} WHERE", f"FROM {hinted} WHERE", 1)
    return sql.replace(f"UPDATE {table} SET", f"UPDATE {hinted} SET", 1)


def has_row_locks(using: str) -> bool:
    """Whether rows can be locked at all."""
    return bool(connections[using].features.has_select_for_update)


def single_statement(using: str) -> AbstractContextManager[Any]:
    """Run one statement so that its failure leaves an open transaction usable.

    Outside a transaction it is atomic by itself and costs no round trip more.
    """
    if connections[using].in_atomic_block:
        return transaction.atomic(using=using)
    return nullcontext()


def is_postgres(using: str) -> bool:
    """Whether the alias speaks PostgreSQL, for which batches have statements of their own."""
    return connections[using].vendor == "postgresql"
