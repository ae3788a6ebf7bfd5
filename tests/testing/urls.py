"""Views that enqueue."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.testing.handlers import note


def order(request: HttpRequest, fails: str) -> HttpResponse:
    """Enqueue a job, and fail or not."""
    note.enqueue("from the view")
    if fails == "yes":
        raise ValueError("after the enqueue")
    return HttpResponse("ok")


urlpatterns = [path("order/<str:fails>", order)]
