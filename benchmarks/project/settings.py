"""Settings: the database and the backend under test come from the environment; see `benchmarks.processes`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

APP = os.environ.get("BENCH_APP", "django_backwave")
BACKENDS = {
    "django_backwave": "django_backwave.BackWaveBackend",
    "django_tasks_db": "django_tasks_db.DatabaseBackend",
    "django_ox": "django_ox.backend.OxBackend",
    "steady_queue": "steady_queue.backend.SteadyQueueBackend",
}


def database(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for `url`, set up as the documentation of django_backwave says."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(parts.path),
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        # Those that open and close a connection for each job would be slowed by Django's default, 0.
        "CONN_MAX_AGE": None,
    }


SECRET_KEY = "only for benchmarks"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["benchmarks.project"]
if APP in BACKENDS:
    INSTALLED_APPS += ["django.contrib.contenttypes", "django.contrib.auth", APP]
    TASKS = {"default": {"BACKEND": BACKENDS[APP], "QUEUES": []}}
DATABASES = {"default": database(os.environ.get("BENCH_DATABASE_URL", "sqlite:///nowhere"))}

if APP == "steady_queue":
    from steady_queue.configuration import Configuration

    threads = int(os.environ.get("BENCH_CONCURRENCY", "10"))
    STEADY_QUEUE = Configuration.Options(
        workers=[Configuration.Worker(threads=threads, polling_interval=timedelta(seconds=0.1))],
        dispatchers=[],
        recurring_tasks=[],
        skip_recurring=True,
    )

if "BENCH_BACKWAVE_NOTIFY" in os.environ:
    BACKWAVE = {"NOTIFY": os.environ["BENCH_BACKWAVE_NOTIFY"] == "1"}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"level": "WARNING", "handlers": ["console"]},
    "loggers": {name: {"level": "WARNING"} for name in ("django", "django.tasks", *BACKENDS)},
}
