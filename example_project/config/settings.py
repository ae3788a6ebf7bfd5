"""Settings of the shop: SQLite in a folder beside manage.py, or the database in DATABASE_URL."""

import os
from pathlib import Path

from django.utils.csp import CSP

from config.database import database, sqlite

BASE_DIR = Path(__file__).resolve().parent.parent

# Where the shop keeps what it writes while it runs.
FOLDER = Path(os.environ.get("SHOP_FOLDER") or BASE_DIR / "var").absolute()

SECRET_KEY = "only for this example"
DEBUG = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_backwave",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
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

URL = os.environ.get("DATABASE_URL")
DATABASES = {"default": database(URL) if URL else sqlite(str(FOLDER / "shop.sqlite3"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

# Neither the shop nor the admin needs scripts, styles or anything else from elsewhere, or in its pages.
SECURE_CSP = {
    "default-src": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
    "object-src": [CSP.NONE],
}

# The page with the orders asks for news every second; only answers that tell of trouble are logged.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"django.server": {"level": "WARNING"}},
}

# Where the stand-in for a payment gateway writes down each call; see shop/gateway.py.
GATEWAY_FILE = Path(os.environ.get("SHOP_GATEWAY_FILE") or FOLDER / "gateway.jsonl")
