"""The shop's views under the shop's own settings; tests/example/test_views.py runs pytest on this."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from shop import views
from shop.jobs import pack_parcel, send_receipt
from shop.models import Order

from django_backwave import JobState
from django_backwave.models import Job

pytestmark = pytest.mark.django_db

FORM = {"email": "ada@example.com", "item": "lamp", "quantity": 2}


def place(client: Client, **more: str) -> Order:
    answer = client.post(reverse("shop:place_order"), FORM | more)
    order = Order.objects.latest("pk")
    assert answer.status_code == 302
    assert answer["Location"] == f"/#order-{order.pk}"
    return order


def newest(client: Client) -> str:
    answer = client.get(reverse("shop:newest_orders"))
    assert answer.status_code == 200
    return str(answer.content.decode())


def told(client: Client) -> list[str]:
    return [str(message) for message in client.get("/").context["messages"]]


def settle(job: Any, state: JobState, **values: Any) -> None:
    """Put a job into a state, as a worker would."""
    now = timezone.now()
    values = {"finished_at": now, "attempt": 1, "started_at": now, "lease_expires_at": None} | values
    if state is JobState.RUNNING:
        values |= {"finished_at": None, "lease_expires_at": timezone.now() + timedelta(minutes=1)}
    assert Job.objects.filter(pk=job).update(state=state.value, **values) == 1


def test_an_order_and_its_job(client: Client) -> None:
    order = place(client)

    assert (order.email, order.quantity, order.amount) == ("ada@example.com", 2, 7800)
    job = Job.objects.get()
    assert (job.pk, job.name, job.payload["args"]) == (
        order.receipt_job,
        send_receipt.job_name,
        [order.pk],
    )
    assert told(client) == [f"Order {order.pk} was placed."]


def test_an_order_that_is_packed_too(client: Client) -> None:
    order = place(client, pack="1")

    assert Job.objects.get(pk=order.parcel_job).name == pack_parcel.job_name
    assert Job.objects.count() == 2


def test_a_failure_afterwards_leaves_neither(client: Client) -> None:
    answer = client.post(reverse("shop:place_order"), FORM | {"fail": "1"})

    assert answer.status_code == 409
    assert not Order.objects.exists()
    assert not Job.objects.exists()
    text = " ".join(answer.content.decode().split())
    assert "The last lamp has just been sold. Nothing was written." in text
    assert "Looked for again: 0 orders and 0 jobs found." in text
    assert 'value="ada@example.com"' in text, "the form keeps what was typed"


def test_the_page_would_notice_if_something_was_left(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoTransaction:
        def __enter__(self) -> None: ...

        def __exit__(self, *exc: object) -> None: ...

    monkeypatch.setattr(views.transaction, "atomic", NoTransaction)

    answer = client.post(reverse("shop:place_order"), FORM | {"fail": "1"})

    text = " ".join(answer.content.decode().split())
    assert "Nothing was written" not in text
    assert "1 order and 1 job found." in text


@pytest.mark.parametrize(
    "wrong",
    [{"email": "no address"}, {"email": ""}, {"item": "ship"}, {"quantity": 0}, {"quantity": 100}],
    ids=repr,
)
def test_a_form_that_is_wrong(client: Client, wrong: dict[str, Any]) -> None:
    answer = client.post(reverse("shop:place_order"), FORM | wrong)

    assert answer.status_code == 400
    [field] = wrong
    assert list(answer.context["form"].errors) == [field]
    assert b'aria-invalid="true"' in answer.content
    assert not Order.objects.exists()


def test_an_order_is_packed_once_at_a_time(client: Client) -> None:
    order = place(client)
    for _ in range(2):
        client.post(reverse("shop:pack", args=[order.pk]))

    assert Job.objects.filter(name=pack_parcel.job_name).count() == 1
    assert told(client)[-2:] == [
        f"Order {order.pk} will be packed.",
        f"Order {order.pk} is being packed already.",
    ]

    order.refresh_from_db()
    settle(order.parcel_job, JobState.CANCELLED)
    client.post(reverse("shop:pack", args=[order.pk]))
    assert Job.objects.filter(name=pack_parcel.job_name).count() == 2


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (JobState.READY, "cancelled"),
        (JobState.RUNNING, "asked to stop"),
        (JobState.SUCCEEDED, "already finished"),
        (None, "pruned"),
    ],
)
def test_cancel_says_what_it_did(client: Client, state: JobState | None, says: str) -> None:
    order = place(client, pack="1")
    if state is None:
        Job.objects.all().delete()
    elif state is not JobState.READY:
        settle(order.parcel_job, state)

    client.post(reverse("shop:cancel_packing", args=[order.pk]))

    assert says in told(client)[-1]
    if state is JobState.RUNNING:
        assert 'data-state="running, asked to stop"' in newest(client)
        assert f'id="cancel-{order.pk}"' not in newest(client)


@pytest.mark.parametrize("page", ["pack", "cancel_packing"])
def test_there_is_no_such_order(client: Client, page: str) -> None:
    assert client.post(reverse(f"shop:{page}", args=[1])).status_code == 404


@pytest.mark.parametrize("state", JobState)
def test_the_list_follows_while_a_job_is_unfinished(client: Client, state: JobState) -> None:
    order = place(client)
    settle(order.receipt_job, state, **({} if state.is_terminal else {"finished_at": None}))

    page = newest(client)

    assert f'data-unfinished="{"no" if state.is_terminal else "yes"}"' in page
    assert f'data-state="{state.label}"' in page


def test_what_the_list_says_of_a_job(client: Client) -> None:
    order = place(client)
    assert "waits for a worker" in newest(client)

    now = timezone.now()
    Job.objects.update(failures=2, attempt=3, due_at=now + timedelta(seconds=100), cause="OSError: <no> net")
    page = newest(client)
    assert "attempt 3 · 2 of 5 failures · due in 1 min 3" in page
    assert "cause: OSError: &lt;no&gt; net" in page

    settle(order.receipt_job, JobState.RUNNING, started_at=now - timedelta(seconds=7), attempt=4)
    assert "attempt 4 · 2 of 5 failures · for 7 s" in newest(client)

    settle(
        order.receipt_job,
        JobState.SUCCEEDED,
        started_at=now,
        finished_at=now + timedelta(milliseconds=5),
        attempt=4,
        failures=0,
        cause="",
        output={"receipt": "R-1 <b>"},
    )
    page = newest(client)
    assert "attempt 4 · took under 1 s" in page
    assert "{&quot;receipt&quot;: &quot;R-1 &lt;b&gt;&quot;}" in page

    settle(order.receipt_job, JobState.CANCELLED, attempt=0, started_at=None)
    assert "never started" in newest(client)

    Job.objects.all().delete()
    page = newest(client)
    assert "pruned" in page
    assert 'data-unfinished="no"' in page


def test_the_number_of_queries_does_not_grow(
    client: Client, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "NEWEST", 3)
    for _ in range(5):
        last = place(client, pack="1")

    with django_assert_num_queries(2):
        page = newest(client)

    assert page.count("<article") == 3
    assert "These are the 3 newest." in page
    assert page.index(f'id="order-{last.pk}"') < page.index(f'id="order-{last.pk - 1}"')
    with django_assert_num_queries(2):
        client.get(reverse("shop:orders"))


def test_pages_need_nothing_that_a_strict_policy_refuses(client: Client) -> None:
    place(client)

    answer = client.get(reverse("shop:orders"))

    assert "default-src 'self'" in answer["Content-Security-Policy"]
    text = answer.content.decode()
    for refused in ("<style", "style=", "onclick", "javascript:", "//cdn", "https://"):
        assert refused not in text
    assert text.count("<script") == text.count('<script src="/static/')


def test_posts_need_a_token() -> None:
    strict = Client(enforce_csrf_checks=True)

    assert strict.post(reverse("shop:place_order"), FORM).status_code == 403


def test_what_only_reads_is_not_kept_by_caches(client: Client) -> None:
    for page in ("shop:orders", "shop:newest_orders"):
        assert "no-store" in client.get(reverse(page))["Cache-Control"]
    assert client.get(reverse("shop:place_order")).status_code == 405
