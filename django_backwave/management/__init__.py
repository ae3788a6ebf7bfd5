"""Django's management commands of this app."""
