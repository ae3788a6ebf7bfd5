"""Configuration of the application that the tests play with."""

from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """Registers the models below under the label `app`."""

    name = "tests.app"
    label = "app"
    default_auto_field = "django.db.models.BigAutoField"
