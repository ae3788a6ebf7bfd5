"""DATABASE_URL → an entry of DATABASES, set up as jobs need it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

POSTGRES = ("postgres", "postgresql")


def database(url: str) -> dict[str, Any]:
    """Read ``postgres://user:password@host:port/name?option=value`` or ``sqlite:///path``."""
    parts = urlsplit(url)
    name = unquote(parts.path.removeprefix("/"))
    if parts.scheme == "sqlite":
        return sqlite(name)
    if parts.scheme not in POSTGRES:
        raise ValueError(f"DATABASE_URL starts with postgres:// or sqlite:///, got {url!r}.")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def sqlite(path: str) -> dict[str, Any]:
    """Set up SQLite for several processes that write."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            # Take the write lock at BEGIN: a transaction that asks for it later may be refused.
            "transaction_mode": "IMMEDIATE",
            # Seconds to wait for that lock.
            "timeout": 20,
            # Readers and the writer do not wait for each other.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
