"""Cancel and requeue from the admin: who may, what is said, what is written."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client, override_settings

from django_backwave.core.states import TERMINAL, JobState
from django_backwave.ids import new_id
from django_backwave.models import Action, Job
from tests.admin.conftest import VIEWS, staff, told, url
from tests.factories import claimed, contents, ready, report, row, send

pytestmark = pytest.mark.django_db


def run(client, action, *job_ids, query="", **data):
    """Run an admin action on these rows, and return the page that it leads to."""
    selected = [str(job_id) for job_id in job_ids]
    post = {"action": f"{action}_selected", "_selected_action": selected, "index": 0, **data}
    return client.post(url("job", "changelist") + query, post, follow=True)


def press(client, verb, job_id):
    return client.post(url("job", verb, job_id), follow=True)


def offered(client):
    form = client.get(url("job", "changelist")).context["action_form"]
    return [] if form is None else [name for name, _ in form.fields["action"].choices if name]


def logged():
    return [(entry.object_id, entry.change_message) for entry in LogEntry.objects.order_by("pk")]


def done():
    return [
        (action.verb, action.job_id, action.actor, action.result) for action in Action.objects.order_by("pk")
    ]


def actor(name):
    return f"{User.objects.get(username=name).pk} {name}"


def test_cancel_tells_what_happened_by_state(superuser):
    pending = [ready() for _ in range(2)] + [ready(state=JobState.WAITING)]
    running = claimed()
    ended = [ready(state=state) for state in (JobState.SUCCEEDED, JobState.DEAD_LETTERED)]

    response = run(superuser, "cancel", *(job.pk for job in [*pending, *ended]), running.job_id)

    assert told(response) == ["3 cancelled, 1 asked to stop, 2 already finished"]
    assert {row(job).state for job in pending} == {JobState.CANCELLED}
    assert row(running).cancel_requested_at is not None
    assert row(running).state == JobState.RUNNING
    who = actor("root")
    assert set(done()) == {
        *(("cancel", job.pk, who, "cancelled") for job in pending),
        ("cancel", running.job_id, who, "asked to stop"),
    }
    assert set(logged()) == {
        *((str(job.pk), "Cancelled.") for job in pending),
        (str(running.job_id), "Asked to stop."),
    }


def test_requeue_tells_what_happened_by_state(superuser):
    jobs = {state: ready(state=state) for state in TERMINAL}

    response = run(superuser, "requeue", *(job.pk for job in jobs.values()), new_id())

    assert told(response) == ["3 requeued, 1 cannot be requeued, 1 not found"]
    assert row(jobs[JobState.SUCCEEDED]).state == JobState.SUCCEEDED
    assert row(jobs[JobState.DEAD_LETTERED]).state == JobState.READY
    assert {verb for verb, *_ in done()} == {"requeue"}
    assert [message for _, message in logged()] == ["Requeued."] * 3


@pytest.mark.parametrize(
    ("verb", "state", "said"),
    [
        ("cancel", JobState.READY, "The job was cancelled. It had not started and will not run."),
        ("cancel", JobState.RUNNING, "The job is running and was asked to stop."),
        ("cancel", JobState.SUCCEEDED, "Nothing was changed: the job had already finished."),
        ("requeue", JobState.DEAD_LETTERED, "The job was requeued: it is due now."),
        ("requeue", JobState.READY, "Nothing was changed: only dead-lettered, quarantined and cancelled"),
    ],
)
def test_a_button_does_it_and_says_so(superuser, verb, state, said):
    job_id = claimed().job_id if state is JobState.RUNNING else ready(state=state).pk

    response = press(superuser, verb, job_id)

    [message] = told(response)
    assert message.startswith(said)
    assert response.redirect_chain == [(url("job", "change", job_id), 302)]
    changed = not said.startswith("Nothing")
    assert bool(done()) is bool(logged()) is changed
    if changed:
        assert actor("root") in response.content.decode()


def test_a_cancelled_running_job_ends_cancelled(superuser):
    job = claimed()
    press(superuser, "cancel", job.job_id)

    from tests.factories import FAILED

    send(report(job, FAILED))

    assert row(job).state == JobState.CANCELLED


@pytest.mark.parametrize(
    ("state", "buttons"),
    [
        (JobState.READY, (True, False)),
        (JobState.WAITING, (True, False)),
        (JobState.SUCCEEDED, (False, False)),
        (JobState.CANCELLED, (False, True)),
        (JobState.DEAD_LETTERED, (False, True)),
    ],
)
def test_buttons_obey_the_state(superuser, state, buttons):
    page = superuser.get(url("job", "change", ready(state=state).pk)).content.decode()

    assert ("Cancel job" in page, "Requeue job" in page) == buttons


def test_no_second_cancel_is_offered(superuser):
    job = claimed()
    page = press(superuser, "cancel", job.job_id).content.decode()

    assert "asked to stop" in page
    assert "Cancel job" not in page


def test_each_operation_has_its_own_permission(viewer, canceller):
    requeuer = staff("requeuer", *VIEWS, "requeue_job")
    live, dead = ready(), ready(state=JobState.DEAD_LETTERED)

    assert [offered(client) for client in (viewer, canceller, requeuer)] == [
        [],
        ["cancel_selected"],
        ["requeue_selected", "run_again_selected"],
    ]
    for client, may in ((viewer, ()), (canceller, ("cancel",)), (requeuer, ("requeue",))):
        for verb, job in (("cancel", live), ("requeue", dead)):
            page = client.get(url("job", "change", job.pk)).content.decode()
            assert (url("job", verb, job.pk) in page) is (verb in may)
            if verb not in may:
                before = contents()
                assert client.post(url("job", verb, job.pk)).status_code == 403
                run(client, verb, job.pk)
                assert contents() == before
    assert (done(), logged()) == ([], [])

    assert told(run(canceller, "cancel", live.pk)) == ["1 cancelled"]
    assert told(run(requeuer, "requeue", dead.pk)) == ["1 requeued"]


def test_an_operation_without_view_is_refused(db):
    client = staff("blind", "cancel_job")
    job = ready()

    assert client.post(url("job", "cancel", job.pk)).status_code == 403
    assert row(job).state == JobState.READY


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_looking_at_a_button_does_nothing(superuser, verb):
    """After a new login the browser follows the button's address with a GET."""
    job = ready(state=JobState.DEAD_LETTERED if verb == "requeue" else JobState.READY)
    before = contents()

    response = superuser.get(url("job", verb, job.pk))

    assert (response.status_code, response.url) == (302, url("job", "change", job.pk))
    assert contents() == before


def test_a_forged_post_is_refused(superuser):
    job = ready()
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get(username="root"))

    assert client.post(url("job", "cancel", job.pk)).status_code == 403
    assert row(job).state == JobState.READY


def test_select_across_means_the_rows_that_were_ticked(superuser):
    ticked, other = ready(), ready()

    response = run(superuser, "cancel", ticked.pk, select_across=1)

    assert told(response) == ["1 cancelled"]
    assert told(run(superuser, "cancel", select_across=1))[0].startswith("Items must be selected")
    assert row(other).state == JobState.READY


def test_a_row_that_moved_on_is_not_dropped_in_silence(superuser):
    """The list was filtered by a state which the job has left since."""
    job = claimed()

    response = run(superuser, "cancel", job.job_id, query="?state=ready")

    assert told(response) == ["1 asked to stop"]


def test_ids_that_are_none(superuser):
    assert run(superuser, "cancel", "nonsense").status_code == 400
    assert press(superuser, "cancel", new_id()).redirect_chain[0][0] == "/admin/"


def test_the_filters_survive_a_button(superuser):
    job = ready()
    query = "?_changelist_filters=state%3Dready"

    page = superuser.get(url("job", "change", job.pk) + query).content.decode()
    response = superuser.post(url("job", "cancel", job.pk) + query)

    assert f'action="{url("job", "cancel", job.pk)}{query}"' in page
    assert response.url == url("job", "change", job.pk) + query


def test_django_s_history_shows_it(superuser):
    job = ready()
    press(superuser, "cancel", job.pk)

    page = superuser.get(url("job", "history", job.pk)).content.decode()

    assert "Cancelled." in page
    assert "root" in page


@pytest.mark.django_db(transaction=True)
def test_with_atomic_requests():
    superuser = staff("root", superuser=True)
    live, running, dead = ready(), claimed(), ready(state=JobState.DEAD_LETTERED)
    settings = connections["default"].settings_dict

    try:
        settings["ATOMIC_REQUESTS"] = True
        assert told(run(superuser, "cancel", live.pk, running.job_id)) == ["1 cancelled, 1 asked to stop"]
        press(superuser, "requeue", dead.pk)
        for model in ("job", "lease", "worker", "action"):
            assert superuser.get(url(model, "changelist")).status_code == 200
    finally:
        settings["ATOMIC_REQUESTS"] = False

    assert [row(job).state for job in (live, running, dead)] == [4, 2, 1]
    assert len(done()) == len(logged()) == 3


@pytest.mark.django_db(databases=["default", "other"])
def test_on_another_database(superuser):
    job = ready(using="other")

    with override_settings(BACKWAVE={"DATABASE": "other"}):
        response = press(superuser, "cancel", job.pk)
        assert told(response)[0].startswith("The job was cancelled.")
        assert told(run(superuser, "requeue", job.pk)) == ["1 requeued"]

    assert row(job, using="other").state == JobState.READY
    assert Action.objects.using("other").count() == 2
    assert not Action.objects.using("default").exists()
    assert not Job.objects.using("default").exists()
    assert [message for _, message in logged()] == ["Cancelled.", "Requeued."]
