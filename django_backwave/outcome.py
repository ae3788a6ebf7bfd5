"""What became of an enqueue: receipts, what its errors say, and a block that knows its enqueues."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Self, overload

from asgiref.sync import sync_to_async
from django.db import connections

from django_backwave.core.operation import Confirmed, Disposition
from django_backwave.exceptions import EnqueueOutcomeUnknown
from django_backwave.store.committing import (
    dispose,
    drop_lost,
    in_transaction,
    is_durable,
    is_pending,
    knowing,
    note,
)
from django_backwave.store.errors import in_doubt, is_of_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from django_backwave.prepared import PreparedEnqueue
    from django_backwave.store.committing import Note

    type Prepared = Callable[[], list[PreparedEnqueue]]


class Receipt:
    """What is known of the commit of an enqueue."""

    __slots__ = ("_confirmed", "_note", "_using")

    def __init__(self, using: str, note: Note[PreparedEnqueue] | None) -> None:
        """Take the database, and the note of an enqueue in an open transaction."""
        self._using, self._note = using, note
        self._confirmed: Confirmed | None = None

    def __repr__(self) -> str:
        """Say whether it is pending; that asks nobody."""
        return f"<Receipt {'pending' if self._is_pending else 'committed'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is known: the copy learns of no commit that is pending now."""
        return _copy, (self._using, Confirmed.IN_TRANSACTION if self._is_pending else self._confirmed)

    @property
    def _is_pending(self) -> bool:
        return self._confirmed is Confirmed.IN_TRANSACTION or (
            self._note is not None and not self._note.committed
        )

    @property
    def confirmed(self) -> Confirmed:
        """Whether the enqueue is committed, and durably so.

        "in_transaction": its commit was the caller's, and this receipt has not learnt of it; it learns of the
        end of ``django_backwave.atomic()``. "committed". "committed_durable": also a power loss does not undo
        it, as the database is set up. The database is asked for that once, when this is first read.
        """
        if self._is_pending:
            return Confirmed.IN_TRANSACTION
        if self._confirmed is None:
            durable = is_durable(self._using)
            self._confirmed = Confirmed.COMMITTED_DURABLE if durable else Confirmed.COMMITTED
        return self._confirmed

    async def aconfirmed(self) -> Confirmed:
        """Return what ``confirmed`` says, in a coroutine, which must not ask a database itself."""
        return await sync_to_async(lambda: self.confirmed, thread_sensitive=True)()


def _copy(using: str, confirmed: Confirmed | None) -> Receipt:
    receipt = Receipt(using, None)
    receipt._confirmed = confirmed
    return receipt


class Enqueuing:
    """A block around an enqueue: each error that leaves it has a ``disposition``.

    One that may have been applied, for the connection was lost, is raised as EnqueueOutcomeUnknown.
    """

    __slots__ = ("_connection", "_pending", "_prepared", "_written")

    def __init__(self) -> None:
        """Begin with nothing sent: whatever goes wrong now, nothing is applied."""
        self._pending, self._written = False, False
        self._connection: Any = None
        self._prepared: Prepared = list

    def sends(self, using: str, prepared: Prepared) -> None:
        """Say what is now sent, and where to."""
        self._connection, self._prepared = connections[using], prepared
        # Now: a transaction that is lost leaves nothing behind that tells.
        self._pending = is_pending(self._connection)

    def receipt(self) -> Receipt:
        """Say that it was written, and return the receipt. Something must have been sent."""
        self._written = True
        pending = self._pending and in_transaction(self._connection)
        return Receipt(self._connection.alias, note(self._connection, self._prepared) if pending else None)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let an error say what became of the enqueue."""
        if error is None:
            return
        if self._connection is not None:
            drop_lost(error, self._connection)
        if not self._is_in_doubt(error):
            dispose(error, Disposition.KNOWN_NOT_APPLIED)
        elif self._connection is not None and is_of_database(error) and not self._pending:
            raise _unknown(self._prepared(), self._connection.alias) from error
        else:
            dispose(error, Disposition.UNKNOWN)

    def _is_in_doubt(self, error: BaseException) -> bool:
        if self._pending and is_of_database(error) and in_doubt(error):
            return False  # a transaction whose connection is lost is never committed
        return self._written or getattr(error, "disposition", None) is Disposition.UNKNOWN


def _unknown(prepared: list[PreparedEnqueue], using: str) -> EnqueueOutcomeUnknown:
    jobs = "1 job was" if len(prepared) == 1 else f"{len(prepared):,} jobs were"
    return EnqueueOutcomeUnknown(
        f"The connection to {using!r} was lost while {jobs} being enqueued: whether that was applied is not "
        "known. Do not enqueue anew. The error's `prepared` has each of them: resolve() says whether it was "
        "applied, and enqueue() applies it once.",
        prepared,
    )


async def in_thread[**P, R](function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Enqueue from a coroutine. One that is cancelled meanwhile does not know what the thread still does."""
    try:
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)
    except CancelledError as error:
        dispose(error, Disposition.UNKNOWN)
        raise


class _Atomic(knowing):
    """What ``atomic`` returns."""

    @property
    def using(self) -> str:
        """The alias that was given, else the one of the jobs: as the settings say it when it is needed."""
        from django_backwave.backend import jobs_database

        return self._alias or jobs_database()

    @using.setter
    def using(self, alias: str | None) -> None:
        self._alias = alias

    def doubt(self, notes: list[Note[Any]], using: str) -> Exception:
        """Return the error that has what was enqueued in the block."""
        return _unknown([prepared for each in notes for prepared in each.enqueued()], using)


@overload
def atomic[F: Callable[..., Any]](using: F) -> F: ...
@overload
def atomic(using: str | None = None, savepoint: bool = True, durable: bool = False) -> _Atomic: ...
def atomic(using: Any = None, savepoint: bool = True, durable: bool = False) -> Any:
    """Open a transaction on the jobs' database, as Django's ``atomic`` does, that knows its enqueues.

    A context manager, and a decorator. When its COMMIT has succeeded, their receipts say so. When the
    connection is lost in it, EnqueueOutcomeUnknown has all of them, prepared. Any other error of COMMIT has
    the ``disposition`` "known_not_applied". Inside another block it is a savepoint, and the outermost one
    decides: if that is Django's own, nothing is known of its end.
    """
    if callable(using):
        return _Atomic(None, savepoint, durable)(using)
    return _Atomic(using, savepoint, durable)
