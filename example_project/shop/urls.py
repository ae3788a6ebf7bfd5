"""The URLs of the shop."""

from django.templatetags.static import static
from django.urls import path
from django.utils.functional import lazy
from django.views.generic import RedirectView

from shop import views

app_name = "shop"

urlpatterns = [
    path("", views.orders, name="orders"),
    path("orders/", views.place_order, name="place_order"),
    path("orders/newest/", views.newest_orders, name="newest_orders"),
    path("orders/<int:order_id>/pack/", views.pack, name="pack"),
    path("orders/<int:order_id>/cancel-packing/", views.cancel_packing, name="cancel_packing"),
    # The admin's pages name no icon, so that browsers ask here.
    path("favicon.ico", RedirectView.as_view(url=lazy(static, str)("shop/icon.svg"))),
]
