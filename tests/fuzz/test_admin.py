"""Hostile addresses and forms for the admin: a page, a redirect or a 4xx, never a 500.

Django's test client raises what a view does not catch, so a traceback fails the test by itself.
"""

from __future__ import annotations

import pytest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from hypothesis import example, given
from hypothesis import strategies as st

from django_backwave.models import Job
from tests.admin.conftest import staff
from tests.factories import claimed, ready
from tests.fuzz.cases import ODD, fuzz, texts

pytestmark = pytest.mark.django_db

MODELS = ("job", "lease", "worker", "action")

PARAMETERS = (
    "q", "state", "queue", "name", "tag", "p", "o", "all", "e", "before", "after", "start", "from", "page",
    "forward", "back", "_popup", "_to_field", "_facets", "_changelist_filters", "due_at__gt", "payload",
    "id__exact", "state__exact", "enqueued_at__year", "worker__in", "pk", "date", "show",
)  # fmt: skip

#: What pages of ours write into addresses themselves, with something wrong in it.
TOKENS = [
    "2026-01-01T00:00:00Z~00000000-0000-0000-0000-000000000000",
    "=2026-01-01T00:00:00Z~00000000-0000-0000-0000-000000000000",
    "0001-01-01T00:00:00+14:00~00000000-0000-0000-0000-000000000000",
    "9999-12-31T23:59:59-14:00~00000000-0000-0000-0000-000000000000",
    "~00000000-0000-0000-0000-000000000000",
    "~",
    "2026-01-01T00:00:00Z~",
    "~\0",
    f"~{2**200}",
    "ready",
    "running",
    "dead-lettered",
    "customer:7",
    "=",
]

#: What fits into an address or a form: no browser can send a lone surrogate, and the client here neither.
sendable = (texts | st.sampled_from(TOKENS)).map(lambda text: text.encode(errors="replace").decode())
queries = st.dictionaries(
    st.sampled_from(PARAMETERS) | sendable, sendable | st.lists(sendable, max_size=2), max_size=4
)


@pytest.fixture
def root(db):
    ready(queue="mail")
    claimed()
    return staff("root", superuser=True)


def polite(response) -> bool:
    return response.status_code < 500


@fuzz(0.1)
@given(data=st.data())
def _lists(client, data):
    model = data.draw(st.sampled_from(MODELS))
    query = urlencode(data.draw(queries), doseq=True)
    address = reverse(f"admin:django_backwave_{model}_changelist")
    assert polite(client.get(f"{address}?{query}"))


def test_lists_take_any_query(root):
    _lists(root)


@fuzz(0.03)
@given(data=st.data())
def _pages(client, data):
    model = data.draw(st.sampled_from(MODELS))
    key, query = data.draw(sendable), urlencode(data.draw(queries), doseq=True)
    page = data.draw(st.sampled_from(["change", "history", "delete"]))
    try:
        address = reverse(f"admin:django_backwave_{model}_{page}", args=[key])
    except NoReverseMatch:
        return  # no address has that
    assert polite(client.get(f"{address}?{query}"))


def test_pages_take_any_key(root):
    _pages(root)


forms = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["cancel_selected", "requeue_selected"]) | sendable,
        "_selected_action": st.lists(sendable, max_size=4),
    },
    optional={
        "index": sendable,
        "select_across": sendable,
        "before": sendable,
        "keep_failures": sendable,
        "CANCELLED": sendable,
        "REQUEUED": sendable,
    },
)


@fuzz(0.06)
@given(data=st.data())
def _actions(client, data):
    address = reverse("admin:django_backwave_job_changelist")
    query = urlencode(data.draw(queries), doseq=True)
    assert polite(client.post(f"{address}?{query}", data.draw(forms), follow=False))


def test_actions_take_any_selection(root):
    jobs = Job.objects.count()
    _actions(root)
    assert Job.objects.count() == jobs


VERBS = ("cancel", "requeue", "reschedule", "run_now", "change_queue", "pause", "resume", "operate")
fields = st.dictionaries(
    st.sampled_from(["due_at", "due", "priority", "queue", "name", "kind", "verb", "reset", "before"])
    | sendable,
    sendable,
    max_size=4,
)


def operator_addresses() -> list[str]:
    """Return the names of our own views that take a POST."""
    from django.contrib import admin

    names = [pattern.name or "" for pattern in admin.site.get_urls()[-1].url_patterns] if False else []
    for model_admin in admin.site._registry.values():
        if model_admin.opts.app_label == "django_backwave":
            names += [pattern.name for pattern in model_admin.get_urls() if pattern.name]
    return sorted({name for name in names if name})


@fuzz(0.06)
@given(data=st.data())
@example(data=None)
def _operator(client, data):
    if data is None:
        return
    name = data.draw(st.sampled_from(operator_addresses()))
    key = data.draw(
        st.sampled_from([str(job) for job in Job.objects.values_list("pk", flat=True)]) | sendable
    )
    for arguments in ([key], []):
        try:
            address = reverse(f"admin:{name}", args=arguments)
        except NoReverseMatch:
            continue
        query = urlencode(data.draw(queries), doseq=True)
        send = data.draw(st.sampled_from([client.get, client.post]))
        if send == client.get:
            assert polite(client.get(f"{address}?{query}"))
        else:
            assert polite(client.post(f"{address}?{query}", data.draw(fields)))


def test_operators_views_take_any_form(root):
    _operator(root)


@pytest.mark.parametrize(
    "text",
    [text for text in ODD if "\ud800" not in text],
    ids=range(len([text for text in ODD if "\ud800" not in text])),
)
def test_each_oddity_once_in_each_place(root, text):
    """What chance may not draw."""
    text = text.encode(errors="replace").decode()
    for model in MODELS:
        address = reverse(f"admin:django_backwave_{model}_changelist")
        for parameter in ("q", "state", "queue", "name", "tag", "before", "after", "start"):
            assert polite(root.get(f"{address}?{urlencode({parameter: text})}"))
