"""Transactions whose end is known: what an error of COMMIT says, and of which enqueues it says it.

Needs no models, so that a block can be used as a decorator before the app registry is ready.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from django_backwave.core.operation import Disposition
from django_backwave.store.errors import in_doubt, is_of_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from django.db.backends.base.base import BaseDatabaseWrapper


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether the caller has a transaction open: one that a TestCase wraps around a test does not count."""
    if connection.in_atomic_block:
        return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    return connection.connection is not None and not connection.autocommit


def is_pending(connection: BaseDatabaseWrapper) -> bool:
    """Whether what is written now is not committed by itself."""
    if connection.connection is None:  # it will be opened as its settings say
        return connection.in_atomic_block or not connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not connection.autocommit


def dispose(error: BaseException, disposition: Disposition) -> None:
    """Let an error say what became of the enqueue that it leaves."""
    with suppress(AttributeError, TypeError):  # it takes no attributes
        error.disposition = disposition  # type: ignore[attr-defined]


def dispose_statement(error: BaseException, using: str) -> None:
    """Do so for the one statement of an enqueue without a transaction."""
    connection = connections[using]
    # Without a connection nothing was sent; inside a transaction nothing was committed.
    if connection.connection is not None and not is_pending(connection) and in_doubt(error):
        dispose(error, Disposition.UNKNOWN)


def drop_lost(error: BaseException, connection: BaseDatabaseWrapper) -> None:
    """Close a connection that was lost outside of a transaction, so that what follows opens another one.

    Django would keep it until the request ends, and a command has no request.
    """
    if is_pending(connection) or not is_of_database(error) or not in_doubt(error):
        return
    if connection.connection is not None and not connection.is_usable():
        connection.close()


@contextmanager
def dropping_lost(using: str) -> Iterator[None]:
    """Let an error of a lost connection leave none behind, so that to try again is of use."""
    try:
        yield
    except Exception as error:
        drop_lost(error, connections[using])
        raise


class committing(transaction.Atomic):  # noqa: N801 - it is used as Django's function is
    """Django's ``atomic``; an error that the end of the transaction raises has a ``disposition``.

    It is unknown where the connection was lost in COMMIT before the answer came, or the transaction was
    committed and something after that has failed.
    """

    def __init__(self, using: str | None, savepoint: bool = True, durable: bool = False) -> None:
        """Take what Django's takes."""
        super().__init__(using, savepoint, durable)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block as Django does."""
        connection = connections[self.using or DEFAULT_DB_ALIAS]
        ends = connection.in_atomic_block and not connection.savepoint_ids
        commits = ends and kind is None and _is_sound(connection)
        if commits:  # a callback that failed earlier may have left it up
            connection.run_commit_hooks_on_set_autocommit_on = False
        try:
            super().__exit__(kind, error, traceback)
        except BaseException as failure:
            if ends:
                unknown = commits and (has_landed(connection) or in_doubt(failure))
                dispose(failure, Disposition.UNKNOWN if unknown else Disposition.KNOWN_NOT_APPLIED)
            raise


def _is_sound(connection: BaseDatabaseWrapper) -> bool:
    """Whether the end of a block keeps what was written in it."""
    return connection.in_atomic_block and not (connection.needs_rollback or connection.closed_in_transaction)


def has_landed(connection: BaseDatabaseWrapper) -> bool:
    """Whether COMMIT has succeeded, although an error leaves the end of its block."""
    # Django lowers it when the callbacks that wait for the commit are through.
    return bool(connection.run_commit_hooks_on_set_autocommit_on)


class Note[T]:
    """What one call has enqueued within a transaction. ``committed``: whether that is known to be."""

    def __init__(self, savepoints: frozenset[str], enqueued: Callable[[], list[T]]) -> None:
        """Keep the savepoints within which it was, and how to say what it was."""
        self.savepoints, self.enqueued, self.committed = savepoints, enqueued, False


class _Block:
    """An open block that knows its enqueues."""

    def __init__(self) -> None:
        self.notes: list[Note[Any]] = []

    def watch(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        """Drop the enqueues of a savepoint that is rolled back."""
        done = execute(sql, params, many, context)
        if sql.startswith("ROLLBACK TO SAVEPOINT"):
            quoted = context["connection"].ops.savepoint_rollback_sql
            self.notes = [note for note in self.notes if sql not in map(quoted, note.savepoints)]
        return done


#: The open blocks of each connection, None for one inside of another. A connection belongs to one thread.
_blocks: WeakKeyDictionary[BaseDatabaseWrapper, list[_Block | None]] = WeakKeyDictionary()


def note[T](connection: BaseDatabaseWrapper, enqueued: Callable[[], list[T]]) -> Note[T]:
    """Take note of an enqueue in an open transaction; the block that commits it will know."""
    made = Note(frozenset(sid for sid in connection.savepoint_ids if sid), enqueued)
    block = next((block for block in reversed(_blocks.get(connection, ())) if block), None)
    if block is not None:
        block.notes.append(made)
    return made


class knowing(committing):  # noqa: N801 - it is used as Django's function is
    """A block that knows its enqueues: they are committed, or its COMMIT raises what ``doubt`` makes of them.

    It keeps nothing of its own, so that it serves as a decorator, in any thread. A block inside of it, ours
    or Django's, is a part of it.
    """

    def doubt(self, notes: list[Note[Any]], using: str) -> Exception:
        """Return the error that says that it is unknown whether these were applied."""
        raise NotImplementedError

    def __enter__(self) -> None:
        """Begin as Django does."""
        connection = connections[self.using or DEFAULT_DB_ALIAS]
        block = None if in_transaction(connection) else _Block()
        super().__enter__()
        _blocks.setdefault(connection, []).append(block)
        if block is not None:
            connection.execute_wrappers.append(block.watch)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block, and tell its enqueues whether they were committed."""
        connection = connections[self.using or DEFAULT_DB_ALIAS]
        block = _blocks[connection].pop()
        if block is None:
            super().__exit__(kind, error, traceback)
            return
        connection.execute_wrappers.remove(block.watch)
        keeps = kind is None and _is_sound(connection)
        try:
            super().__exit__(kind, error, traceback)
        except BaseException as failure:
            if keeps and has_landed(connection):
                _confirm(block.notes)
                vars(failure).pop("disposition", None)  # it is of what came after
            elif keeps and block.notes and getattr(failure, "disposition", None) is Disposition.UNKNOWN:
                raise self.doubt(block.notes, connection.alias) from failure
            raise
        if keeps:
            _confirm(block.notes)


def _confirm(notes: list[Note[Any]]) -> None:
    for each in notes:
        each.committed = True


def is_durable(using: str) -> bool:
    """Whether a commit on this connection is on disk when it returns, by the database's settings.

    What the disk, a replica or a file system does with it is not asked.
    """
    connection = connections[using]
    with connection.cursor() as cursor:

        def ask(sql: str) -> Any:
            cursor.execute(sql)
            return cursor.fetchone()[0]

        match connection.vendor:
            case "postgresql":
                return bool(ask("SHOW fsync") == "on" and ask("SHOW synchronous_commit") != "off")
            case "sqlite":
                journal = ask("PRAGMA journal_mode")
                return journal not in ("memory", "off") and int(ask("PRAGMA synchronous")) >= _SQLITE_FULL
        return int(ask("SELECT @@innodb_flush_log_at_trx_commit")) == 1


_SQLITE_FULL = 2
