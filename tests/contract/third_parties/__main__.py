"""Let each package enqueue, run workers, and see what each package has seen."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path


def main() -> None:
    """Set up a project in a temporary folder, and try one package after the other."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BACKWAVE_THIRD_PARTIES_FILE"] = str(Path(folder) / "db.sqlite3")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contract.third_parties.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        call_command("check", fail_level="WARNING")
        results = [*schedulers(), *by_hand()]
        toolbar()
        fill = maintenance()
        work(until=lambda: all(done(result) for result in results))
        monitors(results)
        fill.refresh_from_db()
        assert (fill.status, fill.tick_count) == ("succeeded", 7), fill.status
        pages()
        print("All of them work with BackWaveBackend.")


def by_hand():
    from tests.contract.third_parties import tasks

    yield tasks.add.using(backend="mail", queue_name="mail").enqueue(1, 2)
    yield tasks.greet.enqueue("Ada")
    yield tasks.later.enqueue(1)
    yield tasks.fail.enqueue()


def schedulers():
    """Let both schedulers enqueue what is due, as their commands do."""
    from crontask import scheduler as crontask
    from django.tasks import task_backends
    from django_scheduled_tasks.base import scheduler
    from django_scheduled_tasks.models import ScheduledTaskRunLog

    import tests.contract.third_parties.tasks  # noqa: F401 - defines the schedules

    for scheduled in crontask.get_jobs():
        yield scheduled.func()
    stop = threading.Event()
    thread = threading.Thread(target=scheduler.run_scheduling_loop, args=(stop, timedelta(seconds=0.1)))
    thread.start()
    ids = ScheduledTaskRunLog.objects.exclude(last_run_task_id=None).values_list(
        "last_run_task_id", flat=True
    )
    wait_until(lambda: len(ids.all()) == 2)
    stop.set()
    thread.join()
    for result_id in ids.all():
        yield task_backends["default"].get_result(result_id)


def toolbar():
    from debug_toolbar.store import get_store
    from django.test import Client

    Client().get("/enqueue/")
    store = get_store()
    [request_id, *_] = store.request_ids()
    shown = store.panel(request_id, "TasksPanel")["tasks"]
    assert [task["task"]["priority"] for task in shown] == [0, 5], shown
    page = Client().get("/__debug__/render_panel/", {"request_id": request_id, "panel_id": "TasksPanel"})
    assert page.json()["content"].count("third_parties.tasks.add") == 2


def maintenance():
    from maintenance_tasks.runner import start

    return start("tests.contract.third_parties.maintenance_tasks.Fill")


def monitors(results):
    """Both monitors know every task that has ended, how, and after how many attempts."""
    from django_taskly.models import TaskSnapshot
    from tasks_monitor.models import TaskRecord
    from tasks_monitor.retry import retry

    for result in results:
        record = TaskRecord.objects.get(result_id=result.id)
        snapshot = TaskSnapshot.objects.get(task_id=result.id)
        assert (record.backend, record.status) == (result.backend, result.status), record
        assert record.attempts == snapshot.attempts == result.attempts, record
        assert snapshot.status == result.status
    failed = TaskRecord.objects.get(status="FAILED")
    assert (failed.exception_class, failed.attempts) == ("builtins.ValueError", 2)
    assert retry(failed).status == "READY"


def pages():
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    for page in (
        "tasks_monitor/taskrecord/",
        "tasks_monitor/taskrecord/dashboard/",
        "maintenance_tasks/run/",
    ):
        assert client.get(f"/admin/{page}").status_code == 200, page
    assert client.get("/taskly/").status_code == 200


def done(result) -> bool:
    result.refresh()
    return result.is_finished


def work(until) -> None:
    """Run workers until it is true: what failed is due again after a while."""

    def one_more() -> bool:
        subprocess.run([sys.executable, "-m", "django", "backwave_worker", "--drain"], check=True)
        return until()

    wait_until(one_more)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing has happened for a minute"
        time.sleep(0.1)


main()
