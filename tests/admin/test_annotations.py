"""Tags, progress and headers in the admin: who sees what, and how jobs with a tag are found."""

from __future__ import annotations

import pytest

from django_backwave.admin import filters
from django_backwave.models import Job
from django_backwave.notes import Progress
from tests.admin.conftest import staff, told, url
from tests.factories import NOW, claimed, ready, report, send

pytestmark = pytest.mark.django_db

SECRETS = ("s3cret-header", "s3cret-label", "s3cret-key=s3cret-value", "s3cret-message")


@pytest.fixture
def job():
    job = claimed(
        headers='{"h":"s3cret-header"}', tags=(("", "s3cret-label"), ("s3cret-key", "s3cret-value"))
    )
    say(job.job_id, Progress(3, 12, "s3cret-message"))
    return Job.objects.get(pk=job.job_id)


def say(job_id, progress):
    at = NOW.isoformat()
    Job.objects.filter(pk=job_id).update(progress=progress._asdict() | {"at": at})


def page(client, job):
    return client.get(url("job", "change", job.pk)).content.decode()


def listed(client, **query):
    response = client.get(url("job", "changelist"), query)
    assert response.status_code == 200, response
    return [row.pk for row in response.context["cl"].result_list]


def test_the_page_shows_them_to_who_may_see_payloads(superuser, job):
    text = page(superuser, job)

    assert [secret for secret in SECRETS if secret not in text] == []
    assert (
        '<progress class="bw-progress" max="100" value="25" aria-label="progress">25 %</progress> 3 of 12'
        in text
    )


def test_the_page_shows_others_the_bar_alone(viewer, job):
    text = page(viewer, job)

    assert [secret for secret in SECRETS if secret.partition("=")[0] in text] == []
    assert 'value="25"' in text
    assert "hidden: needs the permission django_backwave.view_payload" in text


def test_the_list_shows_the_bar_of_a_running_job(viewer, job):
    response = viewer.get(url("job", "changelist")).content.decode()
    assert 'max="100" value="25" aria-label="progress"' in response
    assert "s3cret" not in response

    send(report(claimed(), progress=Progress(1, 2, "").encoded(NOW)))
    Job.objects.filter(pk=job.pk).update(progress=None)
    assert "<progress" not in viewer.get(url("job", "changelist")).content.decode()


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        (Progress(1500, None, ""), "1,500 done"),
        (Progress(0, 0, ""), 'value="100"'),
        (Progress(12, 10, ""), 'value="100"'),
        (Progress(0.5, 2, ""), "0.5 of 2"),
    ],
)
def test_how_progress_reads(viewer, job, progress, shown):
    say(job.pk, progress)
    assert shown in page(viewer, job)


def test_a_column_that_somebody_wrote_by_hand_breaks_no_page(superuser, job):
    Job.objects.filter(pk=job.pk).update(progress=["?"], headers=["?"])
    assert "<progress" not in page(superuser, job)
    assert listed(superuser) == [job.pk]


@pytest.fixture
def tagged():
    tags = [(("", "vip"),), (("customer", "7"),), (("customer", "7"), ("", "vip")), ()]
    return [ready(tags=each, queue=f"queue-{n}").pk for n, each in enumerate(tags)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vip", [2, 0]),
        ("customer=7", [2, 1]),
        (" vip ", [2, 0]),
        ("customer", []),
        ("VIP", []),
        ("7", []),
        ("=vip", [2, 0]),
    ],
)
def test_jobs_are_found_by_a_tag(superuser, tagged, text, found):
    assert listed(superuser, tag=text) == [tagged[n] for n in found]


def test_a_tag_goes_with_the_other_filters(superuser, tagged):
    assert listed(superuser, tag="vip", queue="queue-2") == [tagged[2]]
    assert listed(superuser, tag="vip", state="ready") == [tagged[2], tagged[0]]
    assert listed(superuser, tag="vip", state="running") == []
    assert listed(superuser, tag="vip", name="receipt") == [tagged[2], tagged[0]]
    assert listed(superuser, tag="vip", name="label") == []


def test_a_common_tag_lists_the_newest_and_says_so(superuser, tagged, monkeypatch):
    """Whatever the number of jobs with it, so many are read."""
    monkeypatch.setattr(filters, "MOST_TAGGED", 1)

    response = superuser.get(url("job", "changelist"), {"tag": "vip"})
    assert [row.pk for row in response.context["cl"].result_list] == [tagged[2]]
    assert told(response) == ["Only the newest 1 jobs with this tag are shown."]


def test_a_tag_is_not_offered_to_who_may_not_see_payloads(viewer, tagged):
    """Else it could be guessed letter by letter."""
    assert (
        "tag" not in viewer.get(url("job", "changelist")).content.decode().partition("changelist-filter")[2]
    )
    assert viewer.get(url("job", "changelist"), {"tag": "vip"}).status_code in (302, 400)
    seer = staff("seer", "view_job", "view_payload")
    assert listed(seer, tag="vip") == [tagged[2], tagged[0]]


def test_nothing_is_done_to_all_that_have_a_tag(superuser, tagged):
    """The page for that knows no tags, and must not leave them out."""
    text = superuser.get(url("job", "changelist"), {"tag": "vip"}).content.decode()
    assert "bw-matching" not in text
