"""``manage.py shop``: the shop in a browser: the web server and one worker, started and ended together."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from django_backwave.management.arguments import whole
from shop.serve import Together, stop_signals

HOST = "127.0.0.1"

#: Seconds until the web server must answer.
PATIENCE = 60.0

#: Seconds that running handlers get when the shop is closed; what is unfinished then runs again next time.
SHUTDOWN = "2"


class Command(BaseCommand):
    help = "Run the shop: a web server and one worker, on a database that stays for the next time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port",
            type=whole(1, 65535),
            default=8000,
            metavar="N",
            help=f"Where the web server listens on {HOST}. Default: 8000.",
        )

    def handle(self, **options: Any) -> None:
        port = options["port"]
        with stop_signals() as stop:
            _require_free(port)
            self._say("Preparing the database ...")
            settings.FOLDER.mkdir(parents=True, exist_ok=True)
            call_command("migrate", verbosity=0, interactive=False)
            password = _new_password()
            connection.close()
            together = Together(stop)
            try:
                self._run(together, port, password)
            finally:
                together.end()
                self._say("The shop is closed. Orders and jobs are kept for the next time.")

    def _run(self, together: Together, port: int, password: str) -> None:
        server = together.start("web server", "runserver", "--noreload", f"{HOST}:{port}", quiet=True)
        worker = together.start("worker", "backwave_worker", "--shutdown-timeout", SHUTDOWN)
        if together.wait_for(lambda: _answers(port), within=PATIENCE):
            self._say(_welcome(port, password, server.pid, worker.pid))
            together.wait()
        if together.stop_is_wanted:
            return
        ended = together.ended()
        if ended is None:
            raise CommandError(f"The web server has not answered within {PATIENCE:.0f} s.")
        raise CommandError(f"The {ended.label} has ended ({ended.how_it_ended}), so all is stopped.")

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _new_password() -> str:
    """Make the admin's user, or give it a new password; return the password."""
    users = get_user_model()
    password = secrets.token_urlsafe(9)
    admin, _ = users.objects.get_or_create(username="admin")
    admin.is_active = admin.is_staff = admin.is_superuser = True
    admin.set_password(password)
    admin.save()
    return password


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise CommandError(
                f"Port {port} cannot be used: {error.strerror}. Choose another one: make shop PORT=8001"
            ) from error


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _welcome(port: int, password: str, server: int, worker: int) -> str:
    place = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        place = os.path.relpath(place) if Path(place).is_relative_to(Path.cwd()) else place
    return f"""
  The shop     http://localhost:{port}/
  The admin    http://localhost:{port}/admin/
               user admin, password {password} (a new one at each start)

  Web server   process {server}
  Worker       process {worker}; its log follows
  Database     {place}

  Ctrl-C stops both.
"""
