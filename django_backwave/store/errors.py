"""What a database error means for the batch that met it."""

from __future__ import annotations

from django.db import DataError, IntegrityError, OperationalError

#: The database, or its driver, will never accept these values: trying again is useless.
_REFUSALS = (DataError, IntegrityError, UnicodeError, OverflowError)

#: MySQL reports some refused values as operational errors: wrong string value, wrong JSON, no default.
_MYSQL_REFUSALS = frozenset({1366, 3140, 3141, 1264, 1406})


def refuses_data(error: BaseException) -> bool:
    """Whether the values themselves were refused, so that a batch must be settled one by one."""
    if isinstance(error, OperationalError):
        return bool(error.args) and error.args[0] in _MYSQL_REFUSALS
    return isinstance(error, _REFUSALS)
