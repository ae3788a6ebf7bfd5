"""The pytest plugin: the helpers as fixtures. It is loaded wherever this package and pytest are installed.

The fixtures build on pytest-django's ``db``, so the tests' own ``django_db`` marks apply. This is the one
module of the package that imports pytest, and it imports nothing of Django before a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_backwave.results import JobResult
    from django_backwave.testing import Clock, Run


@pytest.fixture
def run_jobs(db: None) -> Callable[..., list[Run]]:
    """Run the jobs that are due, in this thread and over its connections."""
    from django_backwave import testing

    return testing.run_jobs


@pytest.fixture
def enqueued_jobs(db: None) -> Callable[..., list[JobResult]]:
    """Return the jobs that wait to run."""
    from django_backwave import testing

    return testing.enqueued_jobs


@pytest.fixture
def assert_enqueued(db: None) -> Callable[..., JobResult]:
    """Assert that a job waits to run."""
    from django_backwave import testing

    return testing.assert_enqueued


@pytest.fixture
def assert_not_enqueued(db: None) -> Callable[..., None]:
    """Assert that no such job waits to run."""
    from django_backwave import testing

    return testing.assert_not_enqueued


@pytest.fixture
def backwave_clock(db: None) -> Iterator[Clock]:
    """Let jobs live by a clock that stands still until the test moves it."""
    from django_backwave import testing

    with testing.virtual_clock() as clock:
        yield clock
