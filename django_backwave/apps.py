"""The app's entry in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class BackWaveConfig(AppConfig):
    """Registers the models and the system checks; imports no job modules (workers do)."""

    name = "django_backwave"
    verbose_name = _("BackWave")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from django_backwave import checks  # noqa: F401 - importing registers them
