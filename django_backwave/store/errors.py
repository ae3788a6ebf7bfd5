"""What a database error means for the batch that met it."""

from __future__ import annotations

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError

#: The database, its driver or Python will never accept these values: trying again is useless.
_REFUSALS = (DataError, IntegrityError, ValueError, TypeError, OverflowError)

#: MySQL reports some refused values as operational errors: wrong string value, wrong JSON, a number out of
#: range, a text too long, a packet bigger than the server takes.
_MYSQL_REFUSALS = frozenset({1366, 3140, 3141, 1264, 1406, 1153})

_POSTGRES_LOCK_TIMEOUT, _MYSQL_LOCK_TIMEOUT, _SQLITE_BUSY = "55P03", 1205, 5

#: What PostgreSQL says, as prefixes of its codes, when it cannot say whether it has committed: connection
#: exceptions, a statement whose completion is unknown, a shutdown, a failing disk, an internal error.
_POSTGRES_DOUBTS = ("08", "40003", "57P", "58", "XX")

#: The same for MySQL and MariaDB: all errors of the client's side, a server that shuts down, or hangs up.
_MYSQL_CLIENT, _MYSQL_DOUBTS = range(2000, 3000), frozenset({0, 1053, 1927, 4031})

_SQLITE_DISK_ERROR = 10


def refuses_data(error: BaseException) -> bool:
    """Whether the values themselves were refused, so that a batch must be settled one by one."""
    if isinstance(error, OperationalError):
        return bool(error.args) and error.args[0] in _MYSQL_REFUSALS
    return isinstance(error, _REFUSALS)


def lock_timed_out(error: BaseException) -> bool:
    """Whether a statement gave up waiting for somebody else's lock; nothing is wrong with what it writes."""
    if sqlstate(error) == _POSTGRES_LOCK_TIMEOUT or _sqlite_code(error) == _SQLITE_BUSY:
        return True
    return bool(error.args) and error.args[0] == _MYSQL_LOCK_TIMEOUT


def in_doubt(error: BaseException) -> bool:
    """Whether a statement, or COMMIT, that raised this may have been carried out all the same.

    It may, unless the server has said that it was not, or nothing was sent to it: the connection was lost
    before the answer came, or something else broke in meanwhile.
    """
    if isinstance(error, (SynchronousOnlyOperation, *_REFUSALS)):
        return False
    if not is_of_database(error):
        return True
    if (state := sqlstate(error)) is not None:
        return state.startswith(_POSTGRES_DOUBTS)
    if (code := _sqlite_code(error)) is not None:
        return code == _SQLITE_DISK_ERROR
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        return number in _MYSQL_CLIENT or number in _MYSQL_DOUBTS
    # A driver that has lost the server says so in its own words, and gives no code.
    return isinstance(error, OperationalError | InterfaceError)


def is_of_database(error: BaseException) -> bool:
    """Whether the error is the database's, or its driver's."""
    return isinstance(error, DatabaseError | InterfaceError)


def sqlstate(error: BaseException) -> str | None:
    """Return PostgreSQL's code, from either of its drivers."""
    cause = error.__cause__
    code: str | None = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return code


def _sqlite_code(error: BaseException) -> int | None:
    """Return SQLite's primary code."""
    code = getattr(error.__cause__, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
