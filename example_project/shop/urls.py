"""The URLs of the shop."""

from django.urls import path

from shop import views

app_name = "shop"

urlpatterns = [
    path("", views.orders, name="orders"),
    path("orders/", views.place_order, name="place_order"),
    path("orders/<int:order_id>/pack/", views.pack, name="pack"),
    path("orders/<int:order_id>/cancel-packing/", views.cancel_packing, name="cancel_packing"),
]
