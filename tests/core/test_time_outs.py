"""Time-outs by example, without a database: what the driver tells, reports and gives up, and when."""

from __future__ import annotations

import pytest

from django_backwave.core.driver import STOP_GRACE
from django_backwave.core.holding import TIMEOUT_GRACE
from django_backwave.core.outcome import TIMED_OUT_CLASS, Released, TimedOut, timed_out
from django_backwave.core.protocol import (
    Began,
    Claim,
    ClaimAnswered,
    Completed,
    Exit,
    Finished,
    Overdue,
    ReleaseUnknown,
    Renewal,
    Scan,
    Settle,
    Start,
    StopReason,
    Stuck,
    Tell,
    Verdict,
)
from tests.core.bench import Bench, of_kind, only, report

TIMEOUT = 30.0


def begun(bench, count=1, timeout=TIMEOUT, **changes):
    """Start jobs whose handlers have begun, with a time-out."""
    jobs = bench.running(count, **changes)
    for job in jobs:
        assert of_kind(bench.feed(Began(bench.now, job.key, timeout)), Tell) == []
    return jobs


def claiming(bench):
    """Let time pass until there is a claim under way, and return it."""
    for _ in range(20):
        for command in bench.open:
            if isinstance(command, Claim):
                return command
        if Scan in bench.kinds():
            bench.scanned(mail=0)
        else:
            bench.tick(max(0.0, bench.driver.wake_at(bench.now) - bench.now))
    raise AssertionError(f"nothing is claimed: {bench.open}")


def overdue(bench, count=1):
    """Let jobs run until each is reported for not having stopped."""
    jobs = begun(bench, count)
    bench.tick(TIMEOUT)
    commands = bench.tick(TIMEOUT_GRACE)
    assert len(of_kind(commands, Overdue)) == count
    return jobs


def test_a_handler_is_told_once_when_its_time_is_over():
    bench = Bench()
    [job] = begun(bench)

    assert of_kind(bench.tick(TIMEOUT - 0.001), Tell) == []
    assert of_kind(bench.tick(0.001), Tell) == [Tell(job.key, StopReason.TIMEOUT)]
    assert of_kind(bench.tick(1), Tell) == []


def test_the_worker_wakes_up_for_it():
    bench = Bench(poll=1000.0)
    [job] = begun(bench)
    began_at = bench.now

    assert bench.until(Tell, within=60) == Tell(job.key, StopReason.TIMEOUT)
    assert bench.now == began_at + TIMEOUT
    bench.until(Overdue, within=60)
    assert bench.now == began_at + TIMEOUT + TIMEOUT_GRACE


def test_a_database_in_trouble_keeps_no_time_out_waiting():
    bench = Bench()
    [job] = begun(bench, timeout=0.1)
    bench.woken("mail")
    bench.tick(0.03)
    bench.failed(Claim)

    assert bench.driver.wake_at(bench.now) < bench.driver._quiet_until
    assert bench.until(Tell, within=0.2).key == job.key


def test_the_time_counts_from_the_begin_and_not_from_the_claim():
    """An atomic job on SQLite may wait long for its turn."""
    bench = Bench()
    [job] = bench.running()
    bench.tick(3600)

    bench.feed(Began(bench.now, job.key, TIMEOUT))

    assert bench.until(Tell, within=60).key == job.key


def test_without_a_time_out_nothing_is_told():
    bench = Bench()
    bench.running()

    bench.renewed({})
    assert of_kind(bench.tick(50), Tell | Overdue) == []


def test_who_stops_in_time_reports_by_himself():
    bench = Bench()
    [job] = begun(bench)
    bench.tick(TIMEOUT)
    bench.tick(TIMEOUT_GRACE - 1)

    sent = only(bench.finished(job, outcome=timed_out(TIMEOUT)), Settle)

    assert [each.outcome for each in sent.reports] == [timed_out(TIMEOUT)]
    assert of_kind(bench.tick(60), Overdue) == []


def test_who_does_not_stop_is_reported_once():
    bench = Bench(random=0.25)
    [job] = bench.running()
    bench.tick(2)
    bench.feed(Began(bench.now, job.key, TIMEOUT))
    bench.tick(TIMEOUT)

    assert of_kind(bench.tick(TIMEOUT_GRACE - 0.001), Overdue) == []
    commands = bench.tick(0.001)

    told, sent = only(commands, Overdue), only(commands, Settle)
    assert sent.reports == (told.report,)
    assert (told.report.job, told.report.jitter, told.report.started_after) == (job, 0.25, 2.0)
    assert isinstance(told.report.outcome, TimedOut)
    assert told.report.outcome.error.class_path == TIMED_OUT_CLASS
    assert "30 s" in told.report.outcome.error.message
    assert "still runs" in told.report.outcome.error.message
    assert of_kind(commands, Tell) == [Tell(job.key, StopReason.LEASE_LOST)], "no lease covers it any more"
    assert of_kind(bench.tick(60), Overdue) == []


def test_its_lease_is_kept_until_the_report_is_written():
    bench = Bench()
    [job] = overdue(bench)
    assert bench.driver.beating() == [job.key]

    bench.settled()
    assert bench.driver.beating() == []


def test_its_slot_is_kept_until_it_ends():
    bench = Bench(concurrency=4)
    [job] = overdue(bench)
    bench.settled()
    assert claiming(bench).limit == 3
    bench.claimed(3)

    bench.finished(job)

    assert claiming(bench).limit == 1


def test_its_late_result_is_dropped():
    bench = Bench()
    [job] = overdue(bench)
    bench.settled()

    assert of_kind(bench.finished(job), Settle) == []
    assert of_kind(bench.tick(1), Settle) == []


def test_its_late_result_is_dropped_also_before_the_report_is_written():
    """What was decided stays decided, however long the database takes."""
    bench = Bench()
    [job] = overdue(bench)
    bench.failed(Settle)

    bench.finished(job)
    sent = bench.until(Settle, within=1)

    assert [each.sent_before for each in sent.reports] == [True]
    assert isinstance(sent.reports[0].outcome, TimedOut)


def test_a_locked_row_is_tried_again():
    bench = Bench()
    overdue(bench)
    bench.settled(job_1=Verdict.LOCKED)

    assert isinstance(bench.until(Settle, within=1).reports[0].outcome, TimedOut)


def test_a_completed_block_ends_the_time_out():
    """G7: the code behind it runs under no lease, and for as long as it likes."""
    bench = Bench()
    [job] = begun(bench)
    bench.feed(Completed(bench.now, job.key))

    bench.tick(TIMEOUT)
    assert of_kind(bench.tick(TIMEOUT_GRACE), Tell | Overdue) == []


def late_success(bench, job):
    """An atomic block commits after all: its handler goes on, or has ended with it."""
    yield lambda: bench.feed(Completed(bench.now, job.key))
    settled = report(job).__class__(
        job=job, outcome=report(job).outcome, jitter=0.5, started_after=0.0, settled=True
    )
    yield lambda: bench.feed(Finished(bench.now, [settled]))


@pytest.mark.parametrize("kind", [0, 1], ids=["block", "end"])
def test_a_success_that_came_first_withdraws_a_report_that_waits(kind):
    """G7: on SQLite the report cannot be written while the atomic job has the database to itself."""
    bench = Bench()
    [job] = overdue(bench)
    bench.failed(Settle)

    list(late_success(bench, job))[kind]()

    assert job.key not in bench.driver.beating()
    bench.tick(10)
    assert Settle not in bench.kinds()


@pytest.mark.parametrize("kind", [0, 1], ids=["block", "end"])
def test_a_report_under_way_gets_its_verdict_from_the_fence(kind):
    bench = Bench()
    [job] = overdue(bench)

    list(late_success(bench, job))[kind]()
    bench.settled(job_1=Verdict.STALE)

    assert bench.driver.beating() == []
    bench.tick(10)
    assert Settle not in bench.kinds()


def test_a_lost_lease_does_not_end_the_time_out():
    """The slot is as stuck as any other."""
    bench = Bench(concurrency=1)
    [job] = begun(bench)
    bench.renewed({job: Renewal.LOST})
    bench.tick(TIMEOUT)

    assert of_kind(bench.tick(TIMEOUT_GRACE), Stuck) == [Stuck(1)]


# Too many of them.


def test_half_of_the_slots_are_not_too_many():
    bench = Bench(concurrency=4)
    overdue(bench, 2)
    bench.settled()

    assert claiming(bench).limit == 2


def test_more_than_half_of_the_slots_end_the_worker():
    bench = Bench(concurrency=4, shutdown_timeout=25.0)
    stuck = begun(bench, 3, lease_seconds=3600.0)
    claiming(bench)
    well = only(bench.claimed([job._replace(lease_seconds=3600.0) for job in bench.new_jobs(1)]), Start).job
    bench.tick(TIMEOUT)

    commands = bench.tick(TIMEOUT_GRACE)

    assert of_kind(commands, Stuck) == [Stuck(3)]
    bench.settled()
    bench.woken("mail")
    bench.tick(24)
    assert not {Scan, Claim} & bench.kinds()

    assert {tell.reason for tell in of_kind(bench.tick(1), Tell)} == {StopReason.SHUTDOWN}
    assert only(bench.finished(well, outcome=Released()), Settle).reports[0].outcome == Released()
    assert {job.key for job in only(bench.settled(), Exit).stuck} == {job.key for job in stuck}


def test_it_ends_at_once_when_nothing_else_runs():
    bench = Bench(concurrency=1)
    [job] = overdue(bench)

    assert only(bench.settled(), Exit).stuck == (job,)


def test_a_claim_under_way_goes_back():
    bench = Bench(concurrency=3)
    begun(bench, 2)
    claiming(bench)
    bench.tick(TIMEOUT)
    bench.tick(TIMEOUT_GRACE)

    assert of_kind(bench.claimed(1), Start) == []
    bench.settled()
    assert only(bench.open, ReleaseUnknown)


def test_overdue_handlers_hold_up_no_end():
    """Neither `--drain` nor a stop waits for code that may never end and changes nothing any more."""
    for options in ({"drain": True}, {"max_jobs": 1}):
        bench = Bench(concurrency=4, **options)
        [job] = overdue(bench)
        commands = bench.settled()
        if "drain" in options:
            claiming(bench)
            bench.claimed(0)
            bench.until(Scan, within=1)
            commands = bench.scanned()
        assert only(commands, Exit).stuck == (job,)


def test_a_stop_with_an_overdue_handler_ends_at_once():
    bench = Bench(concurrency=4)
    [job] = overdue(bench)
    bench.settled()

    assert only(bench.stop(), Exit).stuck == (job,)


def test_who_was_told_of_a_shutdown_is_told_of_no_time_out():
    """G11: who stops for a shutdown has not failed."""
    bench = Bench(shutdown_timeout=1.0)
    begun(bench, timeout=2.0)
    bench.stop()

    assert only(bench.tick(1.0), Tell).reason is StopReason.SHUTDOWN
    assert of_kind(bench.tick(1.5), Tell | Overdue) == []
    assert only(bench.tick(STOP_GRACE), Exit)


# Claims that found expired jobs.


def test_a_claim_full_of_expired_jobs_has_not_emptied_the_queue():
    bench = Bench(concurrency=2)
    bench.scanned(mail=0)
    command = bench._close(Claim)

    commands = bench.feed(ClaimAnswered(bench.now, command, [], bench.now, late=2))

    assert only(commands, Claim) == command


def test_a_draining_worker_goes_on_after_expired_jobs():
    bench = Bench(concurrency=2, drain=True)
    bench.scanned(mail=0)
    command = bench._close(Claim)

    commands = bench.feed(ClaimAnswered(bench.now, command, [], bench.now, late=1))

    assert of_kind(commands, Exit) == []
    bench.until(Scan, within=1)
    assert of_kind(bench.scanned(), Exit)


@pytest.mark.parametrize("how", ["completed", "finished"])
def test_a_report_that_could_not_be_written_and_need_not_be_stops_no_claim(how):
    """The handler's own success came in between: there is nothing left that must be written first."""
    bench = Bench()
    [job] = overdue(bench)
    bench.failed(Settle)
    if how == "completed":
        bench.feed(Completed(bench.now, job.key))
    else:
        bench.feed(Finished(bench.now, [report(job)._replace(settled=True)]))

    claiming(bench)
