"""Connections of a test that are in its transaction, as handlers meet them in production: in none.

A TestCase wraps each test in a transaction. A handler in a worker begins outside of any: what it writes is
there at once, whether or not it fails later; an error of one statement spoils no other; its outermost
``atomic()`` may be durable, and its ``on_commit`` callbacks run when that ends. One savepoint around the
whole handler would get most of these wrong. So for a while the connection says that it is in autocommit
mode, and does with savepoints of the test's transaction what it does with transactions otherwise.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger("django_backwave.testing")

#: What a connection in autocommit mode says of itself. Lists are made anew each time.
_AUTOCOMMIT: dict[str, Callable[[], Any]] = {
    "atomic_blocks": list,
    "autocommit": lambda: True,
    "closed_in_transaction": lambda: False,
    "commit_on_exit": lambda: True,
    "in_atomic_block": lambda: False,
    "needs_rollback": lambda: False,
    "rollback_exc": lambda: None,
    "run_commit_hooks_on_set_autocommit_on": lambda: False,
    "run_on_commit": list,
    "savepoint_ids": list,
}

#: The savepoints' name; they are never nested in each other.
_NAME = "backwave_testing"


@contextmanager
def as_in_autocommit() -> Iterator[None]:
    """Let this thread's connections that are in a transaction behave as if they were in none."""
    with ExitStack() as stack:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                connection.validate_no_broken_transaction()
                stack.enter_context(_Disguise(connection).worn())
        yield


def roll_back_what_is_open() -> None:
    """Roll back the transactions that a handler has begun and not ended, as a worker does."""
    for connection in connections.all(initialized_only=True):
        given = connection.settings_dict["AUTOCOMMIT"]
        left_open = connection.in_atomic_block or connection.autocommit is not given
        if connection.connection is None or not left_open:
            continue
        logger.warning(
            "action=transaction_left_open database=%s: rolled back; a handler must end what it begins",
            connection.alias,
        )
        _become(connection, {name: make() for name, make in _AUTOCOMMIT.items() if name != "autocommit"})
        connection.rollback()
        connection.set_autocommit(given)


class _Disguise:
    """Lets one connection act as if it were in autocommit mode, while a transaction is open on it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        # Elsewhere a statement that fails takes only itself back.
        self._errors_abort = connection.vendor == "postgresql"
        self._begun = False

    @contextmanager
    def worn(self) -> Iterator[None]:
        connection = self._connection
        kept = {name: getattr(connection, name) for name in _AUTOCOMMIT}
        methods = {
            "_commit": self._commit,
            "_rollback": self._rollback,
            "_set_autocommit": self._set_autocommit,
            "close": self._stay_open,
        }
        if hasattr(connection, "_start_transaction_under_autocommit"):
            methods["_start_transaction_under_autocommit"] = self._begin
        _become(connection, {name: make() for name, make in _AUTOCOMMIT.items()} | methods)
        try:
            with connection.execute_wrapper(self._execute):
                yield
        finally:
            try:
                self._rollback()
            finally:
                for name in methods:
                    delattr(connection, name)  # the class has the real ones
                _become(connection, kept)

    # In the place of the connection's own methods.

    def _begin(self) -> None:
        if not self._begun:
            self._send(f"SAVEPOINT {_NAME}")
            self._begun = True

    def _commit(self) -> None:
        if not self._begun:
            return
        if self._connection.features.can_defer_constraint_checks:
            # As COMMIT does. On PostgreSQL it also defers again what an atomic job had checked at once.
            self._connection.check_constraints()
        self._send(f"RELEASE SAVEPOINT {_NAME}")
        self._begun = False

    def _rollback(self) -> None:
        if self._begun:
            self._send(f"ROLLBACK TO SAVEPOINT {_NAME}")
            self._send(f"RELEASE SAVEPOINT {_NAME}")
            self._begun = False

    def _set_autocommit(self, autocommit: bool) -> None:
        if autocommit:
            self._commit()
        else:
            self._begin()

    def _stay_open(self) -> None:
        """Do nothing: the test's transaction would be lost."""

    def _execute(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        if isinstance(sql, str) and sql.startswith("SET TRANSACTION "):
            return None  # atomic jobs send it, and a transaction under way keeps the level that it has
        if not self._connection.autocommit:
            self._begin()  # after transaction.set_autocommit(False) each commit begins the next one
        elif self._errors_abort:
            return self._alone(lambda: execute(sql, params, many, context))
        return execute(sql, params, many, context)

    def _alone(self, execute: Callable[[], Any]) -> Any:
        self._begin()
        try:
            answer = execute()
        except BaseException:
            self._rollback()
            raise
        self._send(f"RELEASE SAVEPOINT {_NAME}")
        self._begun = False
        return answer

    def _send(self, sql: str) -> None:
        """Send a statement that neither query counts nor other wrappers see."""
        with closing(self._connection.connection.cursor()) as cursor:
            cursor.execute(sql)


def _become(connection: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(connection, name, value)
