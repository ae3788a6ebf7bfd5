"""The handlers that the tests enqueue."""

from django_backwave import job


@job
def add(a: int, b: int = 0) -> int:
    """Return the sum."""
    return a + b
