"""How much is claimed ahead: the room, the watermarks, the driver's use of both, and what it holds."""

from __future__ import annotations

import pytest

from django_backwave.core import driver as module
from django_backwave.core.ahead import MOST, PATIENCE, WITHIN, Ahead
from django_backwave.core.driver import LINGER
from django_backwave.core.holding import Held, Holding
from django_backwave.core.outcome import Released, Succeeded
from django_backwave.core.protocol import (
    Claim,
    ClaimAnswered,
    Exit,
    Finished,
    Place,
    ReleaseUnknown,
    Renewal,
    Scan,
    Settle,
    Start,
    StopReason,
    Sweep,
    Tell,
    Withdraw,
    Withdrawn,
)
from django_backwave.core.watermarks import FROM_THE_HEAD_CAP, FROM_THE_HEAD_EVERY, SHARE, Watermarks
from tests.core.bench import START, Bench, claimed, of_kind, only, report

QUICK, SLOW = 0.001, 5.0

# The room.


def ahead(concurrency, *seconds):
    ahead = Ahead(concurrency)
    for each in seconds:
        ahead.ran(each)
    return ahead


def test_there_is_no_room_before_anything_has_run():
    assert ahead(10).room == 0


@pytest.mark.parametrize(
    ("concurrency", "seconds", "room"),
    [(1, 0.001, 100), (4, 0.01, 40), (10, 0.01, 100), (10, 0.3, 3), (10, 1.0, 1), (10, 1.01, 0), (1, 60, 0)],
)
def test_the_room_is_what_starts_within_a_moment(concurrency, seconds, room):
    assert ahead(concurrency, seconds).room == room
    assert room * seconds <= concurrency * WITHIN + 1e-9


@pytest.mark.parametrize("seconds", [1e-5, 0.0])
def test_the_room_has_a_bound_however_quick_the_jobs_are(seconds):
    assert ahead(1000, seconds).room == MOST


def test_slow_jobs_take_the_room_away_at_once():
    """A single one that takes seconds is enough, whatever went before."""
    quick = ahead(10, *[QUICK] * 10_000)
    assert quick.room == MOST

    quick.ran(SLOW)

    assert quick.room == 0


def test_quick_jobs_bring_it_back_by_and_by():
    slow = ahead(10, SLOW)
    rooms = []
    for _ in range(200):
        slow.ran(QUICK)
        rooms.append(slow.room)

    assert rooms == sorted(rooms)
    assert rooms[10] == 0
    assert rooms[-1] > 100


def test_a_wrong_guess_leaves_no_room_until_something_has_run_again():
    wrong = ahead(10, QUICK)
    wrong.was_wrong()
    assert wrong.room == 0

    wrong.ran(0.5)
    assert wrong.room == 2


# The watermarks.


class Claims:
    """Claims of queues, answered one after the other."""

    def __init__(self):
        self.watermarks = Watermarks()
        self.now = START
        self.numbers = 0

    def bring(self, *priorities, limit=None, queue="mail", took=0.0):
        """Answer a claim with jobs of these priorities, in queue order; it asked for no more, unless told."""
        first = self.numbers + 1
        self.numbers += len(priorities)
        jobs = [claimed(n, priority=p, queue=queue) for n, p in enumerate(priorities, start=first)]
        command = Claim(queue, len(jobs) if limit is None else limit, 0)
        self.watermarks.answered(ClaimAnswered(self.now, command, jobs, self.now - took))
        return jobs

    def past(self, queue="mail"):
        return self.watermarks.past(queue, self.now)


def place(job):
    return Place(job.priority, job.due_at, job.job_id)


def test_a_full_claim_says_how_far_it_came_in_each_priority():
    claims = Claims()
    assert claims.past() == ()

    jobs = claims.bring(9, 9, 0, 0, 0)

    assert set(claims.past()) == {place(jobs[1]), place(jobs[4])}


def test_what_a_claim_did_not_come_to_stays_where_it_was():
    claims = Claims()
    first = claims.bring(9, 0)
    second = claims.bring(9, 9)

    assert set(claims.past()) == {place(first[1]), place(second[1])}


def test_a_short_claim_begins_at_the_head_again():
    claims = Claims()
    claims.bring(0, 0)
    claims.bring(0, limit=2)

    assert claims.past() == ()


def test_each_queue_has_its_own():
    claims = Claims()
    [mail] = claims.bring(0)
    [report] = claims.bring(0, queue="reports")
    claims.bring(limit=1, queue="thumbnails")

    assert (claims.past("mail"), claims.past("reports")) == ((place(mail),), (place(report),))
    claims.bring(limit=1, queue="mail")
    assert (claims.past("mail"), claims.past("reports")) == ((), (place(report),))


def test_a_claim_that_took_from_other_queues_too_begins_at_the_head_again():
    """Its first queue had no more."""
    claims = Claims()
    claims.bring(0)
    jobs = [claimed(101), claimed(102, queue="reports")]
    command = Claim("mail", 2, 0, also=("reports",))
    claims.watermarks.answered(ClaimAnswered(claims.now, command, jobs, claims.now))

    assert (claims.past("mail"), claims.past("reports")) == ((), ())


def test_a_drop_is_for_one_queue_or_for_all():
    claims = Claims()
    for queue in ("mail", "reports", "thumbnails"):
        claims.bring(0, queue=queue)

    claims.watermarks.drop("mail")
    assert [len(claims.past(queue)) for queue in ("mail", "reports", "thumbnails")] == [0, 1, 1]
    claims.watermarks.drop()
    assert [len(claims.past(queue)) for queue in ("mail", "reports", "thumbnails")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("took", "seconds"),
    [(0.001, FROM_THE_HEAD_EVERY), (0.1, 0.1 * SHARE), (60.0, FROM_THE_HEAD_CAP)],
    ids=["cheap", "dear", "very dear"],
)
def test_a_queue_is_claimed_from_its_head_again_after_a_while(took, seconds):
    """Counted from the first claim behind its head; how dear that was decides, and no later one."""
    claims = Claims()
    claims.bring(0, took=took)
    for tenth in range(1, 10):
        claims.now = START + seconds * tenth / 10
        claims.bring(0, took=0.0)
        assert claims.past() != ()
    claims.now = START + seconds + 1e-6

    assert claims.past() == ()
    [job] = claims.bring(0)
    claims.now += FROM_THE_HEAD_EVERY / 2
    assert claims.past() == (place(job),)


# The driver's use of it.


def quick_worker(concurrency=2, room=8, **options):
    """Return a worker whose jobs have been so quick that it has this room ahead; nothing is held."""
    bench = Bench(concurrency=concurrency, **options)
    bench.swept(Sweep)
    took = concurrency * WITHIN / room * 0.999
    bench.scanned(mail=0)
    [job] = bench.new_jobs(1)
    bench.claimed([job])
    bench.feed(Finished(bench.now, [report(job)._replace(took=took)]))
    bench.settled()
    assert bench.driver._ahead.room == room
    return bench


def ahead_of_the_slots(count=10, concurrency=2, room=8, jobs=None, **options):
    """Return such a worker with all its room taken, and what it holds."""
    bench = quick_worker(concurrency, room, **options)
    bench.until(Scan, within=1.0)
    command = only(bench.scanned(mail=0), Claim)
    assert (command.limit, command.slots) == (concurrency + room, concurrency)
    jobs = bench.new_jobs(count) if jobs is None else jobs(bench)
    starts = bench.claimed(jobs)
    assert {each.job for each in of_kind(starts, Start)} == set(jobs)
    return bench, jobs


def withdrawn(bench, *jobs):
    """Answer a Withdraw: these had not begun."""
    reports = [report(job, Released())._replace(started_after=None) for job in jobs]
    return bench.feed(Withdrawn(bench.now, reports))


def test_quick_jobs_are_claimed_ahead_of_the_slots():
    bench, jobs = ahead_of_the_slots()

    assert bench.driver.beating() == [job.key for job in jobs], "the heart covers what waits as well"


def test_one_batch_is_fetched_while_another_runs(monkeypatch):
    """Handlers that wait for nothing end a batch in a moment, and shall not stand idle until the next one."""
    monkeypatch.setattr(module, "BATCH", 5)
    bench = quick_worker(concurrency=2, room=8)
    bench.until(Scan, within=1.0)
    assert only(bench.scanned(mail=0), Claim).limit == 5

    commands = bench.claimed(bench.new_jobs(5))

    assert len(of_kind(commands, Start)) == 5
    assert only(commands, Claim).limit == 5
    assert not of_kind(bench.claimed(bench.new_jobs(5)), Claim), "there is no room for more"


def test_the_next_claim_begins_with_the_queues_that_this_one_did_not_come_to():
    """Else it would walk through those that gave all that they had; the index still has what they gave."""
    bench = quick_worker(concurrency=2, room=8)
    bench.until(Scan, within=1.0)
    command = only(bench.scanned(a=0, b=0, c=0, d=0), Claim)
    assert (command.queue, command.also) == ("a", ("b", "c", "d"))

    queues = [*"aaaaabbbb", "c"]
    jobs = [job._replace(queue=queue) for job, queue in zip(bench.new_jobs(10), queues, strict=True)]
    bench.claimed(jobs)
    commands = bench.finished(*jobs)

    following = only([*commands, *bench.settled()], Claim)
    assert (following.queue, following.also) == ("d", ("a", "b", "c"))


def test_reports_without_a_run_time_make_no_room():
    """What was cancelled, or could not be routed, before it began says nothing about handlers."""
    bench = Bench(concurrency=2)
    jobs = bench.running(2)
    bench.finished(*jobs)

    assert bench.driver._ahead.room == 0


def test_jobs_that_may_not_wait_start_first():
    def jobs(bench):
        patient = bench.new_jobs(8)
        hasty = [job._replace(may_wait=False) for job in bench.new_jobs(2)]
        return [*patient[:4], hasty[0], *patient[4:], hasty[1]]

    bench, jobs = ahead_of_the_slots(jobs=jobs)

    assert [job.may_wait for job in jobs].index(False) == 4
    starts = [held.job for held in bench.driver._held]
    assert [job.may_wait for job in starts] == [False] * 2 + [True] * 8
    assert [job for job in starts if job.may_wait] == [job for job in jobs if job.may_wait]


def test_while_all_slots_are_taken_only_patient_jobs_are_claimed():
    bench, jobs = ahead_of_the_slots()
    bench.feed(Finished(bench.now, [report(job)._replace(took=QUICK) for job in jobs[:6]]))

    [claim] = [command for command in bench.open if isinstance(command, Claim)]

    assert claim.slots == 0
    assert claim.limit >= 6


def test_after_jobs_that_were_passed_over_the_next_claim_is_for_free_slots():
    bench = quick_worker()
    bench.until(Scan, within=1.0)
    command = only(bench.scanned(mail=0), Claim)
    hasty = [job._replace(may_wait=False) for job in bench.new_jobs(2)]
    bench._close(Claim)

    commands = bench.feed(ClaimAnswered(bench.now, command, hasty, bench.now, passed=8))
    assert of_kind(commands, Claim) == [], "there is no free slot"
    bench.feed(Finished(bench.now, [report(job)._replace(took=QUICK) for job in hasty]))

    [claim] = [command for command in bench.open if isinstance(command, Claim)]
    assert (claim.queue, claim.limit, claim.slots) == ("mail", 2, 2)


def test_jobs_passed_over_do_not_end_the_queues_turn():
    """They are due, and there: a claim that left them alone has not come back short."""
    bench = quick_worker()
    bench.until(Scan, within=1.0)
    command = only(bench.scanned(mail=0), Claim)
    bench._close(Claim)

    commands = bench.feed(ClaimAnswered(bench.now, command, (), bench.now, passed=command.limit))

    assert [each.limit for each in of_kind(commands, Claim)] == [2]


def test_what_waits_too_long_is_handed_back_and_claimed_ahead_no_more():
    bench, jobs = ahead_of_the_slots()
    began = bench.now

    command = bench.until(Withdraw, within=PATIENCE + 1e-6)

    assert bench.now == pytest.approx(began + PATIENCE)
    assert command.keys == {job.key for job in jobs}
    settle = only(withdrawn(bench, *jobs[2:]), Settle)
    assert [each.job for each in settle.reports] == jobs[2:]
    assert bench.driver._ahead.room == 0


def test_what_waits_is_handed_back_although_a_trickle_of_jobs_comes_in():
    """Each claim that brings a job is no reason to let the others wait longer."""
    bench, jobs = ahead_of_the_slots(count=4)
    began, came = bench.now, 0
    commands = []
    while not of_kind(commands, Withdraw):
        assert bench.now < began + PATIENCE + 1e-6
        commands = bench.tick(PATIENCE / 5) + bench.woken("mail")
        if Scan in bench.kinds():
            commands += bench.scanned(mail=0)
        if Claim in bench.kinds():
            commands += bench.claimed(1)
            came += 1

    assert came > 2
    assert {job.key for job in jobs} <= only(commands, Withdraw).keys


def test_an_empty_claim_gives_no_more_patience():
    bench, _ = ahead_of_the_slots(count=4)
    began = bench.now
    bench.until(Scan, within=PATIENCE / 2)
    bench.scanned(mail=0)
    bench.claimed(0)
    assert bench.now > began

    bench.until(Withdraw, within=1.0)

    assert bench.now <= began + PATIENCE + 1e-6


def test_a_stop_hands_back_at_once_what_waits_and_starts_nothing_more():
    """G11."""
    bench, jobs = ahead_of_the_slots()

    assert only(bench.stop(), Withdraw).keys == {job.key for job in jobs}

    settle = only(withdrawn(bench, *jobs[2:]), Settle)
    assert {each.outcome for each in settle.reports} == {Released()}
    bench.settled()
    bench.finished(*jobs[:2])
    assert of_kind(bench.settled(), Exit) == [Exit(())]


def test_a_withdrawal_that_finds_everything_begun_is_no_matter():
    bench, jobs = ahead_of_the_slots(count=3)
    bench.stop()
    withdrawn(bench)
    bench.finished(*jobs)

    assert of_kind(bench.settled(), Exit) == [Exit(())]


def test_a_pause_hands_back_what_waits_of_its_queue():
    def jobs(bench):
        mail, other = bench.new_jobs(5), bench.new_jobs(5)
        return [*mail, *(job._replace(queue="reports") for job in other)]

    bench, jobs = ahead_of_the_slots(jobs=jobs)

    command = only(bench.paused("reports"), Withdraw)

    assert command.keys == {job.key for job in jobs[5:]}
    assert of_kind(withdrawn(bench, *jobs[5:]), Withdraw) == []
    assert bench.driver._ahead.room == 8, "nothing was wrong about the guess"


def test_a_pause_hands_back_what_waits_of_its_name():
    def jobs(bench):
        return [job._replace(name="ab"[n % 2]) for n, job in enumerate(bench.new_jobs(10))]

    bench, jobs = ahead_of_the_slots(jobs=jobs)

    command = only(bench.paused(names=["b"]), Withdraw)

    assert command.keys == {job.key for job in jobs[1::2]}


def test_what_a_claim_brings_of_a_queue_paused_meanwhile_goes_back():
    """But for what has a slot: that runs, as all does that has begun before a pause is known."""
    bench = quick_worker()
    bench.until(Scan, within=1.0)
    assert only(bench.scanned(mail=0), Claim).limit == 10
    assert of_kind(bench.paused("mail"), Withdraw) == []
    jobs = bench.new_jobs(10)

    commands = bench.claimed(jobs)

    assert [each.job for each in of_kind(commands, Start)] == jobs
    assert only(commands, Withdraw).keys == {job.key for job in jobs}
    assert isinstance(commands[-1], Withdraw), "they have to be there to be taken back"


def test_a_pause_of_something_else_hands_nothing_back():
    bench, _ = ahead_of_the_slots()

    assert of_kind(bench.paused("reports", names=["x"]), Withdraw) == []


def test_nothing_is_handed_back_while_there_is_a_slot_for_everything():
    bench, jobs = ahead_of_the_slots(count=2)

    assert of_kind(bench.paused("mail"), Withdraw) == []
    assert of_kind(bench.tick(PATIENCE * 2), Withdraw) == []
    assert of_kind(bench.stop(), Withdraw) == []
    assert set(bench.driver.beating()) == {job.key for job in jobs}


def test_nothing_is_claimed_while_something_is_taken_back():
    """It would be claimed again at once."""

    def jobs(bench):
        mail, other = bench.new_jobs(5), bench.new_jobs(5)
        return [*mail, *(job._replace(queue="reports") for job in other)]

    bench, jobs = ahead_of_the_slots(jobs=jobs)
    commands = bench.paused("reports")
    assert len(of_kind(commands, Withdraw)) == 1

    commands += bench.feed(Finished(bench.now, [report(job)._replace(took=QUICK) for job in jobs[:5]]))
    commands += bench.woken("mail") + bench.tick(LINGER)
    assert of_kind(commands, Claim) + of_kind(commands, Scan) == []

    assert {Claim, Scan} & {type(command) for command in withdrawn(bench, *jobs[5:])}


def test_there_is_one_withdrawal_at_a_time():
    bench, jobs = ahead_of_the_slots()
    assert bench.until(Withdraw, within=1.0).keys == {job.key for job in jobs}

    assert of_kind(bench.paused("mail") + bench.tick(PATIENCE) + bench.stop(), Withdraw) == []


def test_a_withdrawal_begins_at_every_queues_head_again():
    bench, jobs = ahead_of_the_slots()
    assert bench.driver._watermarks.past("mail", bench.now) != ()
    bench.until(Withdraw, within=1.0)

    withdrawn(bench, *jobs[2:])

    assert bench.driver._watermarks.past("mail", bench.now) == ()


def test_jobs_handed_back_unbegun_do_not_count_for_max_jobs():
    bench, jobs = ahead_of_the_slots(max_jobs=11)
    assert bench.driver.limit_reached(), "ten here, and one before"
    bench.until(Withdraw, within=1.0)

    withdrawn(bench, *jobs[2:])
    assert not bench.driver.limit_reached()
    bench.settled()
    commands = bench.finished(*jobs[:2])

    assert of_kind(commands + bench.settled(), Exit) == [], "there are eight to go"
    assert only(commands, Claim).limit == 2


def test_a_cancel_and_the_loss_of_a_lease_reach_what_waits():
    bench, jobs = ahead_of_the_slots()

    commands = bench.renewed({jobs[8]: Renewal.CANCEL_REQUESTED, jobs[9]: Renewal.LOST})

    assert Tell(jobs[8].key, StopReason.CANCEL) in commands
    assert Tell(jobs[9].key, StopReason.LEASE_LOST) in commands
    assert jobs[9].key not in bench.driver.beating()


def test_what_waits_is_known_to_a_release_of_what_is_not():
    """Or else a claim whose reply was lost would take the waiting ones along."""
    bench, jobs = ahead_of_the_slots(count=4)
    bench.woken("mail")
    bench.failed(Claim)

    assert bench.until(ReleaseUnknown, within=PATIENCE).known == {job.key for job in jobs}


# What is held.


def held(holding, number=1, **changes):
    job = claimed(number, **changes)
    one = Held(job.key, job, START + 60, START)
    holding.take(one)
    return one


def test_an_attempt_is_in_one_place_after_the_other():
    holding = Holding()
    one = held(holding)
    key, told = one.job.key, report(one.job, Succeeded("1"))
    assert (holding.busy, holding.idle, key in holding, holding.keys()) == (1, False, True, [key])

    holding.ended(one, told, START + 1)
    assert (holding.busy, holding.idle, list(holding.buffered), one.write_at) == (0, False, [key], START + 1)

    assert holding.sending([one]) == (told,)
    assert (holding.busy, holding.idle, list(holding.settling)) == (0, False, [key])

    holding.unwritten(key, START + 2, in_doubt=False)
    assert (one.report, one.write_at) == (told, START + 2)
    holding.sending([one])
    holding.unwritten(key, START + 3, in_doubt=True)
    assert one.report == told._replace(sent_before=True)
    assert [each.job.key for each in holding] == holding.keys() == [key]


def test_what_trails_has_a_slot_and_is_held_no_more():
    holding = Holding()
    one = held(holding)
    key = one.job.key

    holding.trail(key)

    assert (holding.busy, holding.idle, holding.keys(), key in holding) == (1, False, [], True)
    assert holding.get(key) is None
    assert holding.code_running() == [one.job]


def test_nothing_but_what_was_given_up_on_leaves_a_worker_idle():
    holding = Holding()
    assert holding.idle
    one = held(holding)
    holding.began(one.job.key, 5.0, START)

    [told] = holding.time_outs(START + 5, stopping=False, random=float)
    assert told == Tell(one.job.key, StopReason.TIMEOUT)
    assert holding.time_outs(START + 6, stopping=False, random=float) == []
    overdue, lost = holding.time_outs(holding.next_alarm(stopping=True), stopping=True, random=float)

    assert (overdue.report.job, lost) == (one.job, Tell(one.job.key, StopReason.LEASE_LOST))
    assert not holding.idle
    holding.sending([one])
    del holding.settling[one.job.key]
    assert (holding.idle, holding.busy) == (True, 1)


def test_a_lease_that_is_over_is_told_once_and_first_of_those_that_end_first():
    holding = Holding()
    first, second = held(holding, 1), held(holding, 2)
    holding.renewed(first, START + 1)
    assert holding.next_lapse() == START + 1
    assert holding.lapsed(START) == []

    assert holding.lapsed(START + 1) == [Tell(first.job.key, StopReason.LEASE_LOST)]
    assert holding.lapsed(START + 2) == []
    assert holding.next_lapse() == START + 60
    second.lost = True
    assert holding.lapsed(START + 60) == []
    assert holding.next_lapse() == float("inf")


def test_leases_that_are_renewed_are_looked_at_again_when_the_earlier_end_has_come():
    holding = Holding()
    one = held(holding)
    holding.renewed(one, START + 80)
    assert holding.next_lapse() == START + 60  # nobody has looked since

    assert holding.lapsed(START + 60) == []
    assert holding.next_lapse() == START + 80
    assert holding.lapsed(START + 80) == [Tell(one.job.key, StopReason.LEASE_LOST)]


def test_an_attempt_that_has_ended_alarms_nobody():
    holding = Holding()
    one = held(holding)
    holding.began(one.job.key, 5.0, START)
    assert holding.next_alarm(stopping=False) == START + 5

    assert holding.drop(one.job.key) is one
    assert holding.next_alarm(stopping=False) == float("inf")
    assert holding.time_outs(START + 5, stopping=False, random=float) == []
