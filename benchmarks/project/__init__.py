"""A Django project with one task, for every contestant that runs tasks of Django."""
