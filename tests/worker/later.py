"""The handler that an older version of the code did not have yet."""

from django_backwave import job


@job(name="tests.worker.handlers.not_yet")
def not_yet() -> str:
    """Run at last."""
    return "routed"
