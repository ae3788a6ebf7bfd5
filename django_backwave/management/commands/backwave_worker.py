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
from django_backwave.backend import jobs_database
from django_backwave.core.driver import FLUSH_GRACE, STOP_GRACE, Options
from django_backwave.discovery import discover
from django_backwave.management.arguments import seconds, whole
from django_backwave.management.database import handlers_database, usable_database
from django_backwave.worker import memory
from django_backwave.worker.child import Line, own_command_line
from django_backwave.worker.connections import takes_bounds
from django_backwave.worker.supervisor import Supervisor
from django_backwave.worker.worker import Worker, end_process, new_name

logger = logging.getLogger("django_backwave.worker")

#: Seconds that a handler may go on when code has changed, before it is told to stop.
RELOAD_PATIENCE = 2.0

#: Bounds that only a slip of the hand exceeds.
MOST_PROCESSES, MOST_MEGABYTES = 256, 2**20


class Command(BaseCommand):
    """Runs jobs until SIGTERM or SIGINT, or until drained."""

    help = "Run background jobs. SIGTERM or SIGINT stops it in order; a second one at once."
    _line: Line | None = None
    _ends_process = False
    _running: Worker | Supervisor | None = None

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
            "--processes",
            type=whole(1, MOST_PROCESSES),
            default=1,
            metavar="N",
            help="Run so many workers, each in a process of its own below this one. Default: 1.",
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
            help="About how long an idle worker waits between two looks for jobs. Default: BACKWAVE POLL, 1.",
        )
        add("--drain", action="store_true", help="End with 0 once nothing is due any more.")
        add(
            "--max-jobs",
            type=whole(1, 2**31),
            metavar="N",
            help="End with 0 after this many jobs. With --processes, a fresh process takes its place.",
        )
        add(
            "--max-memory",
            type=whole(1, MOST_MEGABYTES),
            metavar="MB",
            help="Claim nothing more and end with 0 above so many megabytes of memory, as at --max-jobs.",
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

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Leave the system checks, for which all of the project is imported, to the children, if any."""
        self._line = Line.inherited()
        if self._supervises(**options):
            options["skip_checks"] = True
        return super().execute(*args, **options)

    def handle(self, **options: Any) -> None:
        """Run a worker, or several in child processes, or one after another while code changes."""
        _log_to_console(options["verbosity"])
        if options["reload"]:
            options["shutdown_timeout"] = min(options["shutdown_timeout"], RELOAD_PATIENCE)
        if options["reload"] and self._line is None:
            self._reload(**options)
        else:
            self._run(**options)

    def _supervises(self, **options: Any) -> bool:
        return self._line is None and bool(options["processes"] > 1)

    def _run(self, **options: Any) -> None:
        parent = os.getppid() if options["reload"] and self._line is None else None
        if self._supervises(**options):
            running: Worker | Supervisor = self._supervisor(parent, **options)
        else:
            running = self._worker(parent, **options)
        if self._line is None:
            _try_heartbeat_file(options["heartbeat_file"])
        self._running = running
        code = running.run()
        if self._line is not None and code == 0 and isinstance(running, Worker):
            self._line.ended(recycled=running.recycled)
        if self._ends_process and (running.orphaned or parent is None):
            end_process(code)
        if code:
            raise CommandError("The worker broke or was stuck; see the log.", returncode=code)

    def _supervisor(self, parent: int | None, **options: Any) -> Supervisor:
        if not self._ends_process:
            raise CommandError(
                "--processes starts this process's command line again for each child, so it works only from "
                "a command line of its own: manage.py backwave_worker --processes N."
            )
        if options["reload"]:
            discover()  # the reloader watches what this process has imported
        using = usable_database(options["database"])
        connections[using].close()
        takes_bounds(using)  # the children say so if it does not
        return Supervisor(
            options["processes"],
            own_command_line(),
            using=using,
            lease=options["lease"] or conf.seconds("LEASE"),
            shutdown_timeout=options["shutdown_timeout"],
            drain=options["drain"],
            heartbeat_file=options["heartbeat_file"],
            parent=parent,
        )

    def _worker(self, parent: int | None, **options: Any) -> Worker:
        discover()
        using, name = usable_database(options["database"]), new_name()
        handlers_using = handlers_database(using, name=name)
        for alias in {using, handlers_using}:
            connections[alias].close()  # the worker's threads open their own
        if jobs_database() not in (using, handlers_using):
            logger.warning(
                "action=other_database database=%s enqueued_to=%s: these are two databases, so this worker "
                "runs no job that this project enqueues",
                using,
                jobs_database(),
            )
        if not takes_bounds(using):
            logger.warning(
                "action=pooler_found database=%s: it refuses start-up parameters, so the worker's statements "
                "have no time-outs. Give the worker an alias past the pooler: --database ALIAS",
                using,
            )
        if self._ends_process:
            memory.collect_less_often()
        return Worker(
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
            handlers_using=handlers_using,
            name=name,
            heartbeat_file=options["heartbeat_file"],
            parent=parent,
            line=self._line,
            max_memory=_enough_memory(options["max_memory"]),
        )

    def _reload(self, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("--reload is for development: it needs DEBUG = True.")
        file_changed.connect(self._stop)
        try:
            run_with_reloader(self._run, **options)
        finally:
            self._stop()

    def _stop(self, **_: Any) -> None:
        """Have the workers hand back what they hold, before the process is replaced."""
        if self._running is not None:
            self._running.stop()
            self._running.exited.wait(RELOAD_PATIENCE + STOP_GRACE + FLUSH_GRACE)


def _enough_memory(megabytes: int | None) -> int | None:
    """Return the limit in bytes; CommandError if the process has reached it before its first job."""
    if megabytes is None:
        return None
    now = memory.resident() / memory.MEGABYTE
    if now >= megabytes:
        raise CommandError(
            f"--max-memory {megabytes} is too little: this process has {now:.0f} MB before its first job. "
            "Give it twice as much, or more."
        )
    return megabytes * memory.MEGABYTE


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
