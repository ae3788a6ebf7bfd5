"""A connection that is cut at the very point where an enqueue is applied, or just before it; and replays."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from django.db import OperationalError, connections, transaction

import django_backwave
from django_backwave import Disposition, EnqueueOutcomeUnknown, Resolution, enqueue_many
from django_backwave.exceptions import OperationExpired
from django_backwave.models import Job, Operation
from tests.api import handlers
from tests.app.models import Entry
from tests.processes import wait_until
from tests.worker.proxy import Proxy

pytestmark = [pytest.mark.only_on("postgres"), pytest.mark.django_db(transaction=True)]

CUT = "cut"
INSERT = b'INSERT INTO "django_backwave_job"'


@dataclass
class Line:
    """The line over which jobs are enqueued."""

    proxy: Proxy

    def breaks(self, word: bytes, *, after: bytes = b"", landed: bool, back: bool = True) -> threading.Thread:
        """Break once a client has said this word: when the database has done it, or before it has heard it.

        ``back``: whether the next connection is let through.
        """
        before = Job.objects.count()
        self.proxy.swallow(word, after=after, forward=landed)

        def cut() -> None:
            try:
                wait_until(self.proxy.swallowed.is_set)
                if landed:
                    wait_until(lambda: Job.objects.count() > before)
                self.proxy.cut()
                if back:
                    self.proxy.restore()
            finally:
                connections.close_all()

        thread = threading.Thread(target=cut)
        thread.start()
        return thread


@pytest.fixture
def line(settings):
    direct = connections["default"]
    with Proxy(int(direct.settings_dict["PORT"])) as proxy:
        connection = direct.copy(CUT)
        connection.settings_dict["PORT"] = str(proxy.port)
        connections[CUT] = connection
        settings.BACKWAVE = {"DATABASE": CUT}
        try:
            with connection.cursor():
                yield Line(proxy)
        finally:
            connection.close()
            del connections[CUT]


def plainly():
    handlers.send_receipt.enqueue(7)


def tagged():
    handlers.send_receipt.using(tags=["vip"]).enqueue(7)


def with_a_key():
    handlers.send_receipt.using(key="receipt:7", on_conflict="new_generation").enqueue(7)


def many():
    enqueue_many(handlers.send_receipt, [((7,), {}), ((8,), {})])


def prepared():
    handlers.send_receipt.prepare(7).enqueue()


def in_a_block():
    with django_backwave.atomic():
        Entry.objects.using(CUT).create(key="order", value="7")
        handlers.send_receipt.enqueue(7)
        enqueue_many(handlers.send_receipt, [((8,), {}), ((9,), {})])


#: Each way to enqueue, the word in which its fate is decided, and how many jobs it is about.
WAYS = {
    "plainly": (plainly, INSERT, 1),
    "tagged": (tagged, b"COMMIT", 1),
    "with a key": (with_a_key, b"COMMIT", 1),
    "many": (many, b"COMMIT", 2),
    "prepared": (prepared, b"COMMIT", 1),
    "in a block": (in_a_block, b"COMMIT", 3),
}


def lose(line, way, landed, **options):
    """Enqueue, lose the connection, and return the error, on a connection that works."""
    call, word, _ = WAYS[way]
    thread = line.breaks(word, after=b"" if word == INSERT else INSERT, landed=landed, **options)
    with pytest.raises(EnqueueOutcomeUnknown) as caught:
        call()
    thread.join(60)
    assert Job.objects.count() == (WAYS[way][2] if landed else 0)
    return caught.value


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_replay_makes_each_job_once(line, settings, way, landed):
    error = lose(line, way, landed)
    settings.BACKWAVE = {}

    results = [each.enqueue() for each in error.prepared for _ in range(2)]

    assert Job.objects.count() == WAYS[way][2] == len(error.prepared)
    assert {str(pk) for pk in Job.objects.values_list("pk", flat=True)} == {one.id for one in results}
    assert all(one.created for one in results)
    assert [each.resolve() for each in error.prepared] == [Resolution.APPLIED] * len(error.prepared)


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_verdict_is_right_and_stays(line, settings, way, landed):
    error = lose(line, way, landed)
    settings.BACKWAVE = {}
    expected = Resolution.APPLIED if landed else Resolution.NOT_APPLIED

    assert [each.resolve() for each in error.prepared] == [expected] * len(error.prepared)
    assert [each.resolve() for each in error.prepared] == [expected] * len(error.prepared)

    if landed:
        assert all(each.enqueue().created for each in error.prepared)
    else:
        for each in error.prepared:
            with pytest.raises(OperationExpired, match="resolved as not applied") as caught:
                each.enqueue()
            assert caught.value.disposition == "known_not_applied"
    unfinished = Job.objects.filter(finished_at=None)
    assert unfinished.count() == (WAYS[way][2] if landed else 0)
    assert (Entry.objects.count() == 1) is (landed and way == "in a block")


@pytest.mark.parametrize("way", WAYS)
def test_the_alias_that_was_lost_serves_what_follows(line, way):
    """A command has no end of a request, at which Django would drop the lost connection."""
    error = lose(line, way, True)

    assert all(each.enqueue().created for each in error.prepared)
    assert [each.resolve() for each in error.prepared] == [Resolution.APPLIED] * len(error.prepared)


@pytest.mark.parametrize("call", ["prepare", "enqueue", "resolve"])
def test_a_prepared_enqueue_can_be_asked_again_when_its_own_connection_was_lost(line, call):
    kept = handlers.send_receipt.prepare(7)
    ask = {
        "prepare": lambda: handlers.send_receipt.prepare(7),
        "enqueue": kept.enqueue,
        "resolve": kept.resolve,
    }[call]
    line.proxy.cut()
    line.proxy.restore()

    with pytest.raises(OperationalError):
        ask()
    ask()


@pytest.mark.parametrize("way", ["plainly", "many", "in a block"])
def test_the_error_says_what_happened_also_while_the_database_is_away(line, way):
    """Django connects again at the end of a block: that this fails, too, hides nothing."""
    error = lose(line, way, True, back=False)
    assert error.disposition is Disposition.UNKNOWN
    assert isinstance(error.__cause__, OperationalError)
    assert str(error).startswith("The connection to 'cut' was lost while ")
    line.proxy.restore()


def test_a_commit_of_djangos_own_is_resolved_by_who_keeps_the_prepared_enqueue(line, settings):
    kept = []
    for landed in (True, False):
        line.proxy.swallowed.clear()
        kept.append(handlers.send_receipt.prepare(7))
        thread = line.breaks(b"COMMIT", after=INSERT, landed=landed)
        with pytest.raises(OperationalError), transaction.atomic(using=CUT):
            kept[-1].enqueue()
        thread.join(60)

    settings.BACKWAVE = {}
    assert [each.resolve() for each in kept] == [Resolution.APPLIED, Resolution.NOT_APPLIED]


@pytest.mark.parametrize("block", [lambda: transaction.atomic(using=CUT), django_backwave.atomic])
def test_a_transaction_that_has_lost_its_connection_is_known_not_to_be_applied(line, block):
    thread = line.breaks(INSERT, landed=False)
    with pytest.raises(OperationalError), block():
        with pytest.raises(OperationalError) as caught:
            handlers.send_receipt.enqueue(7)
        raise caught.value
    thread.join(60)

    assert caught.value.disposition == "known_not_applied"
    assert Job.objects.count() == 0


def test_a_block_without_an_enqueue_loses_its_commit_as_djangos_does(line):
    thread = line.breaks(b"COMMIT", after=b'INSERT INTO "app_entry"', landed=False)
    with pytest.raises(OperationalError) as caught, django_backwave.atomic():
        Entry.objects.using(CUT).create(key="order", value="7")
    thread.join(60)

    assert caught.value.disposition == "unknown"


def test_what_a_savepoint_took_back_is_not_in_doubt(line):
    thread = line.breaks(b"COMMIT", after=INSERT, landed=True)
    with pytest.raises(EnqueueOutcomeUnknown) as caught, django_backwave.atomic():
        kept = handlers.send_receipt.enqueue(7)
        with pytest.raises(LookupError), transaction.atomic(using=CUT):
            handlers.send_receipt.enqueue(8)
            raise LookupError
        with django_backwave.atomic():
            also = handlers.send_receipt.enqueue(9)
    thread.join(60)

    assert [each.id for each in caught.value.prepared] == [kept.id, also.id]
    assert kept.receipt.confirmed == "in_transaction"


def test_a_server_that_cannot_be_reached_has_applied_nothing(line):
    connections[CUT].close()
    line.proxy.cut()
    with pytest.raises(OperationalError) as caught:
        handlers.send_receipt.enqueue(7)
    assert caught.value.disposition == "known_not_applied"
    line.proxy.restore()


def test_a_replacement_is_resolved_although_it_leaves_no_job_of_its_own(line, settings):
    handlers.send_receipt.using(key="k").enqueue(7)
    task = handlers.send_receipt.using(key="k", on_conflict="replace")
    errors = []
    for landed in (True, False):
        line.proxy.swallowed.clear()
        line.proxy.swallow(b"COMMIT", after=b'UPDATE "django_backwave_job"', forward=landed)
        thread = threading.Thread(target=cut_after, args=(line.proxy, landed))
        thread.start()
        with pytest.raises(EnqueueOutcomeUnknown) as caught:
            task.enqueue(8)
        thread.join(60)
        errors += caught.value.prepared

    settings.BACKWAVE = {}
    assert [each.resolve() for each in errors] == [Resolution.APPLIED, Resolution.NOT_APPLIED]
    assert errors[0].enqueue().args == [8]
    assert errors[0].enqueue().created is False


def cut_after(proxy, landed):
    """Cut the line when a replacement was committed, or before."""
    try:
        wait_until(proxy.swallowed.is_set)
        if landed:
            wait_until(Operation.objects.filter(job_id__isnull=False).exists)
        proxy.cut()
        proxy.restore()
    finally:
        connections.close_all()
