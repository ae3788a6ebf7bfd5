"""What holds for every test: markers, and the report on what ran.

The databases are provided earlier than this file is read, by `tests/plugin.py`.
"""

from __future__ import annotations

import pytest

from tests.databases import chosen
from tests.report import Report, only_on_reason


def pytest_configure(config: pytest.Config) -> None:
    """Write the report, in the one process that sees all results (pytest-xdist has several)."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(chosen()), "backwave-report")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do what our markers say, before the command line's `-m` selects by them."""
    for item in items:
        if item.get_closest_marker("process"):
            item.add_marker(pytest.mark.slow)
        marker = item.get_closest_marker("only_on")
        if marker and chosen() not in marker.args:
            item.add_marker(pytest.mark.skip(reason=only_on_reason(marker.args)))
