"""Pages by key: every row once, there and back, for every filter; nothing is counted."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib.admin.sites import site
from django.test import RequestFactory

from django_backwave.admin import jobs as jobs_admin
from django_backwave.admin import paging
from django_backwave.admin.jobs import JobAdmin
from django_backwave.core.states import JobState
from django_backwave.models import Job
from tests.admin.conftest import url
from tests.factories import NOW, after, claimed, ready

pytestmark = pytest.mark.django_db

JOBS = "/admin/django_backwave/job/"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 4)


def fetch(client, address):
    """Return the ids on a page, and where its two links lead."""
    response = client.get(address)
    assert response.status_code == 200
    page = response.content.decode()
    links = {
        rel: unescape(found[1])
        for rel in ("prev", "next")
        if (found := re.search(rf'rel="{rel}" href="([^"]*)"', page))
    }
    ids = [job.pk for job in response.context["cl"].result_list]
    return ids, links.get("prev"), links.get("next")


def walk(client, query=""):
    """Follow the links to the end and back to the beginning; return the pages there and back."""
    there, address = [], JOBS + query
    while True:
        ids, _, following = fetch(client, address)
        there.append(ids)
        if following is None:
            break
        address = JOBS + following
        assert len(there) < 50
    back = []
    while True:
        ids, before, _ = fetch(client, address)
        back.append(ids)
        if before is None:
            return there, back[::-1]
        address = JOBS + before
        assert len(back) < 50


def flat(pages):
    return [row for page in pages for row in page]


def by(key, *, reverse=True, **filters):
    rows = Job.objects.filter(**filters)
    return [job.pk for job in sorted(rows, key=lambda job: (key(job), job.pk), reverse=reverse)]


@pytest.fixture
def crowd(db):
    """Make a few jobs of each kind; many of them share an instant."""
    for number in range(3):
        for queue in ("mail", "reports"):
            for priority in (0, 5):
                ready(queue=queue, priority=priority, run_after=after(number // 2))
        for state in (JobState.SUCCEEDED, JobState.CANCELLED):
            for _ in range(2):
                ready(state=state, finished_at=after(number // 2), queue="mail", name=f"shop.job_{number}")
        claimed(lease=60 + number // 2)


QUERIES = {
    "": (lambda job: job.pk, True, {}),
    "?state=succeeded": (lambda job: job.finished_at, True, {"state": 3}),
    "?state=ready": (lambda job: job.due_at, False, {"state": 1}),
    "?state=ready&queue=mail": (lambda job: job.due_at, False, {"state": 1, "queue": "mail"}),
    "?state=ready&name=receipt": (lambda job: job.due_at, False, {"state": 1}),
    "?state=running": (lambda job: job.lease_expires_at, False, {"state": 2}),
    "?state=cancelled&queue=mail": (lambda job: job.finished_at, True, {"state": 4}),
    "?state=waiting": (lambda job: job.pk, True, {"state": 0}),
    "?queue=mail": (lambda job: job.pk, True, {"queue": "mail"}),
    "?name=job_1": (lambda job: job.pk, True, {"name": "shop.job_1"}),
    "?name=job_1&queue=mail&state=succeeded": (
        lambda job: job.finished_at,
        True,
        {"name": "shop.job_1", "state": 3},
    ),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("window", [50_000, 8, 5])
def test_every_row_once_there_and_back(superuser, crowd, monkeypatch, query, window):
    """Whether or not the window ends a page early, no row is missed, and none comes twice."""
    monkeypatch.setattr(paging, "WINDOW", window)
    key, reverse, filters = QUERIES[query]

    there, back = walk(superuser, query)

    expected = by(key, reverse=reverse, **filters)
    assert flat(there) == expected
    assert set(flat(back)) == set(expected)
    if window == 50_000:
        assert back[-1] == there[-1]
        assert flat(back[1:]) == flat(there)[-len(flat(back[1:])) or len(expected) :]


def test_the_way_back_ends_on_a_whole_first_page(superuser, crowd):
    first, _, following = fetch(superuser, JOBS)
    second, before, _ = fetch(superuser, JOBS + following)
    newer = ready()

    assert fetch(superuser, JOBS + before)[0] == first
    assert fetch(superuser, JOBS)[0] == [newer.pk, *first[:3]]
    assert len(second) == 4


def test_too_many_lanes_fall_back_to_the_window(superuser, crowd, monkeypatch):
    monkeypatch.setattr(jobs_admin, "MOST_LANES", 3)

    there, _ = walk(superuser, "?state=ready")

    assert flat(there) == by(lambda job: job.pk, state=1)


def test_a_short_page_says_that_it_goes_on(superuser, monkeypatch):
    monkeypatch.setattr(paging, "WINDOW", 3)
    hit = ready(name="shop.rare")
    for _ in range(5):
        ready()

    response = superuser.get(f"{JOBS}?name=rare")
    assert "0 found. The search can go on from here." in response.content.decode()
    assert "Search on" in response.content.decode()
    assert flat(walk(superuser, "?name=rare")[0]) == [hit.pk]


def test_nothing_is_counted(superuser, crowd, django_assert_max_num_queries):
    for query in QUERIES:
        with django_assert_max_num_queries(24) as queries:
            superuser.get(JOBS + query)
        assert not [sql for sql in (each["sql"] for each in queries.captured_queries) if "COUNT(" in sql]


def test_search_by_the_whole_id(superuser, crowd):
    job = ready()

    for text in (str(job.pk), job.pk.hex, f" {job.pk} "):
        assert fetch(superuser, f"{JOBS}?q={text}")[0] == [job.pk]
    response = superuser.get(f"{JOBS}?q={str(job.pk)[:8]}")
    assert list(response.context["cl"].result_list) == []
    assert "takes a job&#x27;s whole id" in response.content.decode()


@pytest.mark.parametrize(
    "query",
    [
        "state=nonsense",
        "after=nonsense",
        "after=~nonsense",
        "before=2026-01-01T00:00:00Z~0190a0a0-0000-7000-8000-000000000000",
        "state=succeeded&after=~0190a0a0-0000-7000-8000-000000000000",
        "state=succeeded&after=2026-01-01~0190a0a0-0000-7000-8000-000000000000x",
        "state=succeeded&after=0001-01-01T00:00:00%2B14:00~0190a0a0-0000-7000-8000-000000000000",
        "queue=%00",
        "name=%00",
    ],
)
def test_an_address_that_means_nothing_leads_to_the_list(superuser, query):
    response = superuser.get(f"{JOBS}?{query}")

    assert (response.status_code, response.url) == (302, f"{JOBS}?e=1")


def test_unused_parameters_of_django_do_no_harm(superuser, crowd):
    for query in ("p=3", "o=1.-2", "all=", "_facets=True", "_popup=1", "e=1"):
        assert superuser.get(f"{JOBS}?{query}").status_code == 200


def test_queue_suggestions_come_from_ready_jobs_and_workers(superuser, crowd):
    ready(state=JobState.SUCCEEDED, queue="ended-only")

    page = superuser.get(JOBS).content.decode()

    assert '<option value="mail">' in page
    assert "ended-only" not in re.sub("<td.*?</td>", "", page)


def test_autocomplete_and_popups_count_nothing(superuser, crowd, django_assert_max_num_queries):
    """Another app's admin may point at jobs; its autocomplete shows one page, named without secrets."""
    paginator = site.get_model_admin(Job).get_paginator(
        RequestFactory().get("/"), Job.objects.order_by("pk"), 5
    )

    with django_assert_max_num_queries(1):
        page = paginator.page(7)
        assert (len(page.object_list), page.has_next(), paginator.count, paginator.num_pages) == (
            5,
            False,
            5,
            1,
        )


def test_leases_workers_and_actions_page_too(superuser, monkeypatch):
    from django_backwave.admin.leases import LeaseAdmin

    monkeypatch.setattr(LeaseAdmin, "list_per_page", 2)
    jobs = [claimed(lease=60 + number, now=NOW) for number in range(5)]

    seen, address = [], url("lease", "changelist")
    while address:
        ids, _, following = fetch(superuser, address)
        seen += ids
        address = following and url("lease", "changelist") + following

    assert seen == [job.job_id for job in jobs]
