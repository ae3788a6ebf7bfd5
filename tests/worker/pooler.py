"""A pooler before a PostgreSQL server that refuses start-up parameters, in words of its own."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

#: What a client asks before its start-up message: for TLS, and for GSSAPI.
ASKS = {80877103, 80877104}

REFUSAL = "Feature not supported: this proxy currently does not support command-line options"


class Pooler:
    """Forwards connections to a port of this machine, unless they bring options; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in [self._listener, *self._sockets]:
            each.close()

    def _spawn(self, function, *args) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self._spawn(self._greet, client)

    def _greet(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):
            while True:
                head = client.recv(8, socket.MSG_WAITALL)
                length, code = struct.unpack("!II", head)
                if code not in ASKS:
                    break
                client.sendall(b"N")
            message = head + client.recv(length - 8, socket.MSG_WAITALL)
            if b"\0options\0" in message:
                fields = f"SFATAL\0VFATAL\0C0A000\0M{REFUSAL}\0\0".encode()
                client.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)
                client.shutdown(socket.SHUT_RDWR)
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            server.sendall(message)
            self._spawn(self._forward, client, server)
            self._forward(server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
