"""A page that enqueues, and the pages of the packages."""

from debug_toolbar.toolbar import debug_toolbar_urls
from django.contrib import admin
from django.http import HttpResponse
from django.urls import include, path


def always(request):
    return True


def enqueue(request):
    from tests.contract.third_parties.tasks import add

    add.enqueue(1, b=2)
    add.using(priority=5).enqueue([1], [2])
    return HttpResponse("<html><body>Done.</body></html>")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("enqueue/", enqueue),
    path("taskly/", include("django_taskly.urls")),
    *debug_toolbar_urls(),
]
