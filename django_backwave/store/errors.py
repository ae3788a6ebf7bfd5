"""What a database error means for the batch that met it."""

from __future__ import annotations

from django.db import DataError, IntegrityError, OperationalError

#: The database, its driver or Python will never accept these values: trying again is useless.
_REFUSALS = (DataError, IntegrityError, ValueError, TypeError, OverflowError)

#: MySQL reports some refused values as operational errors: wrong string value, wrong JSON, a number out of
#: range, a text too long, a packet bigger than the server takes.
_MYSQL_REFUSALS = frozenset({1366, 3140, 3141, 1264, 1406, 1153})

_POSTGRES_LOCK_TIMEOUT, _MYSQL_LOCK_TIMEOUT = "55P03", 1205


def refuses_data(error: BaseException) -> bool:
    """Whether the values themselves were refused, so that a batch must be settled one by one."""
    if isinstance(error, OperationalError):
        return bool(error.args) and error.args[0] in _MYSQL_REFUSALS
    return isinstance(error, _REFUSALS)


def lock_timed_out(error: BaseException) -> bool:
    """Whether a statement gave up waiting for somebody else's lock; nothing is wrong with what it writes."""
    if getattr(error.__cause__, "sqlstate", None) == _POSTGRES_LOCK_TIMEOUT:
        return True
    return bool(error.args) and error.args[0] == _MYSQL_LOCK_TIMEOUT
