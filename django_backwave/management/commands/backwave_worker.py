"""``manage.py backwave_worker``: run jobs until told to stop."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from django.utils.autoreload import file_changed, run_with_reloader

from django_backwave import conf
from django_backwave.core.driver import FLUSH_GRACE, STOP_GRACE, Options
from django_backwave.discovery import discover
from django_backwave.management.arguments import seconds, whole
from django_backwave.management.database import usable_database
from django_backwave.worker.connections import takes_bounds
from django_backwave.worker.worker import Worker, end_process

#: Seconds that a handler may go on when code has changed, before it is told to stop.
RELOAD_PATIENCE = 2.0


class Command(BaseCommand):
    """Runs jobs until SIGTERM or SIGINT, or until drained."""

    help = "Run background jobs. SIGTERM or SIGINT stops it in order; a second one at once."
    _ends_process = False
    _worker: Worker | None = None

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; all durations are seconds."""
        add = parser.add_argument
        add(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="Serve this queue; may be given several times. Default: all queues.",
        )
        add(
            "--concurrency",
            type=whole(1, 1000),
            default=10,
            metavar="N",
            help="Handlers that run at the same time, each in a thread. Default: 10.",
        )
        add(
            "--lease",
            type=seconds(1),
            metavar="S",
            help="Seconds after which a job of a dead worker is taken over. Default: BACKWAVE LEASE, 60.",
        )
        add(
            "--poll",
            type=seconds(0.01),
            metavar="S",
            help="The longest time between two looks for due jobs. Default: BACKWAVE POLL, 1.",
        )
        add("--drain", action="store_true", help="End with 0 once nothing is due any more.")
        add(
            "--max-jobs",
            type=whole(1, 2**31),
            metavar="N",
            help="End with 0 after running this many jobs; a supervisor starts a fresh process.",
        )
        add(
            "--shutdown-timeout",
            type=seconds(0),
            default=25.0,
            metavar="S",
            help="Seconds to wait for running handlers at a stop, before they are told. Default: 25.",
        )
        add("--database", metavar="ALIAS", help="Where the jobs are. Default: where they are enqueued.")
        add(
            "--heartbeat-file",
            type=Path,
            metavar="PATH",
            help="Touched as long as the worker's own threads make progress; for liveness probes.",
        )

        add(
            "--reload",
            action="store_true",
            help="Start anew whenever code changes. Only under DEBUG.",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Remember that this process is ours to end."""
        self._ends_process = True
        super().run_from_argv(argv)

    def handle(self, **options: Any) -> None:
        """Run a worker, or one after another while code changes."""
        _log_to_console(options["verbosity"])
        if options["reload"]:
            self._reload(**options)
        else:
            self._work(**options)

    def _work(self, **options: Any) -> None:
        discover()
        using = usable_database(options["database"])
        connections[using].close()  # the worker's threads open their own
        if not takes_bounds(using):
            logging.getLogger("django_backwave.worker").warning(
                "action=pooler_found database=%s: it refuses start-up parameters, so the worker's statements "
                "have no time-outs. Give the worker an alias past the pooler: --database ALIAS",
                using,
            )
        self._worker = Worker(
            Options(
                queues=tuple(dict.fromkeys(options["queues"])) if options["queues"] else None,
                concurrency=options["concurrency"],
                lease=options["lease"] or conf.seconds("LEASE"),
                poll=options["poll"] or conf.seconds("POLL"),
                drain=options["drain"],
                max_jobs=options["max_jobs"],
                shutdown_timeout=options["shutdown_timeout"],
            ),
            using=using,
            heartbeat_file=options["heartbeat_file"],
            parent=os.getppid() if options["reload"] else None,
        )
        _try_heartbeat_file(options["heartbeat_file"])
        code = self._worker.run()
        if self._ends_process and (self._worker.orphaned or not options["reload"]):
            end_process(code)
        if code:
            raise CommandError("The worker broke or was stuck; see the log.", returncode=code)

    def _reload(self, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("--reload is for development: it needs DEBUG = True.")
        options["shutdown_timeout"] = min(options["shutdown_timeout"], RELOAD_PATIENCE)
        file_changed.connect(self._stop)
        try:
            run_with_reloader(self._work, **options)
        finally:
            self._stop()

    def _stop(self, **_: Any) -> None:
        """Have the worker hand back what it holds, before its process is replaced."""
        if self._worker is not None:
            self._worker.stop()
            self._worker.exited.wait(RELOAD_PATIENCE + STOP_GRACE + FLUSH_GRACE)


def _try_heartbeat_file(path: Path | None) -> None:
    try:
        if path is not None:
            path.touch()
    except OSError as error:
        raise CommandError(f"The heartbeat file {path} cannot be touched: {error.strerror}.") from error


def _log_to_console(verbosity: int) -> None:
    """Show the worker's log lines on stderr, unless the project has set up a place for them."""
    logger = logging.getLogger("django_backwave")
    levels = {0: logging.ERROR, 1: logging.INFO}
    if logger.level == logging.NOTSET:
        logger.setLevel(levels.get(verbosity, logging.DEBUG))
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
