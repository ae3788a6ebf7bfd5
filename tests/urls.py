"""The URLs of the test project: only Django's admin, where operators meet the jobs."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
