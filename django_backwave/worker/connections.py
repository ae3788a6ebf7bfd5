"""The worker's database connections.

The pump and the heartbeat own a connection each, with time-outs of our own, so that a dead server or a lost
network never stops them for long. Handlers' threads keep the connections that the user's settings describe.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver
from django.utils.connection import ConnectionDoesNotExist

from django_backwave.store import plans
from django_backwave.store.locking import is_in_transaction
from django_backwave.worker import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger("django_backwave.worker")

#: Seconds to connect in, and after which an idle network is probed.
CONNECT_TIMEOUT, KEEPALIVE = 5, 5

#: Seconds that one statement of ours may take at most; never more than half a lease.
LONGEST_STATEMENT = 30.0

#: The bit in the status of MySQL's protocol that says so.
MYSQL_IN_TRANSACTION = 1

#: Seconds without use after which a handler's connection is asked whether it still works.
ASK_AFTER = 5.0


def own_connection(using: str, *, lease: float) -> None:
    """Make this thread's connection to an alias one of ours: bounded, persistent, READ COMMITTED.

    A pool is bypassed. To be called before the thread's first query; changes no other thread.
    """
    connection = connections[using]
    connection.close()
    connection.settings_dict = _own_settings(connection, bounded=using not in _unbounded, lease=lease)


def _own_settings(connection: Any, *, bounded: bool, lease: float) -> dict[str, Any]:
    settings: dict[str, Any] = copy.deepcopy(connection.settings_dict)
    settings["AUTOCOMMIT"] = True
    settings["CONN_MAX_AGE"] = None
    settings["CONN_HEALTH_CHECKS"] = False
    longest = min(LONGEST_STATEMENT, max(1.0, lease / 2))
    match connection.vendor:
        case "postgresql":
            refused = settings["OPTIONS"].get("prepare_threshold", 0) is None
            settings[plans.KEPT] = bounded and not refused
            _postgres(settings["OPTIONS"], longest, bounded=bounded)
        case "mysql":
            _mysql(settings["OPTIONS"], longest)
        case "sqlite":
            _sqlite(settings["OPTIONS"], longest)
    return settings


@contextmanager
def second_connection(using: str, *, lease: float) -> Iterator[str]:
    """Open a connection of ours beside the one that this thread has to an alias, and give its name."""
    name = f"{using} (second)"
    connection = connections[using].copy(name)
    connection.settings_dict = _own_settings(connection, bounded=using not in _unbounded, lease=lease)
    connections[name] = connection
    try:
        yield name
    finally:
        drop_connection(name)
        del connections[name]


#: Aliases behind a pooler that refuses our start-up parameters.
_unbounded: set[str] = set()


def takes_bounds(using: str) -> bool:
    """Find out whether an alias takes our time-outs as start-up parameters: a pooler may not.

    Found out by trial, for each pooler has other words for its refusal: it counts if it comes again after a
    connection without them has worked, and is remembered for ``own_connection``.
    """
    if connections[using].vendor == "postgresql":
        tries = (_connects(using, bounded=bounded) for bounded in (True, False, True))
        if not next(tries) and next(tries) and not next(tries):
            _unbounded.add(using)
    return using not in _unbounded


def _connects(using: str, *, bounded: bool) -> bool:
    probe = connections[using].copy()
    _postgres(probe.settings_dict["OPTIONS"], LONGEST_STATEMENT, bounded=bounded)
    try:
        probe.ensure_connection()
    except OperationalError:
        return False
    finally:
        probe.close()
    return True


def _postgres(options: dict[str, Any], longest: float, *, bounded: bool = True) -> None:
    options.pop("pool", None)
    options.pop("server_side_binding", None)  # PostgreSQL binds no parameters of an EXECUTE
    millis = int(longest * 1000)
    parameters = {
        "statement_timeout": millis,
        "lock_timeout": millis,
        "idle_in_transaction_session_timeout": millis,
        "default_transaction_isolation": "read\\ committed",
        **plans.UNSHAKEN,
    }
    if bounded:
        ours = " ".join(f"-c {parameter}={value}" for parameter, value in parameters.items())
        options["options"] = f"{options.get('options', '')} {ours}".strip()
    options.pop("isolation_level", None)
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT,
        "keepalives": 1,
        "keepalives_idle": KEEPALIVE,
        "keepalives_interval": KEEPALIVE,
        "keepalives_count": 2,
        "tcp_user_timeout": int(longest * 1000),
    }
    options |= defaults | options  # the user's own win


def _mysql(options: dict[str, Any], longest: float) -> None:
    seconds = max(1, int(longest))
    options["isolation_level"] = "read committed"
    options |= {
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": seconds,
        "write_timeout": seconds,
    }


def _sqlite(options: dict[str, Any], longest: float) -> None:
    options["transaction_mode"] = "IMMEDIATE"
    options["timeout"] = longest


def drop_connection(using: str) -> None:
    """Close this thread's connection after an error; the next query opens a new one."""
    connection = connections[using]
    with contextlib.suppress(Exception):
        connection.close()
    if connection.connection is not None or connection.in_atomic_block:
        # It cannot even be closed: leave it to the garbage collector and begin anew.
        settings = connection.settings_dict
        del connections[using]
        connections[using].settings_dict = settings


def forget_queries(using: str) -> None:
    """Drop the statements that Django keeps of a connection under DEBUG."""
    connections[using].queries_log.clear()


class _Opened(threading.local):
    """The connections that this thread has open; None until somebody has asked in it, the last time then."""

    connections: set[Any] | None = None
    asked_at: float = 0.0


_opened = _Opened()


@receiver(connection_created, dispatch_uid="django_backwave.hygiene")
def _note_opened(connection: Any, **_: Any) -> None:
    if _opened.connections is not None:
        _opened.connections.add(connection)


def _in_use() -> list[Any]:
    """Return the aliases' connections that this thread has open.

    Noted as they are opened: to ask Django for them costs a job more than to read its arguments and to call
    its handler. It is asked all the same now and then, for somebody else's receiver may have failed before
    ours was called.
    """
    noted, now = _opened.connections, clock.monotonic()
    if noted is None or now - _opened.asked_at >= ASK_AFTER:
        noted, _opened.asked_at = set(connections.all(initialized_only=True)), now
    _opened.connections = {each for each in noted if each.connection is not None}
    return [each for each in _opened.connections if _has_alias(each)]


def _has_alias(connection: Any) -> bool:
    """Whether a connection is what its alias stands for in this thread: a handler may have others."""
    try:
        return connections[connection.alias] is connection
    except ConnectionDoesNotExist:
        return False


class Hygiene:
    """Keeps a handler thread's connections fit, as Django does between requests.

    Unlike there a connection outlives the job also when CONN_MAX_AGE is 0, and costs no round trip per job:
    it is asked whether it works only after an error, or when it has not been used for a while.
    """

    def __init__(self) -> None:
        """Begin with no connection used."""
        self._used_at = clock.monotonic()

    def before(self) -> None:
        """Drop connections that have died while the thread was idle."""
        if clock.monotonic() - self._used_at >= ASK_AFTER:
            self._drop_all_but(lambda connection: bool(connection.is_usable()))

    def after(self) -> None:
        """Roll back what the handler left open, and drop connections that errors have broken."""
        self._drop_all_but(_clean)
        self._used_at = clock.monotonic()

    def _drop_all_but(self, is_fit: Callable[[Any], bool]) -> None:
        for connection in _in_use():
            try:
                fit = is_fit(connection)
            except Exception:  # it has died, and the driver says so to whoever asks anything of it
                fit = False
            if not fit:
                drop_connection(connection.alias)


def _clean(connection: Any) -> bool:
    """Return whether the next job may use a connection as it is."""
    if _lost(connection):
        return False
    if connection.in_atomic_block or not connection.autocommit or _left_open(connection):
        logger.warning(
            "action=transaction_left_open database=%s: rolled back; a handler must end what it begins",
            connection.alias,
        )
        return False
    connection.queries_log.clear()
    if (
        connection.settings_dict["CONN_MAX_AGE"]
        and connection.close_at is not None
        and clock.monotonic() >= connection.close_at
    ):
        return False
    if connection.errors_occurred:
        connection.errors_occurred = False
        return bool(connection.is_usable())
    return True


def in_transaction(using: str) -> bool:
    """Whether this thread has a transaction open on an alias, by Django's means or behind its back."""
    connection: Any = connections[using]
    if connection.connection is None:
        return bool(connection.in_atomic_block)
    if connection.in_atomic_block or not connection.autocommit:
        return True
    return is_in_transaction(using) if _is_silent(connection) else _ask_driver(connection)


def _lost(connection: Any) -> bool:
    """Ask the driver, without a round trip, whether a connection was closed behind Django's back."""
    raw = connection.connection
    if connection.vendor == "postgresql":
        return bool(raw.closed)
    try:
        getattr(raw, "in_transaction", False)
    except Exception:  # SQLite refuses even this question once it is closed
        return True
    return False


def _left_open(connection: Any) -> bool:
    """Whether a transaction was begun behind Django's back, and not ended."""
    if not _is_silent(connection):
        return _ask_driver(connection)
    connection.connection.rollback()  # in case there is one: a round trip costs less than a lost write
    return False


def _is_silent(connection: Any) -> bool:
    """Whether the driver knows nothing of transactions, as mysqlclient."""
    return connection.vendor == "mysql" and not hasattr(connection.connection, "server_status")


def _ask_driver(connection: Any) -> bool:
    raw = connection.connection
    match connection.vendor:
        case "postgresql":
            return bool(raw.info.transaction_status != 0)
        case "sqlite":
            return bool(raw.in_transaction)
        case "mysql":
            return bool(raw.server_status & MYSQL_IN_TRANSACTION)
    return False
