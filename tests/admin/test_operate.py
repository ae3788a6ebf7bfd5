"""Reschedule, change, pause and "all that match" in the admin: who may, what is said and written."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.test import Client, override_settings

from django_backwave.admin import matching as pages
from django_backwave.core.states import JobState
from django_backwave.models import Action, Job, Pause
from django_backwave.store import matching, pause, queues
from tests.admin.conftest import VIEWS, staff, told, url
from tests.factories import after, claimed, contents, ready, row

pytestmark = pytest.mark.django_db

FORMS = {
    "reschedule": {"due_at": "2030-01-01T10:30"},
    "run_now": {},
    "move": {"priority": "7", "queue": "mail"},
}
every_form = pytest.mark.parametrize("verb", FORMS)
LATER = datetime(2030, 1, 1, 16, 30, tzinfo=UTC)  # the tests run in Chicago's time


@pytest.fixture
def operator(db):
    """Sees every page, and may operate."""
    return staff("operator", *VIEWS, "view_pause", "operate_job")


def press(client, verb, job, **form):
    return client.post(url("job", verb, job.pk), FORMS[verb] | form, follow=True)


def everything():
    rows = [list(model.objects.order_by("pk").values()) for model in (Action, Pause, LogEntry)]
    return [*contents(), *rows]


# One job.


@pytest.mark.parametrize("state", [JobState.READY, JobState.WAITING])
def test_a_job_that_waits_is_moved(operator, state):
    job = ready(state=state, due_at=after(9**9))

    assert told(press(operator, "reschedule", job)) == ["The job was rescheduled."]
    assert row(job).due_at == LATER
    assert told(press(operator, "run_now", job)) == ["The job is due now."]
    assert row(job).due_at < LATER
    page = press(operator, "move", job)
    assert told(page) == ["The job's priority or queue was changed."]
    assert (row(job).priority, row(job).queue) == (7, "mail")

    assert [action.verb for action in Action.objects.order_by("pk")] == ["reschedule", "run_now", "change"]
    shown = page.content.decode()
    for text in ("rescheduled to 2030-01-01 16:30:00 UTC", "due now", "to the queue mail", "operator</td>"):
        assert text in shown
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "Rescheduled.",
        "Made due now.",
        "Priority or queue changed.",
    ]


@every_form
def test_a_job_that_runs_or_has_ended_is_not(operator, verb):
    running, ended = claimed(), ready(state=JobState.SUCCEEDED)
    before = everything()

    assert told(press(operator, verb, row(running))) == ["Nothing was changed: the job is running already."]
    assert told(press(operator, verb, ended)) == ["Nothing was changed: the job has finished."]
    assert everything() == before
    for job_id in (running.job_id, ended.pk):
        assert "Reschedule" not in operator.get(url("job", "change", job_id)).content.decode()


@pytest.mark.parametrize(
    ("verb", "form"),
    [
        ("reschedule", {"due_at": ""}),
        ("reschedule", {"due_at": "tomorrow"}),
        ("move", {"priority": "101"}),
        ("move", {"priority": "1.5"}),
        ("move", {"queue": ""}),
        ("move", {"queue": "q" * 101}),
        ("move", {"queue": "a\0b"}),
        ("move", {"priority": "0", "queue": "default"}),
    ],
)
def test_what_makes_no_sense_is_said_and_changes_nothing(operator, verb, form):
    job = ready()
    before = everything()

    [message] = told(press(operator, verb, job, **form))

    assert message
    assert everything() == before


def test_only_what_was_changed_is_recorded(operator):
    job = ready()

    press(operator, "move", job, priority="0")

    assert Action.objects.values_list("result", "queue").get() == ("changed", "mail")


def test_times_are_typed_in_the_project_s_zone(operator):
    job = ready(due_at=datetime(2030, 7, 1, 10, 0, tzinfo=UTC))

    for use_tz in (True, False):
        with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Berlin"):
            page = operator.get(url("job", "change", job.pk)).content.decode()
            assert 'value="2030-07-01T12:00:00"' in page
            assert "Europe/Berlin" in page or "CET" in page
            press(operator, "reschedule", job, due_at="2030-07-01T12:00:00")
        assert row(job).due_at == datetime(2030, 7, 1, 10, 0, tzinfo=UTC)


def test_requeue_may_keep_the_failures(superuser):
    for form, failures in (({}, 0), ({"keep_failures": "on"}, 2)):
        job = ready(state=JobState.DEAD_LETTERED, failures=2)
        superuser.post(url("job", "requeue", job.pk), form)
        assert (row(job).state, row(job).failures) == (JobState.READY, failures)


def test_a_paused_job_says_so(superuser):
    job = ready(queue="mail", name="shop.send")
    pause.pause(Pause.Kind.QUEUE, "mail", actor="7 anna", using="default")
    pause.pause(Pause.Kind.NAME, "shop.send", using="default")

    said = superuser.get(url("job", "change", job.pk)).context["page"].next_run

    assert "Its queue is paused. By 7 anna." in said
    assert "Its job name is paused." in said


# Who may.


def addresses(job):
    for verb, form in FORMS.items():
        yield url("job", verb, job.pk), form
    for verb in ("pause", "resume"):
        yield url("pause", verb), {"kind": "queue", "target": "mail"}
    for verb in ("cancel", "requeue"):
        yield url("job", f"matching_{verb}"), {}


@pytest.mark.parametrize("name", ["viewer", "nobody"])
def test_without_the_permission_nothing_is_offered_nor_done(request, name):
    client = request.getfixturevalue(name)
    job = ready()
    before = everything()

    for address, form in addresses(job):
        assert client.get(address).status_code == 403, address
        assert client.post(address, form).status_code == 403, address
    for page in (url("job", "change", job.pk), url("job", "changelist")):
        shown = client.get(page).content.decode()
        assert not re.search("Reschedule|Run now|Cancel all|Requeue all", shown)

    assert everything() == before


def test_the_page_of_queues_has_a_permission_of_its_own(viewer, operator):
    pause.pause(Pause.Kind.QUEUE, "mail", using="default")
    pk = Pause.objects.get().pk
    seer = staff("seer", "view_pause")

    assert viewer.get(url("pause", "changelist")).status_code == 403
    page = seer.get(url("pause", "changelist")).content.decode()
    assert "<button" not in page.partition("content-main")[2]
    assert seer.post(url("pause", "resume"), {"target": "mail"}).status_code == 403
    for client in (seer, operator):
        for address in (url("pause", "add"), url("pause", "delete", pk)):
            assert client.get(address).status_code == 403
        assert client.post(url("pause", "change", pk), {"target": "x"}).status_code == 403
        assert client.get(url("pause", "change", pk)).url == url("pause", "changelist")
    assert viewer.get(url("pause", "change", pk)).status_code == 403
    assert Pause.objects.get().target == "mail"


def test_operating_without_view_is_refused(db):
    client = staff("blind", "operate_job", "cancel_job", "requeue_job")
    job = ready()
    before = everything()

    for address, form in addresses(job):
        assert client.post(address, form).status_code == 403, address

    assert everything() == before


def test_strangers_are_sent_to_the_login_and_forgeries_refused(superuser):
    from django.contrib.auth.models import User

    job = ready()
    before = everything()
    forger = Client(enforce_csrf_checks=True)
    forger.force_login(User.objects.get(username="root"))
    before = everything()

    for address, form in addresses(job):
        assert Client().post(address, form).url.startswith("/admin/login/")
        assert forger.post(address, form).status_code == 403, address

    assert everything() == before


def test_looking_does_nothing(superuser):
    job = ready()
    before = everything()

    for address, _ in addresses(job):
        assert superuser.get(address).status_code in (200, 302), address

    assert everything() == before


# Queues.


def test_the_queues_and_their_numbers(operator, monkeypatch):
    monkeypatch.setattr(queues, "MOST", 2)
    for _ in range(3):
        ready(queue="mail", now=None)
    ready(queue="mail", priority=5, due_at=datetime(2040, 1, 1, tzinfo=UTC))
    claimed(queue="busy")

    lines = {
        line["name"]: line["numbers"] for line in operator.get(url("pause", "changelist")).context["queues"]
    }

    assert lines["mail"] == ["3+", "2+", "0"]
    assert lines["busy"] == ["0", "0", "1"]


def test_pause_and_resume_say_what_they_did(operator):
    calls = [
        ("pause", "queue", "mail", "The queue mail is paused."),
        ("pause", "queue", "mail", "Nothing was changed: The queue mail was paused already."),
        ("pause", "name", "shop.send", "The job name shop.send is paused."),
        ("resume", "queue", "mail", "The queue mail goes on."),
        ("resume", "queue", "mail", "Nothing was changed: The queue mail was not paused."),
        ("pause", "queue", "", "The queue name"),
        ("pause", "name", "n" * 256, "The job name"),
    ]
    for verb, kind, target, said in calls:
        response = operator.post(url("pause", verb), {"kind": kind, "target": target}, follow=True)
        assert told(response)[0].startswith(said)
        assert response.redirect_chain == [(url("pause", "changelist"), 302)]

    page = response.content.decode()
    assert "shop.send" in page
    assert re.search(r"by \d+ operator", page)
    assert Action.objects.count() == 5
    listed = operator.get(url("action", "changelist")).content.decode()
    assert "shop.send" in listed
    assert "already paused" in listed


def test_names_of_queues_are_no_markup(operator):
    markup = "<script>alert(1)</script>"
    ready(queue=markup)
    pause.pause(Pause.Kind.QUEUE, markup, actor=markup, using="default")
    pause.pause(Pause.Kind.NAME, markup, using="default")

    response = operator.post(url("pause", "pause"), {"kind": "queue", "target": markup}, follow=True)

    assert markup not in response.content.decode()


@pytest.mark.django_db(databases=["default", "other"])
def test_another_database_and_another_language(superuser):
    ready(using="other", queue="mail")
    with override_settings(BACKWAVE={"DATABASE": "other"}, LANGUAGE_CODE="ar"):
        superuser.post(url("pause", "pause"), {"kind": "queue", "target": "mail"})
        page = superuser.get(url("pause", "changelist"))
        assert [line["numbers"][0] for line in page.context["queues"] if line["name"] == "mail"] == ["1"]
        superuser.post(url("job", "matching_cancel") + "?queue=mail")
    assert Pause.objects.using("other").count() == 1
    assert Job.objects.using("other").get().state == JobState.CANCELLED


# All that match.


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(matching, "SLICE", 2)
    monkeypatch.setattr(pages, "SLICES", 2)


def form_of(response):
    """Return what the page's form would send."""
    text = response.content.decode().partition("content-main")[2]
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text)
    return {name: unescape(value) for name, value in fields if name != "csrfmiddlewaretoken"}


def offered(client, query=""):
    return dict(client.get(url("job", "changelist") + query).context["matching_links"])


def test_the_list_offers_what_fits_its_filters(superuser, canceller):
    ready()
    cancel, requeue = url("job", "matching_cancel"), url("job", "matching_requeue")

    assert offered(superuser, "?queue=mail") == {
        "Cancel all…": f"{cancel}?queue=mail",
        "Requeue all…": f"{requeue}?queue=mail",
    }
    assert list(offered(superuser, "?state=ready")) == ["Cancel all…"]
    assert list(offered(superuser, "?state=dead-lettered&name=x")) == ["Requeue all…"]
    assert list(offered(superuser, "?state=succeeded")) == []
    assert list(offered(canceller)) == ["Cancel all…"]
    assert offered(superuser, "?q=0190a0a0-0000-7000-8000-000000000000") == {}


def test_the_number_is_stated_before_anything_is_done(superuser, monkeypatch):
    for _ in range(3):
        ready(queue="mail")
    ready(queue="other"), ready(queue="mail", state=JobState.SUCCEEDED)

    page = superuser.get(url("job", "matching_cancel") + "?queue=mail&name=send").content.decode()
    assert "<strong>3 jobs</strong>" in page
    assert "Name contains" in page
    assert "No filter is set" in superuser.get(url("job", "matching_cancel")).content.decode()
    monkeypatch.setattr(matching, "MOST_COUNTED", 2)
    page = superuser.get(url("job", "matching_cancel") + "?queue=mail").content.decode()
    assert "At least 2 jobs" in page
    assert Job.objects.filter(state=JobState.CANCELLED).count() == 0


@pytest.mark.usefixtures("small")
def test_it_is_done_slice_by_slice_until_nothing_is_left(superuser):
    for _ in range(9):
        ready(queue="mail")
    other = ready(queue="other")
    address = url("job", "matching_cancel") + "?queue=mail"

    first = superuser.post(address)
    assert first.status_code == 200
    assert "4 cancelled" in first.content.decode()
    assert "Continue" in first.content.decode()
    second = superuser.post(address, form_of(first))
    assert form_of(second)["CANCELLED"] == "8"
    last = superuser.post(address, form_of(second), follow=True)

    assert told(last) == ["9 cancelled"]
    assert last.redirect_chain == [(url("job", "changelist") + "?queue=mail", 302)]
    assert row(other).state == JobState.READY
    assert Action.objects.filter(verb="cancel").count() == LogEntry.objects.count() == 9


@pytest.mark.usefixtures("small")
def test_requeue_keeps_what_was_chosen_in_every_request(superuser):
    for _ in range(5):
        ready(state=JobState.DEAD_LETTERED, failures=2)
    address = url("job", "matching_requeue")

    first = superuser.post(address, {"keep_failures": "on"})
    superuser.post(address, form_of(first))

    assert set(Job.objects.values_list("state", "failures")) == {(JobState.READY, 2)}


def test_nothing_matches(superuser):
    assert told(superuser.post(url("job", "matching_cancel"), follow=True)) == ["Nothing matched."]


@pytest.mark.parametrize(
    "query", ["?payload__contains=s", "?q=1", "?state=nonsense", "?queue=a%00b", "?priority=0"]
)
def test_other_filters_are_refused(superuser, query):
    job = ready()

    assert superuser.get(url("job", "matching_cancel") + query).status_code == 400
    assert superuser.post(url("job", "matching_cancel") + query).status_code == 400
    assert row(job).state == JobState.READY


@pytest.mark.parametrize("form", [{"before": "nonsense"}, {"CANCELLED": "x"}])
def test_a_broken_form_is_refused(superuser, form):
    assert superuser.post(url("job", "matching_cancel"), form).status_code == 400


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("small")
def test_slices_are_transactions_of_their_own_also_with_atomic_requests(monkeypatch):
    superuser = staff("root", superuser=True)
    for _ in range(3):
        ready(queue="mail")
    steps = []

    def second_fails(*args, **options):
        steps.append(1)
        if len(steps) == 2:
            raise ZeroDivisionError
        return cancel_step(*args, **options)

    cancel_step = matching.cancel_step
    monkeypatch.setattr(matching, "cancel_step", second_fails)
    settings = connections["default"].settings_dict
    try:
        settings["ATOMIC_REQUESTS"] = True
        with pytest.raises(ZeroDivisionError):
            superuser.post(url("job", "matching_cancel"))
    finally:
        settings["ATOMIC_REQUESTS"] = False

    assert Job.objects.filter(state=JobState.CANCELLED).count() == Action.objects.count() == 2
