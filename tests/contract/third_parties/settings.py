"""A project with all of them installed, on SQLite."""

import os

SECRET_KEY = "only for tests"
DEBUG = True
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.contract.third_parties.urls"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_backwave",
    "crontask",
    "debug_toolbar",
    "django_scheduled_tasks",
    "django_taskly",
    "maintenance_tasks",
    "tasks_monitor",
    "tests.contract.third_parties",
]
MIDDLEWARE = [
    "debug_toolbar.middleware.DebugToolbarMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["BACKWAVE_THIRD_PARTIES_FILE"],
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"

TASKS = {
    "default": {"BACKEND": "django_backwave.BackWaveBackend"},
    "mail": {"BACKEND": "django_backwave.BackWaveBackend", "QUEUES": ["mail"]},
}
DEBUG_TOOLBAR_PANELS = ["debug_toolbar.panels.tasks.TasksPanel"]
DEBUG_TOOLBAR_CONFIG = {"SHOW_TOOLBAR_CALLBACK": "tests.contract.third_parties.urls.always"}
LOGGING_CONFIG = None
