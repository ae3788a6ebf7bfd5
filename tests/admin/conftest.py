"""Who looks at the admin, and what lies there to be seen."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_backwave.core.outcome import ErrorInfo, Failed, Succeeded, Unroutable
from django_backwave.models import Job
from tests.factories import claimed, ready, reclaimed, report, send

#: What nobody may read without `view_payload`, in every place that holds text of a job's own.
SECRETS = {
    "payload": "s3cret-argument",
    "output": "s3cret-output",
    "cause": "s3cret-cause",
    "message": "s3cret-message",
    "traceback": "s3cret-traceback",
}
VIEWS = ("view_job", "view_lease", "view_worker", "view_action")
PAYLOAD = f'{{"args":["{SECRETS["payload"]}"],"kwargs":{{}}}}'


def url(model: str, page: str, *args: object) -> str:
    """Return the address of a page of ours."""
    return reverse(f"admin:django_backwave_{model}_{page}", args=args)


def staff(name: str, *permissions: str, superuser: bool = False) -> Client:
    """Return a browser in which a new member of staff is logged in."""
    user = User.objects.create_user(name, password="x", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert user.user_permissions.count() == len(permissions)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def superuser(db) -> Client:
    return staff("root", superuser=True)


@pytest.fixture
def viewer(db) -> Client:
    """Sees every page, and may do nothing."""
    return staff("viewer", *VIEWS)


@pytest.fixture
def canceller(db) -> Client:
    """Sees every page, and may cancel."""
    return staff("canceller", *VIEWS, "cancel_job")


@pytest.fixture
def nobody(db) -> Client:
    """Is staff, without any permission."""
    return staff("nobody")


def told(response) -> list[str]:
    """Return the messages on the page that a response leads to."""
    return [str(message) for message in response.context["messages"]]


def secretive(kind: str) -> Job:
    """Return a job that holds a secret in each of its texts, in some state."""
    error = ErrorInfo(
        class_path="shop.OutOfStock", message=SECRETS["message"], traceback=SECRETS["traceback"]
    )
    if kind == "ready":
        return ready(payload=PAYLOAD, cause=SECRETS["cause"])
    job = claimed(payload=PAYLOAD, cause=SECRETS["cause"], max_attempts=1 if kind == "dead" else 3)
    if kind == "succeeded":
        send(report(job, Succeeded(f'"{SECRETS["output"]}"')))
    elif kind == "dead":
        send(report(job, Failed(error)))
    elif kind == "unroutable":
        send(report(job, Unroutable(SECRETS["cause"])))
    elif kind == "running again":
        send(report(job, Failed(error)))
        Job.objects.filter(pk=job.job_id).update(due_at=Job.objects.get(pk=job.job_id).enqueued_at)
        reclaimed(job)
    Job.objects.filter(pk=job.job_id).exclude(cause="").update(cause=SECRETS["cause"])
    return Job.objects.get(pk=job.job_id)


KINDS = ("ready", "running", "running again", "succeeded", "dead", "unroutable")
