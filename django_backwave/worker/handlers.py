"""The handlers' threads: each runs one attempt at a time, in a context and with connections of its own."""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from typing import TYPE_CHECKING

from django.core.cache import caches

from django_backwave.compat import task_backends
from django_backwave.worker.connections import Hygiene

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_backwave.core.protocol import Report
    from django_backwave.worker.execution import Execution


class HandlerThreads:
    """A fixed number of daemon threads that run what is put to them and report each end.

    Daemons, so that a handler that never returns cannot hold up the end of the process.
    """

    def __init__(self, count: int, *, ended: Callable[[Report], Execution | None]) -> None:
        """Take the callback for ended attempts; what it returns runs next in the same thread."""
        self._ended = ended
        self._work: queue.SimpleQueue[Execution] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._serve, name=f"backwave-handler-{n}", daemon=True)
            for n in range(1, count + 1)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    def submit(self, execution: Execution) -> None:
        """Run an attempt in the next free thread."""
        self._work.put(execution)

    def _serve(self) -> None:
        process = os.getpid()
        hygiene = Hygiene()
        base = _base_context()
        following: Execution | None = None
        while True:
            execution = following or self._work.get()
            hygiene.before()
            # A copy for each job: what one activates (language, time zone) the next never sees.
            report = base.copy().run(execution.run)
            if os.getpid() != process:
                os._exit(0)  # a child that the handler forked, and that came back here
            hygiene.after()
            following = self._ended(report)


def _base_context() -> contextvars.Context:
    """Return the context whose copies the jobs of one thread run in."""

    def touched() -> contextvars.Context:
        touch_shared()
        return contextvars.copy_context()

    return contextvars.Context().run(touched)


def touch_shared() -> None:
    """Open what lives in context variables once, so that copies of this context share it.

    Otherwise each job would open new cache clients and task backends.
    """
    for alias in caches.settings:
        caches[alias]
    for alias in task_backends.settings:
        task_backends[alias]
