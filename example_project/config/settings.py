"""Settings of the shop: SQLite in a file beside manage.py, or the database in DATABASE_URL."""

import os
from pathlib import Path

from config.database import database

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "only for this example"
DEBUG = True

INSTALLED_APPS = [
    "django_backwave",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    }
]

DATABASES = {"default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR}/shop.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"

# Where the stand-in for a payment gateway writes down each call; see shop/gateway.py.
GATEWAY_FILE = Path(os.environ.get("SHOP_GATEWAY_FILE") or BASE_DIR / "gateway.jsonl")
