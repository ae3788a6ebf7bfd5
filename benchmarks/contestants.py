"""The contestants: how each is started, what tells that it is done, and what it was tuned to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

type Service = Literal["postgres", "sqlite", "rabbitmq", "redis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One queue, in one way of running it.

    worker      arguments for Python, in which "{name}" is a name for the worker, and "{concurrency}" how many
                jobs it runs at the same time; without any it only enqueues
    at_gate     the processes of one worker that run jobs
    unfinished  a query that is true as long as a job is not recorded as done
    jobs        the most that a drain is measured with, for slow ones
    enqueues    false if another contestant enqueues in the same way
    """

    name: str
    app: str
    packages: tuple[str, ...]
    tuned: str
    worker: tuple[str, ...] = ()
    service: Service = "postgres"
    environment: Mapping[str, str] = field(default_factory=dict)
    at_gate: int = 1
    unfinished: str | None = None
    jobs: int | None = None
    enqueues: bool = True


BACKWAVE_UNFINISHED = "SELECT EXISTS (SELECT 1 FROM django_backwave_job WHERE state IN (1, 2))"
RAW_UNFINISHED = "SELECT EXISTS (SELECT 1 FROM bench_job WHERE state < 3)"
BACKWAVE_WORKER = ("-m", "django", "backwave_worker", "--concurrency", "{concurrency}")

ALL = (
    Contestant(
        name="django_backwave",
        app="backwave",
        packages=("Django", "psycopg"),
        worker=BACKWAVE_WORKER,
        unfinished=BACKWAVE_UNFINISHED,
        environment={"BENCH_APP": "django_backwave"},
        tuned="sync handlers in 10 threads; defaults; logging at WARNING, no signal receivers",
    ),
    Contestant(
        name="django_backwave-async",
        app="backwave",
        packages=("Django", "psycopg"),
        worker=BACKWAVE_WORKER,
        unfinished=BACKWAVE_UNFINISHED,
        environment={"BENCH_APP": "django_backwave", "BENCH_ASYNC": "1"},
        enqueues=False,
        tuned="the same with async handlers",
    ),
    Contestant(
        name="pgqueuer",
        app="pgqueuer_app",
        packages=("pgqueuer", "asyncpg", "uvloop"),
        worker=("-m", "benchmarks.apps.pgqueuer_app"),
        unfinished="SELECT EXISTS (SELECT 1 FROM pgqueuer)",
        tuned="async handlers, asyncpg, uvloop, batches of 50, concurrency without limit; no fence",
    ),
    Contestant(
        name="oban",
        app="oban_app",
        packages=("oban",),
        worker=(
            *("-m", "oban", "start", "--dsn", "{BENCH_DATABASE_URL}", "--queues", "default:{concurrency}"),
            *("--node", "{name}", "--log-level", "WARNING"),
        ),
        unfinished="SELECT EXISTS (SELECT 1 FROM oban_jobs WHERE state IN ('available', 'executing'))",
        tuned="async handler; defaults",
    ),
    Contestant(
        name="chancy",
        app="chancy_app",
        packages=("chancy",),
        worker=("-m", "benchmarks.apps.chancy_app"),
        unfinished="SELECT EXISTS (SELECT 1 FROM chancy_jobs WHERE state IN ('pending', 'running'))",
        tuned="async handler, eager polling; results are written once a second",
    ),
    Contestant(
        name="procrastinate",
        app="procrastinate_app",
        packages=("procrastinate",),
        worker=(
            *("-m", "procrastinate", "--app", "benchmarks.apps.procrastinate_app.app", "worker"),
            *("--concurrency", "{concurrency}", "--name", "{name}"),
        ),
        environment={"PROCRASTINATE_VERBOSE": "0"},
        unfinished="SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        jobs=3_000,
        tuned="async task; defaults; no fence",
    ),
    Contestant(
        name="django-tasks-db",
        app="django_tasks",
        packages=("django-tasks-db", "Django"),
        worker=(
            "-m",
            "django",
            "db_worker",
            "--no-startup-delay",
            "--interval",
            "0.1",
            "--worker-id",
            "{name}",
        ),
        environment={"BENCH_APP": "django_tasks_db"},
        unfinished=(
            "SELECT EXISTS (SELECT 1 FROM django_tasks_database_dbtaskresult "
            "WHERE status IN ('READY', 'RUNNING'))"
        ),
        jobs=2_000,
        tuned="one job at a time for each worker, as it has to be; looks every 0.1 s; no fence",
    ),
    Contestant(
        name="django-ox",
        app="ox",
        packages=("django-ox", "Django"),
        worker=("-m", "django", "ox_worker", "--concurrency", "{concurrency}", "--interval", "0.1"),
        environment={"BENCH_APP": "django_ox"},
        unfinished="SELECT EXISTS (SELECT 1 FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING'))",
        jobs=2_000,
        tuned="10 threads; looks every 0.1 s",
    ),
    Contestant(
        name="steady-queue",
        app="django_tasks",
        packages=("steady-queue", "Django"),
        worker=("-m", "django", "steady_queue"),
        environment={"BENCH_APP": "steady_queue"},
        unfinished="SELECT EXISTS (SELECT 1 FROM steady_queue_job WHERE finished_at IS NULL)",
        jobs=2_000,
        tuned="10 threads, no dispatcher, no scheduler; looks every 0.1 s; no fence",
    ),
    *(
        Contestant(
            name=f"dramatiq-{service}",
            app="dramatiq_app",
            packages=("dramatiq", client),
            service=service,
            worker=(
                *("-m", "dramatiq", "benchmarks.apps.dramatiq_app"),
                *("--processes", "1", "--threads", "{concurrency}"),
            ),
            tuned="10 threads; defaults; keeps no record of what is done",
        )
        for service, client in (("rabbitmq", "pika"), ("redis", "redis"))
    ),
    *(
        Contestant(
            name=f"celery-{service}",
            app="celery_app",
            packages=("celery", client),
            service=service,
            worker=(
                *("-m", "celery", "--app", "benchmarks.apps.celery_app", "--quiet", "worker"),
                *("--concurrency", "{concurrency}", "--hostname", "{name}", "--loglevel", "WARNING"),
            ),
            at_gate=10,
            tuned="10 forked processes; no results; acknowledges before it runs a job, as by default",
        )
        for service, client in (("rabbitmq", "amqp"), ("redis", "redis"))
    ),
    Contestant(
        name="raw-psycopg",
        app="raw",
        packages=("psycopg",),
        worker=("-m", "benchmarks.apps.raw", "{name}"),
        unfinished=RAW_UNFINISHED,
        tuned="no queue but the limit: claim 50, settle 50 with a fence, no handler, no history",
    ),
    Contestant(
        name="raw-django",
        app="raw_django",
        packages=("Django", "psycopg"),
        worker=("-m", "benchmarks.apps.raw_django", "{name}"),
        unfinished=RAW_UNFINISHED,
        tuned="the same on Django's cursor, with the jobs on 10 threads",
    ),
    Contestant(
        name="django-orm",
        app="orm",
        packages=("Django", "psycopg"),
        environment={"BENCH_APP": "django_backwave"},
        tuned="no queue but a bare insert of the same row by Django's ORM; only for --enqueue",
    ),
)
BY_NAME: dict[str, Contestant] = {contestant.name: contestant for contestant in ALL}
BACKWAVE = BY_NAME["django_backwave"]


def chosen(names: Iterable[str] | None) -> list[Contestant]:
    """Return the contestants of these names, or all.

    Raises ValueError for a name that is not known.
    """
    wanted = list(BY_NAME) if names is None else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in BY_NAME]
    if unknown:
        raise ValueError(f"Unknown contestant {unknown[0]!r}. Known are {', '.join(BY_NAME)}.")
    return [BY_NAME[name] for name in wanted]
