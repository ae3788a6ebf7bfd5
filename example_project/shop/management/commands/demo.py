"""``manage.py demo``: put the shop through crashes and freezes, and show what became of each job.

One function per scene, in the order in which they happen. Nothing is faked: orders come in through
the shop's own view, and workers are processes that get real signals. The demo waits for conditions
and never for luck; at its end it checks its own sums.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_backwave import JobState
from django_backwave.models import Job, Lease
from django_backwave.models import Worker as WorkerRow
from shop import gateway, middle
from shop.demo.processes import WorkerProcess, Workers, own_surroundings
from shop.demo.report import customer, print_sums, print_table
from shop.demo.show import DemoFailed, say, scene
from shop.jobs import print_label, take_once, take_twice
from shop.models import Order, Stock

PLACED = 20
ITEMS = ("book", "lamp", "chair")

# Which order gets into which trouble.
KILLED, FROZEN, ROLLED_BACK, CANCELLED, POISON = 7, 12, 13, 3, 5
CARELESS, ATOMIC = 9, 10

# What the stock has of each item.
PIECES = 100

# Real workers have a lease of a minute; nobody wants to watch that.
LEASE = 3
OPTIONS = (
    *("--queue", "receipts", "--queue", "parcels"),
    *("--concurrency", "1", "--lease", str(LEASE), "--poll", "0.2"),
)


class Command(BaseCommand):
    help = "Put the shop through crashes and freezes, and show what became of each job."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--keep",
            type=Path,
            metavar="FOLDER",
            help="Keep the workers' logs and the gateway's file in this new folder.",
        )

    def handle(self, **options: Any) -> None:
        started = time.monotonic()
        if options["keep"] is not None and options["keep"].exists():
            raise CommandError(f"{options['keep']} is there already; --keep takes a new folder.")
        try:
            with own_surroundings(options["keep"]) as folder:
                Demo(folder).run()
        except DemoFailed as error:
            raise CommandError(f"The demo failed: {error}") from error
        how_to_go_on(time.monotonic() - started)


class Demo:
    """The scenes, and what they leave for the table at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers = Workers(folder)
        self.browser = Client()
        self.notes: dict[UUID, list[str]] = defaultdict(list)

    def run(self) -> None:
        say(
            f"A shop on {connection.display_name}, in a database of its own. Its workers have a "
            f"lease of {LEASE} s, so that nobody has to wait for the usual minute.",
            indent=0,
        )
        try:
            self.orders_come_in()
            self.a_worker_is_killed()
            frozen = self.a_worker_freezes()
            working = self.another_takes_over()
            self.the_frozen_one_wakes_up(frozen)
            self.a_running_job_is_cancelled()
            self.a_poison_job_kills_its_workers()
            self.workers.stop(frozen, working)
            self.workers_are_killed_between_writes_and_success()
        finally:
            self.workers.clear_away()
        self.what_became_of_it()

    def orders_come_in(self) -> None:
        scene(1, f"{PLACED} orders come in, one of which fails after its job was enqueued (G1)")
        for n in range(1, PLACED + 1):
            form = {"email": customer(n), "item": ITEMS[n % 3], "quantity": 1 + n % 4}
            failing = {"fail": "1"} if n == ROLLED_BACK else {}
            answer = self.browser.post(reverse("shop:place_order"), form | failing)
            expected = 409 if failing else 302
            if answer.status_code != expected:
                raise DemoFailed(f"order {n} was answered {answer.status_code}, not {expected}")
        say(
            f"{Order.objects.count()} orders and {Job.objects.count()} jobs are in the database: "
            f"order {ROLLED_BACK} was rolled back, and its job with it."
        )
        # Two of them meet a gateway that charges at once and answers late.
        gateway.hold(order(KILLED).pk, order(FROZEN).pk)

    def a_worker_is_killed(self) -> None:
        scene(2, "A worker is killed in the middle of a job (G2, G6)")
        worker = self.workers.start("A", *OPTIONS)
        say("Worker A takes the orders one by one.")
        self.wait_for_charge(KILLED, by=worker)
        worker.kill()
        say(f"SIGKILL. Order {KILLED} is charged, and nobody has recorded that.")
        self.notes[receipt_job(KILLED)] += ["A was killed after the charge;", "the same key charged no more"]

    def a_worker_freezes(self) -> WorkerProcess:
        scene(3, "A worker freezes in the middle of a job, for longer than its lease (G3)")
        worker = self.workers.start("B", *OPTIONS)
        say("Worker B goes on with the next orders.")
        self.wait_for_charge(FROZEN, by=worker)
        worker.freeze()
        say("SIGSTOP. B stands still and believes that the job is its own.")
        for n in (KILLED, FROZEN):
            self.wait_for_lapse(receipt_job(n), f"the lease on order {n} is over")
        return worker

    def another_takes_over(self) -> WorkerProcess:
        scene(4, "Another worker takes over (G2)")
        worker = self.workers.start("C", *OPTIONS)
        say("Worker C records both attempts as abandoned, runs both jobs again, and all that is left.")
        self.workers.wait_until(
            "every order has its receipt",
            lambda: Job.objects.exclude(state=JobState.SUCCEEDED).count() == 0,
        )
        return worker

    def the_frozen_one_wakes_up(self, frozen: WorkerProcess) -> None:
        scene(5, "The frozen worker wakes up and reports its success: too late (G4, G9)")
        job = receipt_job(FROZEN)
        before = row(job)
        gateway.hold()
        frozen.thaw()
        say("SIGCONT. B gets the gateway's answer at last and reports `succeeded` for its attempt.")
        evidence = ("action=attempt_ended", str(job), "outcome=stale")
        self.workers.wait_until("the fence has answered B", lambda: bool(frozen.line(*evidence)))
        say("The fence refuses it. From B's log:")
        say((frozen.line(*evidence) or "").partition(" INFO ")[2], indent=6)
        if row(job) != before:
            raise DemoFailed("the late report has changed the job or its history")
        say("The job's row and its attempts are what they were, byte for byte.")
        self.notes[job] += ["B was frozen; its late report", "was refused by the fence"]

    def a_running_job_is_cancelled(self) -> None:
        scene(6, "A job is cancelled while it runs (G8)")
        pk = order(CANCELLED).pk
        self.browser.post(reverse("shop:pack", args=[pk]))
        job = order(CANCELLED).parcel_job
        self.workers.wait_until(
            "pack_parcel runs", lambda: Lease.objects.filter(pk=job, started_at__isnull=False).exists()
        )
        asked_at = time.monotonic()
        answer = self.browser.post(reverse("shop:cancel_packing", args=[pk]), follow=True)
        say(f"The shop says: {list(answer.context['messages'])[-1]}")
        self.workers.wait_until("its handler has stopped", lambda: state(job) is JobState.CANCELLED)
        took = time.monotonic() - asked_at
        self.notes[job] += [f"stopped {took:.1f} s after the", "cancel, told by a heartbeat"]

    def a_poison_job_kills_its_workers(self) -> None:
        scene(7, "A poison job kills every worker that runs it, until it is dead-lettered (G6)")
        job = UUID(print_label.enqueue(order(POISON).pk).id)
        say("Whoever serves the queue `labels` dies, and is started again, as a service manager does.")
        for number in range(1, 10):
            worker = self.workers.start(f"D{number}", "--queue", "labels", "--concurrency", "1")
            worker.may_die()
            self.workers.wait_until(
                f"{worker.label} dies of it, or lives because it is dead-lettered",
                lambda worker=worker: worker.exit_code is not None or lives(worker, job),  # type: ignore[misc]
            )
            if worker.exit_code is None:
                self.workers.stop(worker)
                break
            if worker.exit_code != -signal.SIGKILL:
                raise DemoFailed(f"{worker.label} ended otherwise: {worker.log()}")
            self.wait_for_lapse(job, "its lease is over")
        say("Three failures are used up. The job stays where an operator can look at it.")
        self.notes[job] += ["each attempt killed its worker:", "dead-lettered after 3 failures"]

    def workers_are_killed_between_writes_and_success(self) -> None:
        scene(8, "Workers are killed between a handler's writes and its success, atomic or not (G7)")
        say(
            "Two jobs take an order's pieces from the stock and enter that in the ledger. In one the "
            "writes and the job's success are one transaction."
        )
        middle_folder = self.folder / "middle"
        middle_folder.mkdir()
        os.environ["SHOP_MIDDLE"] = str(middle_folder)
        hold = middle_folder / "hold"
        hold.touch()
        Stock.objects.bulk_create(Stock(item=item, pieces=PIECES) for item in ITEMS)
        jobs = []
        for label, task, number in (("E", take_twice, CARELESS), ("F", take_once, ATOMIC)):
            jobs.append(UUID(task.enqueue(order(number).pk).id))
            worker = self.workers.start(
                label, "--queue", "stock", "--concurrency", "1", "--lease", str(LEASE)
            )
            self.workers.wait_until(
                f"{task.func.__name__} has written, in worker {label}",
                lambda worker=worker: bool(middle.there(middle_folder, worker.pid)),  # type: ignore[misc]
            )
            worker.kill()
            say("SIGKILL.")
        for job in jobs:
            self.wait_for_lapse(job, "its lease is over")
        hold.unlink()
        worker = self.workers.start("G", "--queue", "stock", "--lease", str(LEASE))
        self.workers.wait_until(
            "worker G has done both",
            lambda: not Job.objects.filter(pk__in=jobs).exclude(state=JobState.SUCCEEDED).exists(),
        )
        self.workers.stop(worker)
        del os.environ["SHOP_MIDDLE"]
        for job, number, expected in zip(jobs, (CARELESS, ATOMIC), (2, 1), strict=True):
            entries = order(number).entries.count()
            if entries != expected:
                raise DemoFailed(f"order {number} is in the ledger {entries} times, not {expected}")
            once = "atomic: once" if expected == 1 else "not atomic: twice"
            self.notes[job] += [f"{once} in the ledger,", "killed after the writes"]

    def what_became_of_it(self) -> None:
        scene(9, "What became of each order and job, and why")
        print_table(PLACED, self.notes, self.workers)
        print()
        print_sums(PLACED, rolled_back=1)
        expected = {order(CANCELLED).parcel_job: JobState.CANCELLED}
        for job in Job.objects.exclude(state=JobState.SUCCEEDED):
            if job.job_state is not expected.get(job.pk, JobState.DEAD_LETTERED):
                raise DemoFailed(f"{job} is {job.job_state.label}")

    def wait_for_charge(self, number: int, *, by: WorkerProcess) -> None:
        pk = order(number).pk
        self.workers.wait_until(
            f"the gateway has charged order {number}, and {by.label} waits for its answer",
            lambda: any(call["order"] == pk and call["pid"] == by.pid for call in gateway.calls()),
        )

    def wait_for_lapse(self, job: UUID, what: str) -> None:
        """Wait until nobody holds a live lease on a job."""
        self.workers.wait_until(what, lambda: not Lease.objects.filter(pk=job).live(timezone.now()).exists())


def order(number: int) -> Order:
    """Return the n-th order."""
    return Order.objects.get(email=customer(number))


def receipt_job(number: int) -> UUID:
    """Return the id of the job that sends the n-th order's receipt."""
    job: UUID = Order.objects.values_list("receipt_job", flat=True).get(email=customer(number))
    return job


def lives(worker: WorkerProcess, job: UUID) -> bool:
    """Say whether a worker has started and has nothing to fear from a job any more."""
    started = WorkerRow.objects.filter(pid=worker.pid).exists()
    return started and state(job) is JobState.DEAD_LETTERED


def state(job: UUID) -> JobState:
    """Return the state of a job as its row says it now."""
    return Job.objects.get(pk=job).job_state


def row(job: UUID) -> list[Any]:
    """Return all that the database knows of a job."""
    found = Job.objects.get(pk=job)
    return [*Job.objects.filter(pk=job).values(), *found.attempts.order_by("number").values()]


def how_to_go_on(seconds: float) -> None:
    """Say what to read and what to try next."""
    command = "  " + shlex.join([_short(sys.executable), _short(sys.argv[0])])
    print(f"""
All of this holds. It took {seconds:.0f} s.

Read
  example_project/shop/views.py      place_order: an order and its job in one transaction
  example_project/shop/jobs.py       handlers that may run twice, and one that stops when told
  django_backwave/store/fence.py     the fence that refused worker B
  docs/guarantees.md                 what is promised (G1 to G12), and the tests that hold it

Try
{command} shop

  The shop is then on http://localhost:8000/, with a worker. All of this on PostgreSQL:

  DATABASE_URL=postgres://user:password@localhost:5432/name make demo""")


def _short(path: str) -> str:
    """Return a path as one would type it here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
