"""A stop that hurries nobody: the worker takes nothing more, and ends after what it holds."""

from __future__ import annotations

from django_backwave.core.protocol import Claim, Exit, Scan, StopReason, StopRequested, Tell
from tests.core.bench import Bench, of_kind


def test_it_waits_for_however_long_its_handlers_take():
    """G11: a job that takes an hour is not begun anew because its process has grown."""
    bench = Bench(concurrency=2, shutdown_timeout=5.0)
    [job] = bench.running(1)

    commands = bench.feed(StopRequested(bench.now, patient=True))
    bench.now += 3600
    commands += bench.tick()
    assert [each for kind in (Claim, Scan, Exit) for each in of_kind(commands, kind)] == []
    assert Tell(job.key, StopReason.SHUTDOWN) not in commands

    bench.finished(job)
    assert of_kind(bench.settled(), Exit) == [Exit(())]


def test_a_stop_after_it_has_its_time_to_stop():
    """SIGTERM to a worker that ends anyway ends it as quickly as any other."""
    bench = Bench(concurrency=2, shutdown_timeout=5.0)
    [job] = bench.running(1)
    bench.feed(StopRequested(bench.now, patient=True))

    bench.stop()
    bench.now += 5.0
    assert Tell(job.key, StopReason.SHUTDOWN) in bench.tick()
