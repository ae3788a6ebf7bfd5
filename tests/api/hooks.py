"""Hooks as a project's settings name them."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from django.utils import translation

LOG = []
TENANT = ContextVar("TENANT", default="nobody")
NOT_CALLABLE = 7


def tenant(task):
    return {"tenant": TENANT.get()}


def language(task):
    return {"language": translation.get_language(), "job": task.job_name}


def again(task):
    return {"tenant": "again"}


def nothing(task):
    return None


def broken(task):
    raise LookupError("no tenant here")


def no_dict(task):
    return ["tenant"]


def no_json(task):
    return {"tenant": object()}


def long(task):
    return {"short": 1, "long": "x" * 5000}


@contextmanager
def outer(context):
    LOG.append(("outer in", context.attempt))
    token = TENANT.set(context.headers.get("tenant", "none"))
    try:
        yield
    except Exception as error:
        LOG.append(("outer saw", type(error).__name__))
        raise
    finally:
        TENANT.reset(token)
        LOG.append(("outer out", context.attempt))


@contextmanager
def inner(context):
    LOG.append(("inner in", TENANT.get()))
    yield
    LOG.append(("inner out", TENANT.get()))


@asynccontextmanager
async def asynchronous(context):
    LOG.append(("async in", context.attempt))
    yield
    LOG.append(("async out", context.attempt))


class Both:
    """A context manager of both kinds."""

    def __init__(self, context):
        pass

    def __enter__(self):
        LOG.append("sync")

    def __exit__(self, *error):
        pass

    async def __aenter__(self):
        LOG.append("async")

    async def __aexit__(self, *error):
        pass


def fails_to_make(context):
    raise LookupError("no tenant here")


@contextmanager
def fails_to_enter(context):
    raise LookupError("no tenant here")
    yield


@contextmanager
def fails_to_leave(context):
    yield
    raise LookupError("no tenant any more")


@contextmanager
def swallows(context):
    try:
        yield
    except BaseException as error:
        LOG.append(f"swallowed {type(error).__name__}")


def no_manager(context):
    return 7
