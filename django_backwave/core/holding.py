"""What a worker holds: the attempts in its hands, by what is to be done about them, and their clocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from django_backwave.core.outcome import timed_out
from django_backwave.core.protocol import Overdue, Report, StopReason, Tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_backwave.core.protocol import AttemptKey, Claimed, Command

#: Seconds that a handler told of its time-out has to stop: then it is reported as timed out all the same.
TIMEOUT_GRACE = 5.0

NEVER = float("inf")


@dataclass(slots=True)
class Held:
    """An attempt in this worker's hands. All times are monotonic seconds."""

    key: AttemptKey
    job: Claimed
    lease_ends: float
    claimed_at: float
    report: Report | None = None
    write_at: float = 0.0
    lost: bool = False
    told_of_end: bool = False
    timeout: float = 0.0
    began_at: float = 0.0
    alarm_at: float = NEVER  # when its time-out is over, and after that the time to stop
    told_of_time_out: bool = False


class Holding:
    """The attempts that a worker holds; each is in one of three places.

    ``running``: its handler's code may run, or it waits for a slot. ``buffered``: its report waits to be
    written. ``settling``: its report is being written. Beside these, ``trailing`` are attempts whose outcome
    is decided while their code still runs, and ``overdue`` those among them that did not stop at their
    time-out.
    """

    def __init__(self) -> None:
        """Begin with nothing held."""
        self.running: dict[AttemptKey, Held] = {}
        self.buffered: dict[AttemptKey, Held] = {}
        self.settling: dict[AttemptKey, Held] = {}
        self.trailing: dict[AttemptKey, Claimed] = {}
        self.overdue: set[AttemptKey] = set()
        self._timed: dict[AttemptKey, Held] = {}  # those of ``running`` that have an alarm
        self._none_lapses_before = NEVER

    def __iter__(self) -> Iterator[Held]:
        """Iterate over all that is held, what trails left out."""
        return chain(self.running.values(), self.buffered.values(), self.settling.values())

    def __contains__(self, key: AttemptKey) -> bool:
        """Whether an attempt is in the worker's hands, or its code is still running."""
        return self.get(key) is not None or key in self.trailing

    def get(self, key: AttemptKey) -> Held | None:
        """Return what is held under a key."""
        return self.running.get(key) or self.buffered.get(key) or self.settling.get(key)

    def keys(self) -> list[AttemptKey]:
        """Return the keys of all that is held."""
        return [*self.running, *self.buffered, *self.settling]

    @property
    def busy(self) -> int:
        """How many attempts have a slot or wait for one."""
        return len(self.running) + len(self.trailing)

    @property
    def idle(self) -> bool:
        """Whether nothing is held and no code runs but that of handlers given up on."""
        return not (self.running or self.buffered or self.settling or len(self.trailing) > len(self.overdue))

    def code_running(self) -> list[Claimed]:
        """Return the jobs whose code may still run."""
        return [*(held.job for held in self.running.values()), *self.trailing.values()]

    # From one place to the next.

    def take(self, held: Held) -> None:
        """Begin to hold an attempt."""
        self.running[held.key] = held
        self._none_lapses_before = min(self._none_lapses_before, held.lease_ends)

    def drop(self, key: AttemptKey) -> Held:
        """Let an attempt go that ran, and return what was held of it."""
        self._timed.pop(key, None)
        return self.running.pop(key)

    def ended(self, held: Held, report: Report, write_at: float) -> None:
        """Put the report of an attempt that ran into the buffer."""
        held.report, held.write_at = report, write_at
        self.buffered[held.key] = self.drop(held.key)

    def trail(self, key: AttemptKey) -> None:
        """Let an attempt go whose success is recorded while its code runs on."""
        self.trailing[key] = self.drop(key).job

    def sending(self, batch: Sequence[Held]) -> tuple[Report, ...]:
        """Take the reports of a batch that is being written from now on."""
        for held in batch:
            self.settling[held.key] = self.buffered.pop(held.key)
        return tuple(held.report for held in batch if held.report is not None)

    def unwritten(self, key: AttemptKey, write_at: float, *, in_doubt: bool) -> None:
        """Put a report back that has not been written; ``in_doubt`` if it may have been."""
        held = self.settling.pop(key)
        held.write_at = write_at
        if in_doubt and held.report is not None:
            held.report = held.report._replace(sent_before=True)
        self.buffered[key] = held

    # Leases.

    def renewed(self, held: Held, lease_ends: float) -> None:
        """Move the end of a lease."""
        held.lease_ends = lease_ends
        self._none_lapses_before = min(self._none_lapses_before, lease_ends)

    def lapsed(self, now: float) -> list[Command]:
        """Tell handlers whose lease is over by our own clock: nobody else may be able to (G10)."""
        if now < self._none_lapses_before:
            return []  # as at almost every step, of which a busy worker makes thousands a second
        over = [held for held in self.running.values() if held.lease_ends <= now and self._untold(held)]
        for held in over:
            held.told_of_end = True
        untold = (held.lease_ends for held in self.running.values() if self._untold(held))
        self._none_lapses_before = min(untold, default=NEVER)
        return [Tell(held.key, StopReason.LEASE_LOST) for held in over]

    def next_lapse(self) -> float:
        """Return when to ask again: no lease ends before of a handler that has not been told so."""
        return self._none_lapses_before if self.running else NEVER

    @staticmethod
    def _untold(held: Held) -> bool:
        return not (held.lost or held.told_of_end)

    # Time-outs.

    def began(self, key: AttemptKey, timeout: float, now: float) -> None:
        """Set the alarm of a handler that has a time-out, in seconds."""
        held = self._timed[key] = self.running[key]
        held.timeout, held.began_at, held.alarm_at = timeout, now, now + timeout

    def time_outs(self, now: float, *, stopping: bool, random: Callable[[], float]) -> list[Command]:
        """Tell handlers that their time-out is over; report those that do not stop in spite of it.

        ``stopping``: all were told to stop, and who stops for that has not failed (G11).
        """
        commands: list[Command] = []
        due = [held for held in self._alarmed(stopping=stopping) if held.alarm_at <= now]
        for held in due:
            if held.told_of_time_out:
                commands += self._give_up_on(held, now, random)
            else:
                held.told_of_time_out = True
                held.alarm_at = now + TIMEOUT_GRACE
                commands.append(Tell(held.key, StopReason.TIMEOUT))
        return commands

    def next_alarm(self, *, stopping: bool) -> float:
        """Return when there is something to do about a time-out."""
        return min((held.alarm_at for held in self._alarmed(stopping=stopping)), default=NEVER)

    def _alarmed(self, *, stopping: bool) -> Iterator[Held]:
        for held in self._timed.values():
            if held.told_of_time_out or not stopping:
                yield held

    def _give_up_on(self, held: Held, now: float, random: Callable[[], float]) -> list[Command]:
        key = held.key
        report = Report(
            job=held.job,
            outcome=timed_out(held.timeout, still_running=True),
            jitter=random(),
            started_after=held.began_at - held.claimed_at,
        )
        self.ended(held, report, now)
        self.trailing[key] = held.job
        self.overdue.add(key)
        # Whatever the handler does from now on, no lease covers it.
        return [Overdue(report), Tell(key, StopReason.LEASE_LOST)]
