"""Enqueue with a key: one job for each piece of logical work, however many ask for it at once.

Lock order: key rows first, in the order of their ids, then job rows. Whoever locks job rows first, as the
pruner does, must not wait for a key. What an enqueue has locked stays locked until the caller's transaction
ends: nobody else comes in between, and a generation that was returned or replaced before its start does not
start before the caller's change can be seen. A RUNNING job is never locked here: its worker renews it.
"""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import dataclass
from itertools import batched, starmap
from time import sleep
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Exists, OuterRef, Q

from django_backwave.core.identity import Current, Standing, Verdict, Window, decide
from django_backwave.core.states import PENDING, TERMINAL, UNFINISHED, AttemptOutcome, JobState
from django_backwave.instants import to_utc
from django_backwave.models import Attempt, Job, Key, Tag
from django_backwave.store import clock
from django_backwave.store.enqueue import refuse_foreign_transaction, wake, work_of, write
from django_backwave.store.failpoint import passing
from django_backwave.store.locking import unlocked, waiting, writing
from django_backwave.store.tags import insert_tags

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from django_backwave.core.identity import Intent
    from django_backwave.store.enqueue import NewJob

#: Keys per statement.
BATCH = 400

#: Seconds between two looks at a job that somebody else has locked, where no wait for it is possible.
PAUSES = tuple(0.002 * 2**n for n in range(10))

#: How many keys one slice of a prune forgets at most.
SLICE = 500


class Landed(NamedTuple):
    """What an enqueue with a key came to, and the generation that it led to: None for a job without a key.

    ``settled_as``: how that one ended, None if it has not, or if its row was deleted by hand.
    """

    verdict: Verdict
    job_id: UUID
    generation: int | None
    name: str
    enqueued_at: datetime
    settled_as: JobState | None = None


class Refused(Exception):
    """An enqueue that its key does not admit: nothing of its batch was written.

    ``number``: which of them; ``earlier``: the one of the same batch that is in its way, if that is so.
    """

    def __init__(self, landed: Landed, number: int, earlier: int | None = None) -> None:
        """Keep what it came to."""
        super().__init__(landed, number, earlier)
        self.landed, self.number, self.earlier = landed, number, earlier


class _Generation(NamedTuple):
    """A generation. ``new``: its place among the jobs that this batch adds, if it is of them."""

    job_id: UUID
    number: int
    name: str
    enqueued_at: datetime
    standing: Standing
    state: JobState = JobState.READY
    new: int | None = None

    @classmethod
    def of(cls, job: Job, *, started: bool) -> _Generation:
        """Return a generation as its row stands. ``started``: whether an attempt of it ever has."""
        state, standing = JobState(job.state), Standing.STARTED
        if state in TERMINAL:
            standing = Standing.SETTLED
        elif state in PENDING and not started:
            standing = Standing.PENDING
        return cls(job.pk, job.generation or 0, job.name, to_utc(job.enqueued_at), standing, state)


def enqueue(jobs: Sequence[NewJob], *, using: str, now: datetime | None = None) -> list[Landed]:
    """Enqueue jobs with keys, all or none, and return what each came to, in order.

    Joins the caller's transaction, and leaves it usable whatever happens. Raises Refused for the first one
    that its key does not admit, and ForeignTransaction before any SQL.
    """
    refuse_foreign_transaction(using)
    with writing(using):
        at = clock.read(using, now)
        rows = _locked_rows(jobs, at, using)
        passing("key: row locked")
        while True:
            plan = _Plan([copy(row) for row in rows], {job.id for job in jobs}, at, using)
            landed = [plan.add(number, job) for number, job in enumerate(jobs)]
            if _hold(plan.held, using):
                break  # else one of them was claimed after it was read
        plan.write()
        if now is None:
            wake([*plan.news, *plan.replaced.values()], using=using)
    return landed


# The rows of the keys.


def _locked_rows(jobs: Sequence[NewJob], at: datetime, using: str) -> list[Key]:
    """Lock the row of each key, made now where there is none; return them as they stand.

    A row made now carries the first job that asked for it.
    """
    made: dict[UUID, Key] = {}
    for job in jobs:
        row = _first(job, at)
        made.setdefault(row.pk, row)
    _lock(made.values(), using)
    return [row for batch in batched(made, BATCH) for row in Key.objects.using(using).filter(pk__in=batch)]


def _first(job: NewJob, at: datetime) -> Key:
    intent = _intent(job)
    return Key(
        id=Key.id_of(job.queue, intent.key),
        queue=job.queue,
        key=intent.key,
        name=job.name,
        generation=1,
        job_id=job.id,
        enqueued_at=at,
        forget_at=_end(intent.window, at),
        used_at=at,
    )


def _lock(rows: Iterable[Key], using: str) -> None:
    """Insert rows in the order of their ids; where there is one already, lock it and say that it was used.

    It waits for whoever inserts the same key at the same time, and raises no error in the transaction. The
    primary key alone is unique: MySQL would lock the gap before a duplicate of any other, and so strangers.
    """
    targets = connections[using].features.supports_update_conflicts_with_target
    Key.objects.using(using).bulk_create(
        sorted(rows, key=lambda row: row.pk),
        batch_size=BATCH,
        update_conflicts=True,
        update_fields=["used_at"],
        unique_fields=["id"] if targets else None,
    )


def _either(pairs: Iterable[tuple[str, str]]) -> Q:
    """Return the condition that a row is of one of these queues and keys."""
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for queue, key in pairs:
        keys[queue].append(key)
    either = Q(pk__in=())
    for queue in keys:
        either |= Q(queue=queue, key__in=keys[queue])
    return either


def _end(window: Window | float, start: datetime) -> datetime | None:
    """Return when a key may be forgotten whose last generation was enqueued at ``start``; None: never."""
    if window is Window.FOREVER:
        return None
    return start if isinstance(window, Window) else clock.after(start, window)


# The generations.


def _generations(rows: Iterable[Key], using: str) -> dict[UUID, list[_Generation]]:
    """Return the unfinished generations of keys and the last one, newest first, by the key's id.

    One whose job has been pruned is left out.
    """
    # An attempt that a sweep abandoned may have started, although nobody came to say so.
    begun = Q(started_at__isnull=False) | Q(outcome=AttemptOutcome.ABANDONED)
    begun_before = Exists(Attempt.objects.using(using).filter(begun, job_id=OuterRef("pk")))
    found: defaultdict[UUID, list[_Generation]] = defaultdict(list)
    for batch in batched(rows, BATCH):
        wanted = Q(state__in=UNFINISHED) | Q(pk__in=[row.job_id for row in batch])
        jobs = Job.objects.using(using).filter(_either((row.queue, row.key) for row in batch), wanted)
        jobs = jobs.order_by("-generation").defer("payload", "output", "headers", "progress")
        for job in jobs.annotate(begun_before=begun_before):
            begun_now = job.started_at is not None or job.begun_before
            found[Key.id_of(job.queue, job.key or "")].append(_Generation.of(job, started=begun_now))
    return found


_NOBODY = UUID(int=0)


class _Moved(Exception):
    """A job that was to be held has been claimed."""


def _hold(job_ids: Collection[UUID], using: str) -> bool:
    """Lock jobs that wait to run; False if one does not any more, and then none that runs is locked."""
    return all(_hold_these(batch, using) for batch in batched(sorted(job_ids), BATCH))


def _hold_these(job_ids: Sequence[UUID], using: str) -> bool:
    # With an id of nobody: of a single row MySQL keeps the lock, whatever its state turns out to be.
    jobs = Job.objects.using(using).filter(pk__in=[*job_ids, _NOBODY], state__in=PENDING).order_by("pk")
    if connections[using].vendor == "mysql":
        return _hold_asking(jobs, len(job_ids), using)
    try:
        # A savepoint: PostgreSQL keeps a row locked that turned out to be RUNNING after a wait for it.
        with transaction.atomic(using=using):
            if len(waiting(jobs, using=using).values_list("pk")) < len(job_ids):
                raise _Moved
    except _Moved:
        return False
    return True


def _hold_asking(jobs: QuerySet[Job], count: int, using: str) -> bool:
    """Do so without a wait for a lock: after one MySQL keeps it, even if a savepoint is rolled back.

    Whoever holds the job longer than it takes to ask is no claim, and is waited for all the same.
    """
    for pause in PAUSES:
        if len(unlocked(jobs, using=using).values_list("pk")) == count:
            return True
        if jobs.count() < count:
            return False
        sleep(pause)
    return len(waiting(jobs, using=using).values_list("pk")) == count


@dataclass(slots=True)
class _Known:
    """What is known of a key as a batch goes through it. ``fresh``: it has no generation yet.

    ``ended``: how the last generation ended, None if it has not.
    """

    row: Key
    unfinished: list[_Generation]
    ended: JobState | None
    fresh: bool
    changed: bool = False

    @classmethod
    def of(cls, row: Key, generations: Sequence[_Generation], *, fresh: bool) -> _Known:
        """Return what a key's row and its generations say."""
        unfinished = [each for each in generations if each.standing is not Standing.SETTLED]
        ends = {each.job_id: each.state for each in generations if each.standing is Standing.SETTLED}
        pruned = None if row.settled_as is None else JobState(row.settled_as)
        return cls(row, unfinished, ends.get(row.job_id, pruned), fresh)

    def current(self, at: datetime) -> Current | None:
        """Return the generation that the key leads to, None if there is none."""
        if self.fresh:
            return None
        row, first = self.row, next(iter(self.unfinished), None)
        newest = first.standing if first and first.number == row.generation else Standing.SETTLED
        return Current(
            name=first.name if first else row.name,
            standing=first.standing if first else Standing.SETTLED,
            newest=newest,
            age=(at - to_utc(row.enqueued_at)).total_seconds(),
        )

    def landed(self, verdict: Verdict) -> Landed:
        """Return what an enqueue came to that begins no generation."""
        if self.unfinished:
            first = self.unfinished[0]
            return Landed(verdict, first.job_id, first.number, first.name, first.enqueued_at)
        row = self.row
        return Landed(verdict, row.job_id, row.generation, row.name, to_utc(row.enqueued_at), self.ended)

    def begin(self, job: NewJob, at: datetime, place: int) -> Landed:
        """Note a new generation, which is to be at this place among the jobs that are added."""
        row, number = self.row, 1 if self.fresh else self.row.generation + 1
        self.fresh, self.changed = False, self.changed or not self.fresh
        row.generation, row.job_id, row.name, row.enqueued_at = number, job.id, job.name, at
        row.settled_as = self.ended = None
        self.unfinished.insert(0, _Generation(job.id, number, job.name, at, Standing.PENDING, new=place))
        return Landed(Verdict.NEW, job.id, number, job.name, at)

    def remember(self, window: Window | float) -> None:
        """Keep the key as long as anybody who has used it expects."""
        end, until = _end(window, to_utc(self.row.enqueued_at)), self.row.forget_at
        if until is not None and (end is None or to_utc(until) < end):
            self.row.forget_at, self.changed = end, True


class _Plan:
    """What a batch of enqueues will write, decided one after the other."""

    def __init__(self, rows: Sequence[Key], own: set[UUID], at: datetime, using: str) -> None:
        """Read the generations. ``own``: the ids of the batch's jobs, one of which a row made now carries."""
        # The instant tells it from one that an earlier call with the same ids has left.
        fresh = {row.pk for row in rows if row.job_id in own and to_utc(row.enqueued_at) == at}
        found = _generations([row for row in rows if row.pk not in fresh], using)
        self._known = {
            (row.queue, row.key): _Known.of(row, found.get(row.pk, []), fresh=row.pk in fresh) for row in rows
        }
        self._begun: dict[UUID, int] = {}
        self._at, self._using = at, using
        self.news: list[NewJob] = []
        self.replaced: dict[UUID, NewJob] = {}
        self.held: set[UUID] = set()

    def add(self, number: int, job: NewJob) -> Landed:
        """Decide about an enqueue, and note what it writes. Raises Refused."""
        intent = _intent(job)
        known = self._known[job.queue, intent.key]
        verdict = decide(intent, known.current(self._at))
        if verdict is Verdict.NEW:
            landed = known.begin(job, self._at, len(self.news))
            self._begun[job.id] = number
            self.news.append(job._replace(generation=landed.generation))
        else:
            landed = known.landed(verdict)
            if verdict not in (Verdict.RETURN, Verdict.REPLACE):
                raise Refused(landed, number, self._begun.get(landed.job_id))
            self._meet(job, known, verdict)
        known.remember(intent.window)
        return landed

    def _meet(self, job: NewJob, known: _Known, verdict: Verdict) -> None:
        """Hold the generation that was found, if it has not started; replace what it is to do."""
        first = next(iter(known.unfinished), None)
        if first is None or first.standing is not Standing.PENDING:
            return
        if first.new is None:
            self.held.add(first.job_id)
        if verdict is Verdict.REPLACE:
            same = job._replace(id=first.job_id, generation=first.number)
            if first.new is None:
                self.replaced[first.job_id] = same
            else:
                self.news[first.new] = same

    def write(self) -> None:
        """Insert what is new, rewrite what is replaced, and the rows of keys that have changed."""
        using, at = self._using, self._at
        changed = [known.row for known in self._known.values() if known.changed]
        Key.objects.using(using).bulk_update(changed, _CHANGING, batch_size=BATCH)
        passing("key: generation noted")
        if self.news:
            write(self.news, at, using=using)
        for job_id, job in self.replaced.items():
            # What could not be routed may be fine now.
            work = work_of(job, at) | {"unroutable_since": None, "cause": ""}
            Job.objects.using(using).filter(pk=job_id, state__in=PENDING).update(**work)
            Tag.objects.using(using).filter(job_id=job_id).delete()
            passing("replace: row written")
        insert_tags({job_id: job.tags for job_id, job in self.replaced.items() if job.tags}, using=using)


#: The columns of a key that an enqueue may change.
_CHANGING = ("name", "generation", "job_id", "enqueued_at", "forget_at", "settled_as")


def _intent(job: NewJob) -> Intent:
    if job.intent is None:
        raise ValueError(f"job {job.id} has no key, and is not for this door")
    return job.intent


# What else must know of keys.


def hold(
    job_ids: Iterable[UUID],
    *,
    among: Collection[int] = TERMINAL,
    using: str,
    now: datetime | None = None,
) -> set[UUID]:
    """Lock the keys of jobs, and return those jobs of them that must not be sent back.

    It must not run while another generation of its key is unfinished; of several that are in the states
    ``among`` only the newest may. For the caller's transaction, before it locks the jobs.
    """
    keyed = _keyed(job_ids, using)
    if not keyed:
        return set()
    at = clock.read(using, now)
    rows: dict[UUID, Key] = {}
    for job in keyed:
        rows.setdefault(job.key_id, job.row(at))
    _lock(rows.values(), using)
    busy: set[UUID] = set()
    for batch in batched(rows.values(), BATCH):
        either = _either((row.queue, row.key) for row in batch)
        unfinished = Job.objects.using(using).filter(either, state__in=UNFINISHED)
        busy |= {Key.id_of(queue, key or "") for queue, key in unfinished.values_list("queue", "key")}
    refused = set()
    for job in keyed:
        if job.key_id in busy:
            refused.add(job.pk)
        elif job.state in among or job.state in UNFINISHED:  # it may have ended since that was read
            busy.add(job.key_id)
    return refused


def farewell(job_ids: Collection[UUID], *, using: str) -> set[UUID]:
    """Note on keys how jobs ended that are about to be deleted; return those that are to stay for now.

    It waits for nobody: a key that an enqueue holds keeps its job until the next time.
    """
    keyed = _keyed(job_ids, using)
    free: dict[UUID, Key] = {}
    held: set[UUID] = set()
    for batch in batched(sorted({job.key_id for job in keyed}), BATCH):
        rows = Key.objects.using(using).filter(pk__in=batch)
        free |= {row.pk: row for row in unlocked(rows.order_by("pk"), using=using)}
        held |= set(rows.values_list("pk", flat=True)) - free.keys()
    leaving = []
    for job in keyed:
        row = free.get(job.key_id)
        if row is not None and row.job_id == job.pk:
            row.settled_as = job.state
            leaving.append(row)
    Key.objects.using(using).bulk_update(leaving, ["settled_as"], batch_size=BATCH)
    return {job.pk for job in keyed if job.key_id in held}


class _Keyed(NamedTuple):
    """A job with a key."""

    pk: UUID
    state: int
    queue: str
    key: str
    name: str
    generation: int
    enqueued_at: datetime

    @property
    def key_id(self) -> UUID:
        return Key.id_of(self.queue, self.key)

    def row(self, at: datetime) -> Key:
        """Return a row for its key, for the case that somebody has deleted that by hand."""
        return Key(
            id=self.key_id,
            queue=self.queue,
            key=self.key,
            name=self.name,
            generation=self.generation,
            job_id=self.pk,
            enqueued_at=self.enqueued_at,
            used_at=at,
        )


def _keyed(job_ids: Iterable[UUID], using: str) -> list[_Keyed]:
    """Return those of the jobs that have a key, newest generation first."""
    jobs = Job.objects.using(using).filter(pk__in=list(job_ids), key__isnull=False).order_by("-generation")
    return list(starmap(_Keyed, jobs.values_list(*_Keyed._fields)))


# Forgetting.


def forget(*, limit: int = SLICE, using: str, now: datetime | None = None) -> int:
    """Delete up to ``limit`` keys of which no job is left and whose window is over; return how many."""
    at = clock.read(using, now)
    count = 0
    # One state at a time: so the index gives those whose windows ended first without a sort.
    for state in sorted(TERMINAL):
        if count < limit:
            over = Q(settled_as=state.value, forget_at__lte=at)
            count += len(_forget(over, "forget_at", limit - count, using))
    return count


def forget_idle(idle_for: float, *, using: str, now: datetime | None = None) -> int:
    """Delete all keys, slice by slice, that nobody has asked for in so many seconds; return how many.

    Of these, too, no job must be left, and a window that has an end must be over.
    """
    idle = _idle(idle_for, clock.read(using, now))
    count, rest = 0, Q()
    # From one id to the next: an index on the last use would have to be written at each enqueue.
    while slice := _forget(idle & rest, "pk", SLICE, using):
        count, rest = count + len(slice), Q(pk__gt=slice[-1])
    return count


def forgettable(*, idle_for: float | None = None, using: str, now: datetime | None = None) -> int:
    """Return how many keys ``forget``, and ``forget_idle`` if a time is given, would delete."""
    at = clock.read(using, now)
    old = Q(settled_as__isnull=False, forget_at__lte=at)
    if idle_for is not None:
        old |= _idle(idle_for, at)
    return _without_jobs(old, using).count()


def _idle(idle_for: float, at: datetime) -> Q:
    over = Q(forget_at=None) | Q(forget_at__lte=at)
    return over & Q(used_at__lte=clock.after(at, -idle_for))


def _forget(old: Q, order: str, limit: int, using: str) -> list[UUID]:
    """Delete the first keys that are old, pass over those that somebody holds; return their ids."""
    with writing(using):
        keys = _without_jobs(old, using).order_by(order)[:limit]
        ids = list(unlocked(keys, using=using).values_list("pk", flat=True))
        if ids:
            _delete(ids, using)
            passing("forget: keys deleted")
    return ids


def _delete(ids: list[UUID], using: str) -> None:
    # One by one on MySQL: for several it may walk a small table, and waits for every locked row on its way.
    size = 1 if connections[using].vendor == "mysql" else len(ids)
    for batch in batched(ids, size):
        Key.objects.using(using).filter(pk__in=batch).delete()


def _without_jobs(old: Q, using: str) -> QuerySet[Key]:
    jobs = Job.objects.using(using).filter(key=OuterRef("key"), queue=OuterRef("queue"))
    return Key.objects.using(using).filter(old, ~Exists(jobs))
