"""The plugin's fixtures, also where the package was installed before it had an entry point for them."""

from django_backwave.testing.plugin import (  # noqa: F401
    assert_enqueued,
    assert_not_enqueued,
    backwave_clock,
    enqueued_jobs,
    run_jobs,
)
