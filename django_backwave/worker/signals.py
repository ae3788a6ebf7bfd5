"""The signals that a worker catches, in its own process and not in those that its handlers fork."""

from __future__ import annotations

import os
import signal
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is caught, each with what it did before.
_caught: dict[int, Any] = {}
_forking = threading.local()


def catch(handler: Callable[[int, Any], None]) -> None:
    """Call a handler at SIGTERM and SIGINT, until ``let_go``. For the main thread only."""
    _watch_forks()
    for number in (signal.SIGTERM, signal.SIGINT):
        _caught[number] = signal.signal(number, handler)


def let_go() -> None:
    """Let the signals do again what they did before."""
    while _caught:
        signal.signal(*_caught.popitem())


@cache
def _watch_forks() -> None:
    # Whoever terminates a process that he has forked waits for its end. Python forgets signals that come
    # before a child has put itself in order, so they are held up for so long.
    os.register_at_fork(before=_hold_up, after_in_parent=_let_through, after_in_child=_begin_anew)


def _hold_up() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _caught)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin_anew() -> None:
    let_go()
    _let_through()
