"""Tags, progress, headers, hooks and signals in real worker processes; and the beat that writes progress."""

from __future__ import annotations

import json
import signal
import threading
from itertools import pairwise

import pytest

from django_backwave.core.protocol import AttemptKey, Renewal
from django_backwave.core.states import JobState
from django_backwave.models import Tag
from django_backwave.notes import Progress
from django_backwave.worker import heart as module
from django_backwave.worker.heart import PROGRESS_EVERY, Heart
from tests.core.bench import claimed
from tests.factories import ready
from tests.processes import journal, wait_until
from tests.worker import support
from tests.worker.support import outcomes, read, wait_for_state

process_test = [pytest.mark.process, pytest.mark.django_db(transaction=True)]
HANDLERS = "tests.worker.annotated"


def worker(*arguments, **environment):
    return support.worker(*arguments, BACKWAVE_TEST_MODULES=HANDLERS, **environment)


def run_worker(*arguments, **environment):
    return support.run_worker(*arguments, BACKWAVE_TEST_MODULES=HANDLERS, **environment)


def enqueue(handler, *args, **options):
    payload = json.dumps(
        {"args": [str(arg) if hasattr(arg, "parent") else arg for arg in args], "kwargs": {}}
    )
    return ready(now=None, name=f"{HANDLERS}.{handler}", payload=payload, **options)


def tags(job):
    return sorted(Tag.objects.filter(job_id=job.pk).values_list("key", "value"))


class TestProcess:
    pytestmark = process_test

    def test_progress_is_seen_while_the_handler_runs_and_tags_after_it(self, tmp_path):
        with worker("--poll", "0.05"):
            job = enqueue("tell_progress", tmp_path, 10_000)
            wait_until(
                lambda: (read(job).progress or {}).get("done") == 10_000, what=lambda: read(job).progress
            )
            assert (read(job).job_state, tags(job)) == (JobState.RUNNING, [])
            (tmp_path / "go").touch()
            done = wait_for_state(job, JobState.SUCCEEDED)

        assert done.progress["message"] == "all done"
        assert tags(job) == [("", "vip"), ("attempt", "1")]

    def test_what_a_frozen_worker_says_is_dropped(self, tmp_path):
        """G4: its lease has lapsed, another attempt has tagged the job, and the old one wakes up."""
        notes = tmp_path / "notes"

        def told() -> list[str]:
            return [line.split()[0] for line in journal(notes) if str(job.pk) in line]

        with worker("--lease", "1", "--poll", "0.05", BACKWAVE_TEST_NOTES=str(notes)) as first:
            job = enqueue("hold", tmp_path)
            wait_until(lambda: journal(tmp_path / "journal") == ["started 1"])
            support.wait_for_renewal(job)  # between two heartbeats it holds no lock
            first.send(signal.SIGSTOP)
            (tmp_path / "go").touch()
            with worker("--lease", "10", "--poll", "0.05", BACKWAVE_TEST_NOTES=str(notes)):
                wait_for_state(job, JobState.SUCCEEDED)
                before = read(job).progress
                first.send(signal.SIGCONT)
                wait_until(lambda: len(told()) == 5)

        assert tags(job) == [("attempt", "2")]
        assert read(job).progress == before
        assert outcomes(job) == [(1, "abandoned"), (2, "succeeded")]
        assert sorted(told()) == ["abandoned", "finished", "stale", "started", "started"]

    def test_an_output_that_is_too_long_is_a_failure_and_the_worker_goes_on(self):
        """Never clipped, and never a dead worker."""
        job = enqueue("return_too_much", max_attempts=1)
        other = enqueue("return_headers", headers='{"tenant":"acme"}')

        assert run_worker("--drain").code == 0
        assert read(job).job_state is JobState.DEAD_LETTERED
        assert read(job).output is None
        [attempt] = read(job).attempts.all()
        assert "more than 65,536" in attempt.message
        assert read(other).output == {"tenant": "acme"}

    def test_hooks_surround_each_handler_in_its_thread(self, tmp_path):
        notes = tmp_path / "notes"
        job = enqueue("return_headers")
        failing = enqueue("fail", "no stock", max_attempts=1)

        process = run_worker(
            "--drain", BACKWAVE_TEST_AROUND=f"{HANDLERS}.noting", BACKWAVE_TEST_NOTES=str(notes)
        )

        assert process.code == 0
        around = [line for line in journal(notes) if line.startswith("around")]
        assert {line.split()[1] for line in around} == {str(job.pk), str(failing.pk)}
        assert all("backwave-handler" in line for line in around)
        assert read(failing).cause == "ValueError: no stock"

    def test_a_hook_that_cannot_be_imported_stops_the_worker(self):
        process = run_worker("--drain", BACKWAVE_TEST_AROUND="tests.worker.annotated.gone")

        assert process.code != 0
        assert "tests.worker.annotated.gone" in str(process)

    def test_signals_of_a_worker(self, tmp_path):
        notes = tmp_path / "notes"
        jobs = {
            "ok": enqueue("return_headers"),
            "dead": enqueue("fail", "no stock", max_attempts=1),
            "again": enqueue("fail", "no stock", max_attempts=2),
        }

        process = run_worker("--drain", BACKWAVE_TEST_NOTES=str(notes))

        assert process.code == 0
        told = {name: [line for line in journal(notes) if str(job.pk) in line] for name, job in jobs.items()}
        words = {name: [line.split()[::2] for line in lines] for name, lines in told.items()}
        assert words == {
            "ok": [["started", "RUNNING"], ["finished", "SUCCESSFUL"]],
            "dead": [["started", "RUNNING"], ["finished", "FAILED"]],
            "again": [["started", "RUNNING"], ["retrying", "fail"]],
        }
        assert {line.split()[3] for lines in told.values() for line in lines} == {"BackWaveBackend"}


# The beat, on a clock that is moved by hand.


class Time:
    """A clock, and an event whose waits move it; what is to happen in a wait is said before."""

    def __init__(self):
        self.now = 0.0
        self.later = []

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        end = self.now + seconds
        while self.later and self.later[0][0] <= end:
            at, happens = self.later.pop(0)
            self.now = max(self.now, at)
            if happens():
                return True
        self.now = end
        return False

    def set(self):
        pass

    def clear(self):
        pass


class FakeWorker:
    """A worker with one job, whose handler tells progress."""

    using, name = "default", "host:1:a"

    def __init__(self, interval):
        self.interval = interval
        self.exited = threading.Event()
        self.news = None
        self.written = []
        self.fed = []
        self.options = type("Options", (), {"lease": 60.0})

    def beat_every(self):
        return self.interval

    def beating(self):
        return {}

    def told(self):
        return {KEY: (self.news, "text")} if self.news else {}

    def wrote(self, told, renewals):
        if told and renewals:
            self.written.append(told[KEY][0].done)
            self.news = None if self.news is told[KEY][0] else self.news
        return self.news is not None

    def feed(self, event):
        self.fed.append(event)


KEY: AttemptKey = claimed().key


@pytest.fixture
def beat(monkeypatch):
    """Return a function that lets a heart beat for some seconds; it gives the instants of its beats."""
    time = Time()
    monkeypatch.setattr(module.clock, "monotonic", time.monotonic)
    monkeypatch.setattr(module, "own_connection", lambda *_, **__: None)
    monkeypatch.setattr(module, "drop_connection", lambda *_: None)
    monkeypatch.setattr(module, "withdraw", lambda *_, **__: None)
    monkeypatch.setattr(Heart, "_announce", lambda _: None)

    def run(seconds, *, interval=5.0, tells=(), fails=()):
        worker = FakeWorker(interval)
        heart = Heart(worker)
        heart._wake = time
        beats = []

        def renew(*_, progress, **__):
            beats.append(round(time.now, 3))
            if len(beats) in fails:
                raise OSError("no database")
            return dict.fromkeys(progress, Renewal.RENEWED)

        def tell(done):
            def happens():
                worker.news = Progress(done, None, "")
                heart.progress_told()
                return True

            return happens

        monkeypatch.setattr(module, "renew", renew)
        time.later = [(at, tell(done)) for done, at in enumerate(tells, start=1)]
        time.later.append((seconds, lambda: worker.exited.set() or True))
        heart.run()
        return beats, worker.written

    return run


def test_a_heart_beats_at_its_interval_while_nobody_tells_progress(beat):
    assert beat(16) == ([0, 5, 10, 15], [])


def test_progress_makes_it_beat_sooner_but_at_most_once_a_second(beat):
    """However often it is told, and the newest wins."""
    tells = [1.2, 1.3, *(2 + n / 100 for n in range(300))]

    beats, written = beat(9, tells=tells)
    assert PROGRESS_EVERY == 1.0
    assert all(late - early >= 0.999 for early, late in pairwise(beats))
    assert beats[:3] == [0, 1.2, 2.2]
    assert written[:2] == [1, 23]
    assert written[-1] == 302
    assert len(written) <= 5


def test_a_short_lease_beats_as_it_must(beat):
    assert beat(1, interval=0.33, tells=[0.5])[0] == [0, 0.33, 0.66, 0.99]


def test_progress_that_could_not_be_written_is_written_by_the_next_beat(beat):
    beats, written = beat(9, tells=[1.5], fails=[2])

    assert beats[:3] == [0, 1.5, 2.5]
    assert written == [1]
