"""What holds for every test: markers, the report on what ran, and what may run beside what.

The databases are provided earlier than this file is read, by `tests/plugin.py`.

Under pytest-xdist with `--dist loadgroup`, as `make test` has it, the tests with processes of their own run
one after the other, for some of them measure time. Beside them the others run, a module at a time.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.databases import chosen
from tests.report import Collected, Report, only_on_reason

# How long a case takes says nothing here: the machine may be busy with other tests.
settings.register_profile("backwave", parent=settings.default, deadline=None)
settings.load_profile("backwave")


def pytest_configure(config: pytest.Config) -> None:
    """Write the report, in the one process that sees all results (pytest-xdist has several)."""
    collected = Collected()
    config.pluginmanager.register(collected, "backwave-collected")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(chosen(), collected), "backwave-report")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do what our markers say, before the command line's `-m` selects by them."""
    for item in items:
        process = item.get_closest_marker("process")
        item.add_marker(pytest.mark.xdist_group("one by one" if process else item.nodeid.partition("::")[0]))
        if process:
            item.add_marker(pytest.mark.slow)
        marker = item.get_closest_marker("only_on")
        if marker and chosen() not in marker.args:
            item.add_marker(pytest.mark.skip(reason=only_on_reason(marker.args)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run side by side what must run one by one: pytest-xdist says nothing if it has no groups."""
    config = session.config
    if getattr(config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError(
            f"pytest-xdist does not group tests with pytest {pytest.__version__}."
            " Install a pytest that pyproject.toml allows, or run `make test SIDE_BY_SIDE=`."
        )
