"""The driver by example: what the worker does, and when. `Bench` holds the clock."""

from uuid import UUID

import pytest

from django_backwave.core import driver as module
from django_backwave.core.driver import LINGER, LOCKED_RETRY, MORE_QUEUES, Driver, Options
from django_backwave.core.pauses import LOOK_AGAIN, Pauses
from django_backwave.core.protocol import (
    AttemptKey,
    Claim,
    ClaimAnswered,
    Exit,
    Extend,
    Paused,
    Place,
    Prune,
    ReleaseUnknown,
    Renewal,
    Scan,
    Settle,
    Start,
    StopReason,
    Sweep,
    Tell,
    Tick,
    Verdict,
)
from tests.core.bench import EPOCH, START, Bench, claimed, of_kind, only

# One job's life.


def test_a_worker_begins_with_a_sweep_and_a_scan():
    bench = Bench(queues=("mail", "reports"))

    assert bench.open == [Sweep(), Scan(("mail", "reports"))]


def test_a_job_is_scanned_claimed_started_and_settled():
    bench = Bench(concurrency=4)
    assert bench.scanned(mail=0, reports=60) == [Claim("mail", 4, 4)]

    job = claimed()
    bench.now += 1
    assert only(bench.claimed([job]), Start) == Start(job, bench.now + 60.0, bench.now)
    assert bench.driver.beating() == [AttemptKey(job.job_id, 1)]

    assert [report.job for report in only(bench.finished(job), Settle).reports] == [job]
    assert bench.driver.beating() == [job.key], "what is being written is still held"

    bench.settled()
    assert bench.driver.beating() == []


def test_a_lease_counts_from_the_instant_before_its_claim_was_sent():
    """G10: the worker's own clock never extends a lease."""
    bench = Bench(lease=30.0)
    bench.scanned(mail=0)
    command = bench._close(Claim)
    jobs = [claimed(1), claimed(2, lease_seconds=5.0)]
    sent_at, bench.now = bench.now, bench.now + 2
    starts = of_kind(bench.feed(module.ClaimAnswered(bench.now, command, jobs, sent_at)), Start)

    assert [start.lease_ends - sent_at for start in starts] == [30.0, 5.0]


# Scans.


def test_an_idle_worker_looks_more_and_more_rarely_up_to_its_poll_interval():
    bench = Bench(poll=1.0)
    waits = []
    for _ in range(8):
        answered_at = bench.now
        bench.scanned()
        bench.until(Scan, within=2.0)
        waits.append(bench.now - answered_at)

    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(("random", "wait"), [(0.0, 0.75), (0.5, 1.0), (0.999, 1.25)])
def test_idle_polls_are_spread_by_chance(random, wait):
    bench = Bench(random=random)
    for _ in range(12):
        answered_at = bench.now
        bench.scanned()
        bench.until(Scan, within=2.0)

    assert bench.now - answered_at == pytest.approx(wait, rel=0.01)


def test_a_job_that_comes_due_before_the_next_poll_is_looked_for_then():
    bench = Bench(poll=10.0)
    bench.scanned(mail=0.01)
    bench.until(Scan, within=1.0)

    assert bench.now == pytest.approx(START + 0.01)


def test_after_work_the_worker_looks_again_at_once():
    """A handler may have enqueued something."""
    bench = Bench(poll=10.0)
    [job] = bench.running()
    bench.finished(job)
    bench.settled()
    bench.until(Scan, within=0.05)


def test_a_wake_up_without_a_queue_scans_and_one_with_a_queue_claims():
    bench = Bench()
    bench.scanned()
    assert bench.woken() == [Scan(None)]

    bench.scanned()
    assert bench.woken("mail") == [Claim("mail", 10, 10)]


def test_a_wake_up_for_a_queue_that_is_not_served_is_ignored():
    bench = Bench(queues=("mail",))
    bench.scanned()

    assert bench.woken("reports") == []


# Claims.


def test_a_claim_asks_for_all_the_free_room():
    bench = Bench(concurrency=5)
    bench.running(3)
    bench.now += LINGER

    assert only(bench.woken("mail"), Claim).limit == 2


def test_nothing_is_claimed_without_room():
    bench = Bench(concurrency=2)
    bench.running(2)
    bench.woken("mail")

    bench.tick(30)
    assert not {Scan, Claim} & bench.kinds()


def test_a_claim_takes_from_other_queues_what_its_own_does_not_have():
    bench = Bench()
    [claim] = bench.scanned(mail=0, reports=0, thumbnails=0)

    assert claim == Claim("mail", 10, 10, also=("reports", "thumbnails"))
    assert of_kind(bench.claimed(0), Claim) == [], "none of them has anything"


def test_the_second_claim_waits_for_the_first_and_begins_with_the_next_queue():
    bench = Bench(concurrency=4)
    bench.scanned(mail=0, reports=0)
    jobs = bench.new_jobs(4)
    assert of_kind(bench.claimed(jobs), Claim) == []

    assert only(bench.finished(*jobs), Claim) == Claim("reports", 4, 4, also=("mail",))


def test_the_queues_of_one_claim_have_a_bound():
    bench = Bench()
    [claim] = bench.scanned(**{f"queue{number}": 0 for number in range(90)})

    assert (len(claim.also), claim.queue in claim.also) == (MORE_QUEUES, False)
    first = {claim.queue, *claim.also}
    second = only(bench.claimed(0), Claim)
    assert {second.queue, *second.also} == {f"queue{number}" for number in range(90)} - first


@pytest.mark.parametrize(("random", "first"), [(0.0, 0), (0.5, 45), (0.999, 89)])
def test_workers_that_see_the_same_many_queues_begin_at_different_ones(random, first):
    """Each in the round from there, none left out."""
    bench = Bench(random=random)

    claim = only(bench.scanned(**{f"queue{number}": 0 for number in range(90)}), Claim)

    round_ = [f"queue{(first + number) % 90}" for number in range(1 + MORE_QUEUES)]
    assert [claim.queue, *claim.also] == round_


def test_a_round_that_one_claim_covers_begins_where_the_scan_did():
    bench = Bench(random=0.999)

    claim = only(bench.scanned(**{f"queue{number}": 0 for number in range(1 + MORE_QUEUES)}), Claim)

    assert claim.queue == "queue0"


def test_while_a_name_is_paused_each_claim_is_for_one_queue():
    bench = Bench()
    bench.paused(names={"a"})
    [claim] = bench.scanned(mail=0, reports=0)

    assert (claim.queue, claim.also) == ("mail", ())


def test_slots_that_come_free_together_are_filled_by_one_claim():
    bench = Bench(concurrency=10, poll=60)
    jobs = bench.running(10)
    bench.now += 1
    assert of_kind(bench.finished(jobs[0]), Claim) == [], "more slots will be free in a moment"
    bench.now += LINGER / 2
    bench.finished(jobs[1])

    assert bench.until(Claim, within=LINGER) == Claim("mail", 2, 2)
    assert bench.now <= START + 1 + LINGER + 1e-6


def test_half_the_slots_are_worth_a_claim_at_once():
    bench = Bench(concurrency=4)
    jobs = bench.running(4)
    bench.woken("mail")

    claim = only(bench.finished(*jobs[:2]), Claim)
    assert (claim.queue, claim.limit, claim.slots) == ("mail", 2, 2)


def test_a_failed_claim_does_not_close_the_slots_that_it_was_for():
    bench = Bench(concurrency=10, poll=60)
    bench.running(8)
    bench.woken("mail")
    assert bench.until(Claim, within=LINGER) == Claim("mail", 2, 2)
    bench.failed(Claim)
    bench.until(ReleaseUnknown, within=0.3)

    bench.swept(ReleaseUnknown)

    assert Claim("mail", 2, 2) in bench.scanned(mail=0)


def test_queues_that_gave_less_than_asked_for_are_asked_no_more():
    bench = Bench()
    bench.scanned(mail=0, reports=0)
    assert of_kind(bench.claimed(3), Claim) == []
    bench.now += LINGER
    assert of_kind(bench.tick(), Claim) == []


def test_a_busy_queue_does_not_starve_one_that_comes_up():
    """Mail has jobs without end, and all slots are always taken."""
    bench = Bench(concurrency=2, poll=0.5)
    jobs = bench.running(2)
    served = []
    for _ in range(30):
        bench.now += 0.05
        commands = bench.finished(*jobs) + bench.settled()
        if of_kind(commands, Scan):
            commands += bench.scanned(mail=0, reports=0)
        [claim] = of_kind(commands, Claim)
        served.append(claim.queue)
        jobs = [job._replace(queue=claim.queue) for job in bench.new_jobs(2)]
        bench.claimed(jobs)

    assert served.index("reports") <= 11, "found by the first scan after the poll interval"
    assert served[-6:].count("reports") == 3


def test_max_jobs_bounds_what_is_claimed_and_ends_the_worker():
    bench = Bench(concurrency=4, max_jobs=5)
    bench.swept(Sweep)
    jobs = bench.running(4)
    claim = only(bench.finished(*jobs), Claim)
    assert (claim.limit, claim.slots) == (1, 1)
    bench.settled()
    last = bench.new_jobs(1)
    assert of_kind(bench.claimed(last), Exit) == []
    bench.finished(*last)

    assert bench.settled() == [Exit(())]


# Settles.


def test_reports_are_written_together_as_soon_as_nothing_else_runs():
    bench = Bench(concurrency=4)
    first, second = bench.running(2)
    assert of_kind(bench.finished(first), Settle) == []

    assert [report.job for report in only(bench.finished(second), Settle).reports] == [first, second]


def test_reports_are_written_once_they_fill_a_batch():
    bench = Bench(concurrency=4)
    last, *first = bench.running(4)
    bench.finished(*first)  # one still runs, and nobody is idle
    second, third = bench.new_jobs(3), bench.new_jobs(1)
    bench.claimed(second)
    bench.finished(*second)
    bench.claimed(third)
    assert Settle not in {type(command) for command in bench.settled()}, "three are not enough"

    [command] = bench.finished(*third)

    assert [each.job for each in command.reports] == [*second, *third]
    assert last.key in bench.driver.beating()


def test_a_settle_goes_along_with_a_claim_however_little_there_is_to_write():
    """Both go in one round trip, the settle first."""
    bench = Bench(concurrency=4)
    jobs = bench.running(4)
    assert bench.finished(jobs[0]) == []

    settle, claim = bench.finished(jobs[1])

    assert [each.job for each in settle.reports] == jobs[:2]
    assert (claim.queue, claim.limit, claim.slots) == ("mail", 2, 2)


def test_a_claim_goes_along_with_a_settle_however_little_room_there_is():
    bench = Bench(concurrency=10)
    jobs = bench.running(10)
    bench.finished(jobs[0])

    settle = bench.until(Settle, within=LINGER + 1e-6)

    assert [each.job for each in settle.reports] == jobs[:1]
    assert [command.limit for command in bench.open if isinstance(command, Claim)] == [1]


def test_a_report_waits_for_company_no_longer_than_it_may():
    bench = Bench(concurrency=4)
    jobs = bench.running(2)
    bench.finished(jobs[0])
    bench.until(Settle, within=LINGER + 1e-6)


def test_a_batch_has_a_bound(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 3)
    bench = Bench(concurrency=5)
    jobs = bench.running(5)

    assert len(only(bench.finished(*jobs), Settle).reports) == 3
    assert len(only(bench.settled(), Settle).reports) == 2


def test_the_second_settle_waits_for_the_first():
    bench = Bench(concurrency=4)
    first, second = bench.running(2)
    bench.finished(first)
    bench.tick(LINGER)
    bench.finished(second)
    bench.tick(1)
    assert len(of_kind(bench.open, Settle)) == 1

    assert [report.job for report in only(bench.settled(), Settle).reports] == [second]


def test_a_locked_row_is_tried_again_and_delays_no_other():
    """§9.1: skipped is unknown, not lost."""
    bench = Bench(concurrency=4)
    first, second = bench.running(2)
    bench.finished(first, second)
    bench.settled(job_1=Verdict.LOCKED)
    assert bench.driver.beating() == [first.key]

    again = bench.until(Settle, within=LOCKED_RETRY)
    assert [(report.job, report.sent_before) for report in again.reports] == [(first, False)]
    bench.settled()
    assert bench.driver.beating() == []


def test_a_failed_settle_keeps_its_reports_and_marks_them_as_sent():
    """§9.2: the COMMIT whose reply was lost may have been applied."""
    bench = Bench(concurrency=4)
    jobs = bench.running(2)
    bench.finished(*jobs)
    bench.failed(Settle)
    again = bench.until(Settle, within=0.3)

    assert [(report.job, report.sent_before) for report in again.reports] == [(job, True) for job in jobs]
    assert bench.driver.beating() == [job.key for job in jobs]


def test_nothing_more_is_claimed_until_what_could_not_be_written_is_written():
    bench = Bench(concurrency=4)
    jobs = bench.running(1)
    bench.finished(*jobs)
    bench.failed(Settle)
    bench.woken("mail")
    bench.until(Settle, within=0.3)
    bench.tick(100)
    assert not {Claim, Scan} & bench.kinds()

    assert {type(command) for command in bench.settled()} >= {Scan}
    assert Claim("mail", 4, 4) in bench.scanned(mail=0)


def test_waits_after_failures_grow_to_a_bound():
    bench = Bench(random=0.999)
    waits = []
    for _ in range(8):
        failed_at = bench.now
        bench.failed(Scan)
        bench.until(Scan, within=6.0)
        waits.append(bench.now - failed_at)

    assert waits == pytest.approx([0.25, 0.5, 1, 2, 4, 5, 5, 5], rel=0.01)


# Claims without an answer.


def test_after_a_failed_claim_what_it_may_have_taken_is_handed_back():
    """§9.3: now, and again at each heartbeat for one lease length: it may commit yet."""
    bench = Bench(concurrency=4, lease=30.0, queues=("mail",))
    [job] = bench.running(1)
    bench.woken("mail")
    bench.failed(Claim)
    assert bench.until(ReleaseUnknown, within=0.3) == ReleaseUnknown(frozenset({job.key}))
    bench.swept(ReleaseUnknown)

    bench.now = START + 29
    assert only(bench.renewed({job: Renewal.RENEWED}), ReleaseUnknown).known == {job.key}
    bench.swept(ReleaseUnknown)

    bench.now = START + 31
    assert of_kind(bench.renewed({job: Renewal.RENEWED}), ReleaseUnknown) == []


def test_nothing_is_handed_back_while_a_claim_is_under_way():
    """It would hand back what that claim is about to return."""
    bench = Bench(concurrency=4)
    bench.scanned(mail=0)
    bench.failed(Claim)
    bench.until(ReleaseUnknown, within=0.3)
    assert Claim not in bench.kinds()
    assert Claim("mail", 4, 4) in bench.swept(ReleaseUnknown)

    assert bench.renewed({}) == []
    job = claimed()
    assert only(bench.claimed([job]), ReleaseUnknown).known == {job.key}


def test_a_failed_release_is_repeated():
    bench = Bench()
    bench.scanned(mail=0)
    bench.failed(Claim)
    bench.until(ReleaseUnknown, within=0.3)
    bench.failed(ReleaseUnknown)
    bench.until(ReleaseUnknown, within=0.6)


# Heartbeats.


def test_a_renewal_extends_from_the_instant_before_it_was_sent():
    """G10."""
    bench = Bench(lease=30.0)
    first, second = bench.running(2)
    second_lease = second._replace(lease_seconds=6.0)
    bench.driver._held.running[second.key].job = second_lease
    bench.now += 3
    renewals = {first: Renewal.RENEWED, second: Renewal.RENEWED}

    extends = of_kind(bench.renewed(renewals, took=1.0), Extend)
    assert extends == [Extend(first.key, bench.now + 29), Extend(second.key, bench.now + 5)]


def test_a_cancel_is_told_to_the_handler():
    """G8."""
    bench = Bench()
    [job] = bench.running()

    commands = bench.renewed({job: Renewal.CANCEL_REQUESTED})
    assert of_kind(commands, Tell) == [Tell(job.key, StopReason.CANCEL)]
    assert len(of_kind(commands, Extend)) == 1


def test_a_lost_lease_is_told_and_renewed_no_more():
    """G9."""
    bench = Bench()
    job, other = bench.running(2)

    commands = bench.renewed({job: Renewal.LOST, other: Renewal.RENEWED})
    assert of_kind(commands, Tell) == [Tell(job.key, StopReason.LEASE_LOST)]
    assert bench.driver.beating() == [other.key]


def test_what_a_handler_reports_after_the_loss_is_sent_all_the_same():
    """G10: only the fence refuses."""
    bench = Bench()
    [job] = bench.running()
    bench.renewed({job: Renewal.LOST})

    assert only(bench.finished(job), Settle).reports[0].job == job


def test_a_lease_that_its_own_settle_may_have_ended_is_not_lost():
    """§9.9."""
    bench = Bench()
    [job] = bench.running()
    bench.finished(job)

    assert bench.renewed({job: Renewal.LOST}) == []
    bench.settled(job_1=Verdict.LOCKED)
    assert bench.driver.beating() == [job.key]


def test_a_lease_that_is_over_by_the_own_clock_is_told_once():
    """G10: the database is out of reach, and nobody else can tell it. A late renewal still counts."""
    bench = Bench(lease=30.0)
    [job] = bench.running()
    assert bench.until(Tell, within=60.0) == Tell(job.key, StopReason.LEASE_LOST)
    assert bench.now == START + 30
    assert of_kind(bench.tick(1), Tell) == []
    assert bench.driver.beating() == [job.key]

    assert of_kind(bench.renewed({job: Renewal.RENEWED}), Extend) == [Extend(job.key, bench.now + 30)]


def test_a_row_that_somebody_else_has_locked_is_no_loss():
    bench = Bench()
    [job] = bench.running()

    assert bench.renewed({job: Renewal.UNKNOWN}) == []
    assert bench.driver.beating() == [job.key]


def test_a_renewal_of_what_has_ended_meanwhile_is_ignored():
    bench = Bench()
    [job] = bench.running()
    bench.finished(job)
    bench.settled()

    assert of_kind(bench.renewed({job: Renewal.LOST}), Tell) == []


@pytest.mark.parametrize(
    ("lease", "own", "seconds"), [(60, None, 5), (9, None, 3), (60, 3, 1), (6, 30, 2), (60, 10**6, 5)]
)
def test_the_heart_beats_three_times_a_lease_and_every_five_seconds(lease, own, seconds):
    bench = Bench(lease=lease)
    bench.running(1, lease_seconds=own)

    assert bench.driver.beat_every() == pytest.approx(seconds)


# Sweeps and prunes.


def test_a_sweep_that_reached_its_bound_goes_on_at_once():
    bench = Bench()
    assert bench.swept(Sweep, more=True) == [Sweep()]
    assert bench.swept(Sweep) == []
    bench.scanned()

    bench.until(Sweep, within=5.0)


def test_a_prune_that_reached_its_bound_goes_on_soon():
    bench = Bench()
    bench.scanned()
    bench.swept(Sweep)
    for wait in (60.0, 1.0):
        bench.now += wait
        assert Prune() in bench.tick()
        bench.swept(Prune, more=True)


def test_a_failed_sweep_is_repeated_in_its_turn():
    bench = Bench()
    bench.failed(Sweep)

    bench.until(Sweep, within=6.0)


# Drain.


def test_drain_ends_once_nothing_is_due():
    assert Bench(drain=True).scanned() == [Exit(())]


def test_drain_is_not_held_by_what_is_due_later():
    assert Bench(drain=True).scanned(mail=3600) == [Exit(())]


def test_drain_ends_only_after_a_scan_that_came_after_the_last_of_its_jobs():
    bench = Bench(drain=True)
    [job] = bench.running()
    bench.finished(job)
    assert of_kind(bench.settled(), Exit) == []

    bench.until(Scan, within=0.1)
    assert bench.scanned() == [Exit(())]


def test_drain_does_not_trust_a_scan_that_was_sent_before_its_last_job_ended():
    """That job may have enqueued another."""
    bench = Bench(drain=True, concurrency=4)
    jobs = bench.running(1)
    bench.woken()
    bench.finished(*jobs)
    bench.settled()

    assert of_kind(bench.scanned(), Exit) == []
    bench.until(Scan, within=1.1)
    assert bench.scanned() == [Exit(())]


def test_drain_waits_for_what_it_could_not_write():
    bench = Bench(drain=True)
    [job] = bench.running()
    bench.finished(job)
    bench.failed(Settle)
    for _ in range(3):
        bench.until(Settle, within=6)
        bench.failed(Settle)
    bench.until(Settle, within=6)

    assert of_kind(bench.settled() + bench.scanned(), Exit) == [Exit(())]


def test_drain_claims_until_its_queues_give_no_more():
    bench = Bench(drain=True, concurrency=2)
    jobs = bench.running(2)
    for _ in range(3):
        claim = only(bench.finished(*jobs), Claim)
        bench.settled()
        jobs = bench.new_jobs(claim.limit)
        bench.claimed(jobs)
    bench.finished(*jobs)
    bench.claimed(0)
    bench.settled()
    bench.until(Scan, within=0.1)

    assert bench.scanned() == [Exit(())]


# Stop.


def test_an_idle_worker_stops_at_once():
    bench = Bench()

    assert bench.stop() == [Exit(())]


def test_a_stopping_worker_claims_nothing_and_waits_for_what_runs():
    """G11."""
    bench = Bench(shutdown_timeout=10.0)
    [job] = bench.running()
    assert bench.stop() == []
    bench.woken("mail")
    bench.now += 9.9
    assert bench.tick() == []
    assert only(bench.finished(job), Settle).reports[0].job == job

    assert bench.settled() == [Exit(())]


def test_what_a_claim_brings_after_the_stop_is_handed_back_unstarted():
    """G11: it costs no failure, and nobody waits for it."""
    bench = Bench()
    [running] = bench.running(1)
    bench.woken("mail")
    bench.stop()

    commands = bench.claimed(3)
    assert commands == [ReleaseUnknown(frozenset({running.key}))]
    bench.finished(running)
    assert bench.settled() == []
    assert bench.swept(ReleaseUnknown) == [Exit(())]


def test_a_report_is_written_at_once_while_stopping():
    bench = Bench()
    first, _ = bench.running(2)
    bench.stop()

    assert Settle in {type(command) for command in bench.finished(first)}


def test_handlers_are_told_when_the_time_to_finish_is_up():
    bench = Bench(shutdown_timeout=10.0)
    first, second = bench.running(2)
    bench.stop()

    assert bench.until(Tell, within=10.0) == Tell(first.key, StopReason.SHUTDOWN)
    assert bench.now == START + 10.0
    assert of_kind(bench.tick(1), Tell) == [], "once is enough"
    bench.finished(first, second)
    assert bench.settled() == [Exit(())]


def test_who_has_not_stopped_after_three_seconds_more_is_left_behind():
    """§9.21: the worker ends; their leases lapse."""
    bench = Bench(shutdown_timeout=10.0)
    stopped, stuck = bench.running(2)
    bench.stop()
    bench.until(Tell, within=10.0)
    bench.finished(stopped)
    bench.settled()

    assert bench.until(Exit, within=3.0) == Exit((stuck,))
    assert bench.now == START + 13.0


def test_the_end_comes_also_while_the_database_is_away():
    bench = Bench(shutdown_timeout=1.0)
    [job] = bench.running()
    bench.stop()
    command = only(bench.finished(job), Settle)
    while not isinstance(command, Exit):
        bench.failed(Settle)
        command = bench.until((Settle, Exit), within=6.0)

    assert command == Exit(())
    assert bench.now == START + 1 + 3 + 5


def test_the_end_comes_also_while_a_claim_gives_no_answer():
    bench = Bench(shutdown_timeout=1.0)
    bench.scanned(mail=0)
    bench.stop()

    assert bench.until(Exit, within=9.0) == Exit(())


def test_nothing_follows_the_exit():
    bench = Bench()
    bench.stop()

    assert bench.tick(100) == bench.woken("mail") == bench.stop() == []


# Rest.


def spins(bench):
    """Say whether a Tick at the time that the driver asks for changes nothing."""
    wake = max(bench.now, bench.driver.wake_at(bench.now))
    bench.now = wake
    return not bench.tick() and bench.driver.wake_at(bench.now) <= wake


def test_a_worker_rests_while_every_command_is_under_way():
    """No answer comes for a minute, and nobody spins meanwhile."""
    bench = Bench(lease=30.0)
    job, other = bench.running(2)
    bench.woken("mail")
    bench.failed(Claim)
    bench.until(ReleaseUnknown, within=0.3)
    bench.renewed({job: Renewal.RENEWED})  # asks for another release while one is under way
    bench.finished(job)
    for _ in range(50):
        assert not spins(bench)

    assert bench.now > START + 60
    assert other.key in bench.driver.beating()


# Pauses.


def test_nothing_is_looked_for_before_the_pauses_are_known():
    driver = Driver(Options(), now=START, random=lambda: 0.5)

    assert driver.step(Tick(START)) == [Sweep()]
    assert driver.step(Paused(START, frozenset(), frozenset())) == [Scan(None)]


def test_a_paused_queue_is_not_claimed_from_whoever_names_it():
    bench = Bench()
    bench.paused("mail")

    assert bench.scanned(mail=0, reports=60) == []
    assert bench.woken("mail") == []
    bench.tick(600)
    assert Claim not in bench.kinds()


def test_what_is_due_in_a_paused_queue_does_not_keep_the_worker_awake():
    bench = Bench(poll=1.0)
    bench.paused("mail")
    scans = 0
    for _ in range(20):
        bench.scanned(mail=0.001)
        bench.until(Scan, within=2.0)
        scans += 1

    assert bench.now - START > scans * 0.7


def test_a_pause_takes_its_queue_out_of_the_round():
    bench = Bench(concurrency=1)
    bench.scanned(mail=0, reports=0)
    bench.paused("reports")
    [job] = bench.new_jobs(1)
    bench.claimed([job])

    assert only(bench.finished(job), Claim).queue == "mail"
    bench.claimed(0)
    bench.settled()
    bench.tick(1)
    assert Claim not in bench.kinds()


def test_what_runs_goes_on_under_a_pause():
    bench = Bench()
    [job] = bench.running()

    assert bench.paused("mail", names=[job.name]) == []
    assert bench.driver.beating() == [job.key]
    assert [report.job for report in only(bench.finished(job), Settle).reports] == [job]


def idle(bench):
    """Let the worker find nothing to do for so long that it looks rarely; its next look is far."""
    for _ in range(14):
        bench.scanned(mail=0)
        bench.until(Scan, within=100)
    bench.scanned(mail=0)


def test_a_resume_looks_at_once():
    bench = Bench(poll=60.0)
    bench.paused("mail")
    idle(bench)
    bench.paused()

    bench.until(Scan, within=0.05)
    assert bench.scanned(mail=0) == [Claim("mail", 10, 10)]


def test_the_same_pauses_again_are_no_news():
    bench = Bench(poll=60.0)
    bench.paused("mail")
    idle(bench)
    bench.paused("mail")

    bench.tick(5)
    assert Scan not in bench.kinds()


def test_drain_ends_although_a_paused_queue_has_due_jobs():
    bench = Bench(drain=True)
    bench.paused("mail")
    bench.scanned(mail=0)
    bench.until(Scan, within=0.1)

    assert only(bench.scanned(mail=0), Exit) == Exit(())


def test_drain_is_over_once_its_only_queue_is_paused():
    bench = Bench(drain=True)
    bench.scanned(mail=0)
    bench.claimed(10)
    bench.paused("mail")
    jobs = [claimed(number) for number in range(1, 11)]
    bench.finished(*jobs)
    bench.settled()
    bench.until(Scan, within=1.0)

    assert only(bench.scanned(mail=0), Exit)


def places(number):
    return [Place(0, EPOCH, UUID(int=number))]


def test_a_claim_leaves_out_paused_names_and_goes_on_where_it_stopped():
    bench = Bench()
    bench.paused(names=["b", "a"])

    assert bench.scanned(mail=0) == [Claim("mail", 10, 10, ("a", "b"))]
    [again] = bench.claimed(0, past=places(1))
    assert again == Claim("mail", 10, 10, ("a", "b"), tuple(places(1)))
    [again] = bench.claimed(0, past=places(2))
    assert again.past == tuple(places(2))
    assert bench.claimed(0, past=places(2)) == [], "that was the end of the queue"


def test_a_queue_of_paused_names_costs_one_small_claim_a_poll():
    bench = Bench(poll=1.0)
    bench.paused(names=["a"])
    bench.scanned(mail=0)
    bench.claimed(0, past=places(1))
    bench.claimed(0, past=places(1))
    for _ in range(5):
        before = bench.now
        bench.until(Scan, within=2.0)
        assert bench.now - before >= 0.7
        assert bench.scanned(mail=0) == [Claim("mail", 10, 10, ("a",), tuple(places(1)))]
        assert bench.claimed(0, past=places(1)) == []


def test_after_a_while_it_is_looked_through_from_its_head_again():
    bench = Bench(poll=1.0)
    bench.paused(names=["a"])
    bench.scanned(mail=0)
    bench.claimed(0, past=places(1))
    bench.claimed(0, past=places(1))
    bench.tick(LOOK_AGAIN)

    assert bench.scanned(mail=0) == [Claim("mail", 10, 10, ("a",))]


def test_a_long_look_is_not_begun_anew_before_its_end():
    pauses = Pauses()
    pauses.learn(Paused(START, frozenset(), frozenset({"a"})))
    for number in range(1, 9):
        now = START + number * LOOK_AGAIN
        command = pauses.claim("mail", 10, 10, now)
        assert command.past == tuple(places(number - 1) if number > 1 else ())
        assert pauses.looked(ClaimAnswered(now, command, [], now, past=tuple(places(number))))


def test_places_are_forgotten_when_a_name_is_resumed_also_under_a_claim():
    bench = Bench()
    bench.paused(names=["a", "b"])
    bench.scanned(mail=0)
    bench.claimed(0, past=places(1))
    bench.paused(names=["a"])
    bench.claimed(0, past=places(2))
    bench.until(Scan, within=0.1)

    assert bench.scanned(mail=0) == [Claim("mail", 10, 10, ("a",))]


def test_drain_looks_to_the_end_past_paused_names():
    bench = Bench(drain=True)
    bench.paused(names=["a"])
    bench.scanned()
    bench.until(Scan, within=0.1)
    bench.scanned(mail=0)

    assert not of_kind(bench.claimed(0, past=places(1)), Exit)
    assert only(bench.claimed(0, past=places(1)), Exit)


def test_one_locked_row_after_a_lost_reply_stops_no_claims():
    """Rule 1: once the store answers again, a report that only waits for somebody's lock is no reason."""
    bench = Bench(concurrency=10)
    jobs = bench.running(2)
    bench.finished(*jobs)
    bench.failed(Settle)
    bench.until(Settle, within=10)
    assert bench.kinds() & {Scan, Claim} == set(), "nothing is taken on while reports cannot be written"

    bench.settled(job_1=Verdict.LOCKED)

    assert Scan in bench.kinds()


def test_an_attempt_that_is_claimed_twice_runs_once():
    """G3: a failover may lose a claim's commit, and the next one gives the same number again."""
    bench = Bench(concurrency=10)
    [job] = bench.running(1)
    bench.renewed({job: Renewal.LOST})
    bench.until(Scan, within=5)
    bench.scanned(mail=0)

    assert of_kind(bench.claimed([job]), Start) == []

    bench.finished(job)
    bench.settled()
    assert bench.finished(job) == []


def test_a_drain_waits_out_its_doubt_about_a_claim():
    """Rule 3: a claim whose reply was lost may commit for as long as a lease lasts."""
    bench = Bench(concurrency=10, drain=True, lease=2.0)
    bench.scanned(mail=0)
    bench.failed(Claim)
    doubtful_until = bench.now + 2.0
    ended = False
    while not ended and bench.now < doubtful_until + 10:
        for kind, answer in ((ReleaseUnknown, bench.swept), (Sweep, bench.swept)):
            if kind in bench.kinds():
                ended = ended or bool(of_kind(answer(kind), Exit))
        if Claim in bench.kinds():
            ended = ended or bool(of_kind(bench.claimed(0), Exit))
        if Scan in bench.kinds():
            ended = ended or bool(of_kind(bench.scanned(), Exit))
        if not ended:
            ended = bool(of_kind(bench.tick(0.25), Exit))

    assert ended
    assert bench.now >= doubtful_until
