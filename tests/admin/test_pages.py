"""Every page, walked by everybody: what is seen, what is refused, and that looking changes nothing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings

from django_backwave.core.outcome import Failed, timed_out
from django_backwave.core.policy import Backoff
from django_backwave.core.protocol import Verdict
from django_backwave.core.states import JobState
from django_backwave.models import Action, Job, Worker
from django_backwave.store import operate
from django_backwave.store.heartbeat import announce
from tests.admin.conftest import KINDS, SECRETS, secretive, url
from tests.factories import ERROR, WORKER, claimed, contents, ready, send
from tests.factories import report as report_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def job():
    """Lay out one of everything, and return the job that operators have dealt with."""
    now = datetime.now(UTC)
    announce(
        name=WORKER,
        host="host",
        pid=1,
        started_at=now,
        queues=["mail"],
        names=["shop.send_receipt"],
        concurrency=4,
        version="0.1.0",
        using="default",
    )
    claimed(now=now)
    job = ready(queue="mail")
    operate.cancel([job.pk], actor="7 ann", using="default")
    return job


def pages(job):
    """Return the address of every page that can be read."""
    return [
        *(url(model, "changelist") for model in ("job", "lease", "worker", "action")),
        url("job", "change", job.pk),
        url("job", "history", job.pk),
        url("worker", "change", WORKER.replace(":", "_3A")),
    ]


def forbidden(job):
    """Return addresses where something would be added, changed or deleted."""
    keys = {"job": job.pk, "lease": job.pk, "worker": WORKER, "action": Action.objects.get().pk}
    for model, key in keys.items():
        yield url(model, "add")
        yield url(model, "delete", key)


def everything():
    rows = [list(model.objects.order_by("pk").values()) for model in (Worker, Action, LogEntry)]
    return [*contents(), *rows]


@pytest.mark.parametrize("client_name", ["superuser", "viewer", "canceller"])
def test_who_may_view_sees_every_page(request, job, client_name):
    client = request.getfixturevalue(client_name)
    before = everything()

    for page in pages(job):
        assert client.get(page).status_code == 200, page

    assert everything() == before


def test_staff_without_permission_sees_nothing(nobody, job):
    before = everything()

    for page in [*pages(job), url("lease", "change", job.pk), url("action", "change", 1)]:
        assert nobody.get(page).status_code == 403, page
    for verb in ("cancel", "requeue"):
        assert nobody.post(url("job", verb, job.pk)).status_code == 403
    assert nobody.post(url("job", "changelist"), {"action": "cancel_selected"}).status_code == 403

    assert everything() == before


def test_anonymous_is_sent_to_the_login(job):
    client, before = Client(), everything()

    for page in [*pages(job), *forbidden(job)]:
        for response in (client.get(page), client.post(page)):
            assert response.status_code == 302, page
            assert response.url.startswith("/admin/login/")
    for verb in ("cancel", "requeue"):
        assert client.post(url("job", verb, job.pk)).url.startswith("/admin/login/")

    assert everything() == before


@pytest.mark.parametrize("client_name", ["superuser", "viewer"])
def test_nobody_adds_changes_or_deletes_by_hand(request, job, client_name):
    client = request.getfixturevalue(client_name)
    before = everything()

    for page in forbidden(job):
        assert client.get(page).status_code == 403, page
        assert client.post(page, {"post": "yes"}).status_code == 403, page
    for page in (url("job", "change", job.pk), url("worker", "change", WORKER), url("action", "change", 1)):
        assert client.post(page, {"state": 3, "name": "x", "_save": "1"}).status_code == 403, page
    delete = {"action": "delete_selected", "_selected_action": [str(job.pk)], "post": "yes"}
    client.post(url("job", "changelist"), delete)

    assert everything() == before


@pytest.mark.parametrize("model", ["job", "lease", "worker", "action"])
@pytest.mark.parametrize(
    "query",
    [
        "payload__contains=s",
        "output__startswith=a",
        "cause__regex=x",
        "attempts__traceback__contains=s",
        "id__in=1,2",
        "names__contains=x",
        "priority=0",
    ],
)
def test_lookups_by_address_are_refused(superuser, model, query):
    """Else a user without `view_payload` would read a secret letter by letter, or every row."""
    assert superuser.get(f"{url(model, 'changelist')}?{query}").status_code == 400


def test_other_fields_cannot_be_referenced(superuser, job):
    for query in ("_to_field=payload", "_to_field=cause"):
        assert superuser.get(f"{url('job', 'changelist')}?{query}").status_code == 400
        assert superuser.get(f"{url('job', 'change', job.pk)}?{query}").status_code == 400


@pytest.mark.parametrize("kind", KINDS)
def test_secrets_need_their_permission(viewer, canceller, superuser, kind):
    """No page, list, history or message shows what `view_payload` is for."""
    job = secretive(kind)
    operate.cancel([job.pk], actor="7 ann", using="default")
    addresses = [
        *pages(job)[:-1],
        f"{url('job', 'changelist')}?q={job.pk}",
        f"{url('job', 'changelist')}?_popup=1",
        url("lease", "change", job.pk),
    ]

    for client in (viewer, canceller):
        shown = [client.get(page, follow=True).content.decode() for page in addresses]
        shown.append(client.post(url("job", "cancel", job.pk), follow=True).content.decode())
        for page in shown:
            assert "s3cret" not in page
    assert "needs the permission django_backwave.view_payload" in shown[4]

    page = superuser.get(url("job", "change", job.pk)).content.decode()
    assert SECRETS["payload"] in page
    assert "needs the permission" not in page


def test_who_may_see_payloads_sees_all_of_them(superuser):
    page = superuser.get(url("job", "change", secretive("dead").pk)).content.decode()
    assert [SECRETS[key] in page for key in ("payload", "cause", "message", "traceback")] == [True] * 4

    page = superuser.get(url("job", "change", secretive("succeeded").pk)).content.decode()
    assert SECRETS["output"] in page


def test_secrets_are_not_even_read(viewer, django_assert_max_num_queries):
    job = secretive("dead")

    with django_assert_max_num_queries(12) as queries:
        viewer.get(url("job", "change", job.pk))

    for query in queries.captured_queries:
        for column in ("payload", "output", "cause", "message", "traceback"):
            assert f'"{column}"' not in query["sql"].replace("`", '"')


def test_a_text_of_a_job_is_no_markup(superuser):
    markup = "<script>alert(1)</script>"
    job = claimed(payload=json.dumps({"args": [markup], "kwargs": {}}), name=markup)
    Job.objects.filter(pk=job.job_id).update(queue=markup)

    for page in (url("job", "changelist"), url("lease", "changelist"), url("job", "change", job.job_id)):
        assert markup not in superuser.get(page).content.decode()


def test_unknown_jobs_lead_back_with_a_message(superuser, job):
    for key in ("0190a0a0-0000-7000-8000-000000000000", "nonsense"):
        response = superuser.get(url("job", "change", key), follow=True)

        assert response.redirect_chain
        assert "exist. Perhaps it was deleted?" in response.content.decode()


@pytest.mark.parametrize("outcome", [Failed(ERROR, delay=600.0), timed_out(30)], ids=["retry", "time-out"])
def test_a_failed_job_with_tries_left_says_when_it_runs_next(superuser, outcome):
    job = claimed(now=None, backoff=Backoff(base=600, cap=600, jitter=0))
    assert send(report_of(job, outcome), now=None) == [Verdict.APPLIED]

    page = superuser.get(url("job", "change", job.job_id)).context["page"]

    assert page.next_run.startswith(("It is due in 10 m", "It is due in 9 m"))
    assert "Due" in [str(label) for label, _ in page.facts]


@pytest.mark.parametrize("state", JobState)
def test_every_state_says_when_it_runs_next(superuser, state):
    changes = {"worker": WORKER, "lease_expires_at": ready().due_at} if state is JobState.RUNNING else {}
    job = ready(state=state, **changes)

    response = superuser.get(url("job", "change", job.pk))

    said = response.context["page"].next_run
    words = {
        JobState.WAITING: "When the jobs that it waits for have finished.",
        JobState.READY: "No worker is alive.",
        JobState.RUNNING: "Its lease has lapsed",
        JobState.SUCCEEDED: "None: it has succeeded.",
        JobState.CANCELLED: "It can be requeued.",
        JobState.DEAD_LETTERED: "it was given up",
        JobState.QUARANTINED: "no worker knew its name",
    }
    assert words[state] in said


@pytest.mark.parametrize(
    ("queues", "names", "said"),
    [
        (["other"], ["shop.send_receipt"], "No live worker serves the queue default."),
        (["default"], ["other"], "No live worker of its queue knows the name shop.send_receipt."),
        (None, ["shop.send_receipt"], "runs as soon as a worker takes it."),
    ],
)
def test_a_due_job_says_who_is_missing(superuser, queues, names, said):
    announce(
        name=WORKER,
        host="h",
        pid=1,
        started_at=datetime.now(UTC),
        queues=queues,
        names=names,
        concurrency=1,
        version="",
        using="default",
    )

    page = superuser.get(url("job", "change", ready().pk)).context["page"]

    assert page.next_run.endswith(said)


def test_leases_tell_who_holds_what_until_when(viewer, job):
    claimed(worker="gone:9:z", lease=60, now=datetime.now(UTC) - timedelta(hours=2))
    asked = claimed(worker=WORKER, lease=3600, now=datetime.now(UTC))
    operate.cancel([asked.job_id], using="default")

    page = viewer.get(url("lease", "changelist")).content.decode()

    assert "gone:9:z" in page
    assert "not known any more" in page
    assert "lapsed 1 h 59 min ago" in page
    assert re.search(r"59 min \d+ s left", page)
    assert "asked to stop" in page
    assert page.index("gone:9:z") < page.index(WORKER + "</code>")
    assert str(job.pk) not in page

    only = viewer.get(f"{url('lease', 'changelist')}?worker=gone:9:z").context["cl"].result_list
    assert [lease.worker for lease in only] == ["gone:9:z"]


def test_links_lead_only_where_one_may_go(db):
    from tests.admin.conftest import staff

    lease = claimed(now=datetime.now(UTC))
    operate.cancel([lease.job_id], actor="7 ann", using="default")
    client = staff("lease-only", "view_lease", "view_action")

    for model in ("lease", "action"):
        page = client.get(url(model, "changelist")).content.decode()
        assert str(lease.job_id) in page
        assert url("job", "change", lease.job_id) not in page
    assert client.get(url("lease", "change", lease.job_id), follow=True).status_code == 403


def test_workers_are_alive_or_silent(viewer, job):
    announce(
        name="old:1:x",
        host="old",
        pid=1,
        started_at=datetime.now(UTC),
        queues=None,
        names=[],
        concurrency=1,
        version="",
        using="default",
        now=datetime.now(UTC) - timedelta(minutes=3),
    )

    page = viewer.get(url("worker", "changelist")).content.decode()

    assert page.index(">alive<") < page.index(">silent<")
    assert "3 min ago" in page


def test_actions_show_who_did_what(viewer, job):
    page = viewer.get(url("action", "changelist")).content.decode()

    for text in ("7 ann", "cancelled", url("job", "change", job.pk)):
        assert text in page
    found = viewer.get(f"{url('action', 'changelist')}?q={job.pk}").context["cl"].result_list
    assert [action.job_id for action in found] == [job.pk]


@pytest.mark.parametrize("use_tz", [True, False])
def test_pages_in_a_time_zone(superuser, use_tz):
    """Instants are shown in the project's zone, whether or not Django's are aware."""
    job = claimed(now=datetime(2026, 7, 1, 12, 0, tzinfo=UTC), lease=60)
    send(report_of(job), now=datetime(2026, 7, 1, 12, 0, 30, tzinfo=UTC))
    claimed(now=datetime.now(UTC))

    with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Berlin"):
        page = superuser.get(url("job", "change", job.job_id)).content.decode()
        listed = superuser.get(f"{url('job', 'changelist')}?state=succeeded").content.decode()
        assert superuser.get(url("lease", "changelist")).status_code == 200

    for shown in (page, listed):
        assert "2026-07-01 14:00:30" in shown
        assert 'datetime="2026-07-01T12:00:30.000+00:00"' in shown


def test_pages_in_another_language(superuser, job):
    """Every page renders in a language of another direction."""
    with override_settings(LANGUAGE_CODE="ar"):
        for page in pages(job):
            assert superuser.get(page).status_code == 200


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("client_name", ["superuser", "viewer"])
def test_jobs_on_another_database(request, client_name):
    client = request.getfixturevalue(client_name)
    job = ready(using="other")

    with override_settings(BACKWAVE={"DATABASE": "other"}):
        listed = client.get(url("job", "changelist")).context["cl"].result_list
        page = client.get(url("job", "change", job.pk))

    assert [row.pk for row in listed] == [job.pk]
    assert page.status_code == 200
