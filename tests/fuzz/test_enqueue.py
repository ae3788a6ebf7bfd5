"""Hostile input to `using`, `enqueue` and `enqueue_many`: our error before any SQL, or a job as asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import Error, connection
from hypothesis import given
from hypothesis import strategies as st

from django_backwave import Backoff, enqueue_many, operations
from django_backwave.compat import InvalidTask, InvalidTaskBackend
from django_backwave.exceptions import InvalidJob
from django_backwave.models import Job, Tag
from tests.api.handlers import echo
from tests.fuzz.cases import anything, fuzz, json_values, numbers, texts, words

pytestmark = pytest.mark.django_db

REFUSALS = (InvalidJob, InvalidTask, InvalidTaskBackend, TypeError, ValueError)

options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-100, 100) | numbers | anything,
        "queue_name": words | texts | anything,
        "run_after": st.datetimes(timezones=st.timezones()) | st.datetimes() | anything,
        "max_attempts": st.integers(1, 2**31 - 1) | numbers | anything,
        "lease": st.floats(1, 10**9) | st.timedeltas() | anything,
        "timeout": st.floats(1, 10**9) | st.timedeltas() | anything,
        "expires": st.datetimes(timezones=st.timezones()) | st.floats(1, 10**9) | anything,
        "tags": st.lists(words | st.tuples(words, words) | texts, max_size=5) | anything,
        "backend": texts | anything,
    },
)


def backoff(draw: Any) -> Backoff | None:
    try:
        return Backoff(base=draw, cap=draw, jitter=draw)
    except (TypeError, ValueError):
        return None


def usable() -> None:
    """The caller's transaction is alive: whatever was refused was refused before any SQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def attempt(call: Callable[[], Any], *known: type[Exception]) -> tuple[Any, Exception | None]:
    """Return what a call gives, or its refusal, which is none of a database's; nothing else may happen."""
    try:
        return call(), None
    except (*REFUSALS, *known) as error:
        refusal = error
    usable()
    assert not isinstance(refusal, Error)
    assert not isinstance(refusal.__cause__, Error)
    return None, refusal


@fuzz(0.4)
@given(options=options, number=numbers, args=st.lists(json_values | anything, max_size=3))
def test_enqueue_refuses_or_writes_what_was_asked(options, number, args):
    task, refusal = attempt(lambda: echo.using(**options, backoff=backoff(number)))
    result, refusal = (None, refusal) if refusal else attempt(lambda: task.enqueue(*args))
    assert Job.objects.count() == (0 if refusal else 1)
    if refusal:
        return
    job = Job.objects.get(pk=result.id)
    assert (job.queue, job.priority, job.max_attempts) == (
        task.queue_name,
        task.priority,
        task.max_attempts,
    )
    assert set(Tag.objects.values_list("key", "value")) == {
        ("", tag) if isinstance(tag, str) else tuple(tag) for tag in task.tags
    }
    Tag.objects.all().delete()
    Job.objects.all().delete()


calls = st.lists(
    st.tuples(st.lists(anything, max_size=2), st.dictionaries(texts, json_values, max_size=2)), max_size=4
)


@fuzz(0.1)
@given(calls=calls | anything)
def test_enqueue_many_writes_all_or_none(calls):
    results, refusal = attempt(lambda: enqueue_many(echo, calls))
    assert Job.objects.count() == (0 if refusal else len(results))
    Job.objects.all().delete()


@fuzz(0.03)
@given(queue=words, tags=st.lists(words.map(str.strip).filter(bool), max_size=3))
def test_names_come_out_byte_for_byte(queue, tags):
    """Emoji, trailing spaces, upper and lower case, on every database."""
    result, refusal = attempt(lambda: echo.using(queue_name=queue, tags=tags).enqueue())
    if refusal:
        return
    assert list(Job.objects.filter(queue=queue).values_list("pk", "queue")) == [(UUID(result.id), queue)]
    assert set(Tag.objects.values_list("value", flat=True)) == set(tags)
    Tag.objects.all().delete()
    Job.objects.all().delete()


@fuzz(0.05)
@given(value=anything, other=anything)
def test_operations_refuse_what_they_do_not_know(value, other):
    for call in (
        lambda: operations.cancel([value]),
        lambda: operations.requeue(value),
        lambda: operations.reschedule([], value),
        lambda: operations.change([], priority=value, queue=other),
        lambda: operations.pause(queue=value),
        lambda: operations.resume(name=value),
        lambda: operations.cancel_matching(queue=value, name=other),
    ):
        attempt(call, AttributeError)
