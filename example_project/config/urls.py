"""The URLs of the project: the shop is all there is."""

from django.urls import include, path

urlpatterns = [path("", include("shop.urls"))]
