"""Settings of the test project; `tests/databases.py` says on which database it works, and why."""

import django

from tests.databases import default_database, other_database

SECRET_KEY = "only for tests"
ROOT_URLCONF = "tests.urls"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_backwave",
    "tests.app",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]  # the backport of Django's tasks
MIDDLEWARE = [
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

DATABASES = {"default": default_database(), "other": other_database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Users come and go in many tests, and a good password hash is slow by design.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
