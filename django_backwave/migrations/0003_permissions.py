"""Operators' own permissions; rows are not added, changed or deleted by hand."""

from django.db import migrations


class Migration(migrations.Migration):
    """Changes no table: permissions are rows, which Django makes after it migrated."""

    dependencies = [
        ("django_backwave", "0002_action"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="action",
            options={
                "default_permissions": ("view",),
                "verbose_name": "action",
                "verbose_name_plural": "actions",
            },
        ),
        migrations.AlterModelOptions(
            name="attempt",
            options={
                "default_permissions": ("view",),
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
            },
        ),
        migrations.AlterModelOptions(
            name="job",
            options={
                "default_permissions": ("view",),
                "permissions": (
                    ("view_payload", "Can view payload, output and errors of jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("requeue_job", "Can requeue jobs"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AlterModelOptions(
            name="lease",
            options={
                "default_permissions": ("view",),
                "verbose_name": "lease",
                "verbose_name_plural": "leases",
            },
        ),
        migrations.AlterModelOptions(
            name="worker",
            options={
                "default_permissions": ("view",),
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
            },
        ),
    ]
