"""The slots: as many attempts run at once as there are slots, in threads or on the event loop; others wait.

Whoever ends an attempt takes up the next one that waits, without asking the pump. Until then it can be
taken back.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from django_backwave.worker.coroutines import Coroutines
from django_backwave.worker.handlers import HandlerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from django_backwave.core.protocol import AttemptKey, Report
    from django_backwave.worker.execution import Execution


class Slots:
    """Runs attempts in the order in which they are submitted, a bounded number at once."""

    def __init__(self, count: int, *, finished: Callable[[Report], None]) -> None:
        """Take the callback for ended attempts; it is called in the thread that has run them."""
        self._finished = finished
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[Execution] = deque()
        self._handlers = HandlerThreads(count, ended=self._ended_in_thread)
        self._coroutines = Coroutines(ended=self._ended_on_loop)

    def start(self) -> list[threading.Thread]:
        """Start the threads and return them."""
        self._handlers.start()
        self._coroutines.start()
        return [*self._handlers.threads, self._coroutines.thread]

    def submit(self, execution: Execution) -> None:
        """Run an attempt when a slot is free. Safe from any thread."""
        with self._lock:
            if not self._free:
                self._waiting.append(execution)
                return
            self._free -= 1
        self._begin(execution)

    def withdraw(self, keys: Collection[AttemptKey]) -> list[Execution]:
        """Take back those of these attempts that have not begun, and return them: they never will."""
        with self._lock:
            waiting = list(self._waiting)
            back = [execution for execution in waiting if execution.job.key in keys]
            self._waiting = deque(execution for execution in waiting if execution.job.key not in keys)
        return back

    def _begin(self, execution: Execution) -> None:
        if execution.is_async:
            self._coroutines.submit(execution)
        else:
            self._handlers.submit(execution)

    def _ended_in_thread(self, report: Report) -> Execution | None:
        return self._next(report, on_loop=False)

    def _ended_on_loop(self, report: Report) -> Execution | None:
        return self._next(report, on_loop=True)

    def _next(self, report: Report, *, on_loop: bool) -> Execution | None:
        """Take up what waits in the slot that is free now; return it if it can run right here."""
        self._finished(report)  # first, so that the driver never believes that a slot is free too early
        with self._lock:
            if not self._waiting:
                self._free += 1
                return None
            execution = self._waiting.popleft()
        if execution.is_async is on_loop:
            return execution
        self._begin(execution)
        return None
