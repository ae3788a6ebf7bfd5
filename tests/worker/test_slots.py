"""The slots: a bound on what runs, the order in which the others follow, and taking those back exactly."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_backwave.context import StopSwitch
from django_backwave.core.outcome import Released
from django_backwave.worker.slots import Slots
from tests.core.bench import claimed, report
from tests.processes import wait_until

PATIENCE = 20.0


class Attempt:
    """What the slots need of an execution. It runs until it is let go."""

    interrupt = None

    def __init__(self, stage, number, *, is_async=False):
        self._stage = stage
        self.job = claimed(number)
        self.switch = StopSwitch(lease_ends=float("inf"), clock=time.monotonic)
        self.is_async = is_async
        self.go = threading.Event()
        self.thread = None

    def run(self):
        self._stage.enter(self)
        assert self.go.wait(PATIENCE)
        self._stage.leave(self)
        return report(self.job)

    async def arun(self):
        self._stage.enter(self)
        while not self.go.is_set():
            await asyncio.sleep(0.001)
        self._stage.leave(self)
        return report(self.job)

    def never_ran(self):
        return report(self.job, Released())


class Stage:
    """Slots, and what has happened in them."""

    def __init__(self, count):
        self._lock = threading.Lock()
        self._on = 0
        self.most = 0
        self.begun = []
        self.ended = []
        self.slots = Slots(count, finished=self.ended.append)
        self.slots.start()

    def enter(self, attempt):
        with self._lock:
            attempt.thread = threading.current_thread()
            self.begun.append(attempt)
            self._on += 1
            self.most = max(self.most, self._on)

    def leave(self, attempt):
        with self._lock:
            self._on -= 1

    def submit(self, *kinds):
        """Submit an attempt for each letter: a(sync) or s(ync)."""
        first = len(self.begun) + 1000
        attempts = [
            Attempt(self, number, is_async=kind == "a") for number, kind in enumerate("".join(kinds), first)
        ]
        for attempt in attempts:
            self.slots.submit(attempt)
        return attempts

    def wait_for(self, *begun):
        wait_until(lambda: len(self.begun) >= len(begun), what=lambda: self.begun)
        assert self.begun == list(begun)

    def wait_for_ends(self, count):
        wait_until(lambda: len(self.ended) == count, what=lambda: self.ended)


def keys(attempts):
    return {attempt.job.key for attempt in attempts}


@pytest.mark.parametrize("kinds", ["sssss", "aaaaa", "sasas", "asasa"])
def test_others_wait_and_follow_in_the_order_in_which_they_came(kinds):
    """Whatever they are, threads and loop share the one bound."""
    stage = Stage(2)
    first, second, third, fourth, fifth = stage.submit(kinds)
    wait_until(lambda: len(stage.begun) == 2)
    assert set(stage.begun) == {first, second}

    second.go.set()
    wait_until(lambda: len(stage.begun) == 3)
    assert stage.begun[2] is third
    first.go.set()
    wait_until(lambda: len(stage.begun) == 4)
    third.go.set()
    wait_until(lambda: len(stage.begun) == 5)
    assert stage.begun[3:] == [fourth, fifth]

    for attempt in (fourth, fifth):
        attempt.go.set()
    stage.wait_for_ends(5)
    assert stage.most == 2


def test_a_slot_is_taken_over_by_the_thread_that_has_ended():
    """Nobody has to be woken for it."""
    stage = Stage(1)
    attempts = stage.submit("ssss")
    for attempt in attempts:
        attempt.go.set()

    stage.wait_for_ends(4)

    assert len({attempt.thread for attempt in attempts}) == 1
    assert stage.begun == attempts


def test_an_async_attempt_follows_a_sync_one_on_the_loop_and_the_other_way_round():
    stage = Stage(1)
    attempts = stage.submit("sasa")
    for attempt in attempts:
        attempt.go.set()

    stage.wait_for_ends(4)

    names = [attempt.thread.name.partition("-handler")[0] for attempt in attempts]
    assert names == ["backwave", "backwave-loop"] * 2
    assert (stage.begun, stage.most) == (attempts, 1)


def test_each_end_is_told_before_the_slot_is_given_on():
    """Else the driver would take a slot for free that is not."""
    stage = Stage(1)
    told_when = []
    first, second = stage.submit("ss")
    enter = stage.enter
    stage.enter = lambda attempt: (told_when.append(list(stage.ended)), enter(attempt))
    first.go.set()
    wait_until(lambda: told_when)
    second.go.set()
    stage.wait_for_ends(2)

    assert [each.job for each in told_when[-1]] == [first.job]


def test_what_waits_is_taken_back_and_never_runs():
    stage = Stage(1)
    first, second, third, fourth = stage.submit("sass")
    stage.wait_for(first)

    back = stage.slots.withdraw(keys([first, second, fourth]))

    assert back == [second, fourth], "in their order, and not what runs"
    assert stage.slots.withdraw(keys([first, second, fourth])) == []
    for attempt in (first, third):
        attempt.go.set()
    stage.wait_for_ends(2)
    assert stage.begun == [first, third]


def test_a_free_slot_is_used_again_after_a_withdrawal():
    stage = Stage(1)
    first, second = stage.submit("ss")
    stage.wait_for(first)
    stage.slots.withdraw(keys([second]))
    first.go.set()
    stage.wait_for_ends(1)

    [third] = stage.submit("s")
    third.go.set()

    stage.wait_for_ends(2)
    assert stage.begun == [first, third]


@pytest.mark.parametrize("kinds", ["s", "a", "sa"])
def test_under_races_each_attempt_either_runs_once_or_is_taken_back(kinds):
    """Ends, submissions and withdrawals at the same instants: none is lost, none is in both."""
    stage = Stage(3)
    attempts = [
        Attempt(stage, number, is_async=kinds[number % len(kinds)] == "a") for number in range(1, 301)
    ]
    for attempt in attempts:
        attempt.go.set()
    back = []
    barrier = threading.Barrier(3)

    def submit(some):
        barrier.wait(PATIENCE)
        for attempt in some:
            stage.slots.submit(attempt)

    def withdraw():
        barrier.wait(PATIENCE)
        for number in range(60):
            some = attempts[number::7]
            back.extend(stage.slots.withdraw(keys(some)))

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(submit, attempts[::2]), pool.submit(submit, attempts[1::2])]
        calls.append(pool.submit(withdraw))
        for call in calls:
            call.result(PATIENCE)
    stage.wait_for_ends(len(attempts) - len(back))

    ran = [attempt.job.key for attempt in stage.begun]
    assert len(set(ran)) == len(ran)
    assert keys(back).isdisjoint(ran)
    assert keys(back) | set(ran) == keys(attempts)
    assert stage.most <= 3
