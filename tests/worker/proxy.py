"""A TCP proxy between a worker and its database: it can cut all connections, or hold them still."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.postgres import free_port


class Proxy:
    """Forwards to a port of this machine; use it as a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._word: bytes | None = None
        self._after = b""
        self._forwarding = True
        self._refused: bytes | None = None
        self._answer = b""
        self.swallowed = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._flowing.set()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """Break every connection, and let nobody through until `restore`."""
        with self._lock:
            self._refusing = True
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _close(each)

    def hold(self) -> None:
        """Let nothing pass from now on; the connections stay open and say nothing."""
        self._flowing.clear()

    def restore(self) -> None:
        """Let everything pass again, what was held first; no word is waited for any more."""
        self._word = None
        self._refusing = False
        self._flowing.set()

    def swallow(self, word: bytes, *, after: bytes, forward: bool) -> None:
        """Let nothing pass once a client has said this word, after another on the same connection.

        The word itself passes, or it does not; then `swallowed` is set.
        """
        self._forwarding = forward
        self._after = after
        self._word = word

    def refuse(self, word: bytes, *, answer: bytes) -> None:
        """Answer whoever says this word in the other's place, and hang up."""
        self._refused, self._answer = word, answer

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _close(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # it is down
                _close(client)
                continue
            with self._lock:
                self._sockets |= {client, server}
            self._spawn(lambda pair=(client, server): self._forward(*pair))
            self._spawn(lambda pair=(server, client): self._forward(*pair))

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        said = False
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flowing.wait()
                if self._refused is not None and self._refused in data:
                    source.sendall(self._answer)
                    break
                said = said or (self._word is not None and self._after in data)
                if said and self._word is not None and self._word in data:
                    self._word = None
                    self.hold()
                    if self._forwarding:
                        sink.sendall(data)
                    self.swallowed.set()
                    self._flowing.wait()
                else:
                    sink.sendall(data)
        _close(sink)

    def _spawn(self, target) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
