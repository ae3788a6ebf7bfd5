"""The tests on every Django and every Python that we support: `make test-matrix`, or `nox`.

A session is one pair of them, on SQLite and on PostgreSQL: `nox -s "tests(python='3.12', django='5.2')"`.
More arguments are for pytest: `nox -- tests/contract -x`.
"""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests"]

PYTHONS = ["3.12", "3.13"]
DJANGOS = ["5.2", "6.0", "6.1"]

#: What a version of Django or Python could break: whatever touches their interfaces. Not among it are the
#: slow tests, and those of docs and tools, which `make test` runs.
PARTS = ["admin", "api", "commands", "contract", "core", "store", "worker"]
QUICK = ["-m", "not slow", *(f"tests/{part}" for part in PARTS)]

#: What `tests/contract/test_third_parties.py` imitates.
THIRD_PARTIES = [
    "django-crontask",
    "django-debug-toolbar",
    "django-maintenance-tasks",
    "django-scheduled-tasks",
    "django-taskly",
    "django-tasks-monitor",
]


@nox.session(python=PYTHONS)
@nox.parametrize("django", DJANGOS)
def tests(session: nox.Session, django: str) -> None:
    """Run what is quick on SQLite and PostgreSQL, on one Django."""
    session.install(f".[test{',django52' if django == '5.2' else ''}]", f"Django~={django}.0")
    for database in ("sqlite", "postgres"):
        session.run("pytest", "-q", *(session.posargs or QUICK), env={"BACKWAVE_TEST_DATABASE": database})


@nox.session(python=PYTHONS[-1])
def third_parties(session: nox.Session) -> None:
    """Run packages that build on Django's tasks with our backend: schedule, enqueue, work, monitor."""
    session.install("-e", ".[test]", *THIRD_PARTIES)
    session.run("python", "-m", "tests.contract.third_parties", *session.posargs)
