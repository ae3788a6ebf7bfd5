"""Configuration of the application whose handlers the faults meet."""

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    """Registers the ledger under the label `chaos`."""

    name = "tests.chaos"
    label = "chaos"
    default_auto_field = "django.db.models.BigAutoField"
