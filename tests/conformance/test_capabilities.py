"""The table of capabilities is true: the database itself is asked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_backwave.models import Job
from django_backwave.store import clock
from tests.conformance.capabilities import CAPABILITIES, may_skip, reason
from tests.databases import chosen
from tests.factories import ready, second_connection

pytestmark = [pytest.mark.guarantee("capabilities"), pytest.mark.django_db(transaction=True)]


def has_row_locks() -> bool:
    one, two = ready(), ready()
    with second_connection() as other:
        if connection.vendor == "sqlite":
            with connections[other].cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 0")
        with transaction.atomic():
            Job.objects.filter(pk=one.pk).update(priority=1)
            try:
                with transaction.atomic(using=other):
                    Job.objects.using(other).filter(pk=two.pk).update(priority=1)
            except DatabaseError:
                return False
            return True


def has_server_clock() -> bool:
    try:
        clock._local, kept = (lambda: datetime(2000, 1, 1, tzinfo=UTC)), clock._local
        return clock.read("default").year > 2000
    finally:
        clock._local = kept


def has_one_statement() -> bool:
    ready()
    sql = """
        WITH pick AS (SELECT id FROM django_backwave_job LIMIT 1 FOR UPDATE SKIP LOCKED)
        UPDATE django_backwave_job j SET priority = 1 FROM pick WHERE j.id = pick.id RETURNING j.id"""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(sql)
            return len(cursor.fetchall()) == 1
    except DatabaseError:
        return False


PROBES = {
    "row_locks": has_row_locks,
    "server_clock": has_server_clock,
    "one_statement": has_one_statement,
}


def test_each_capability_has_a_probe():
    assert PROBES.keys() == CAPABILITIES.keys()


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_table_says_what_the_database_does(name):
    assert PROBES[name]() is (chosen() in CAPABILITIES[name][1])


def test_no_other_reason_excuses_a_test():
    assert may_skip(reason(["row_locks"]), "sqlite")
    assert not may_skip(reason(["row_locks"]), "postgres")
    assert not may_skip("needs patience", "sqlite")
    assert not may_skip("only on postgres", "sqlite")
