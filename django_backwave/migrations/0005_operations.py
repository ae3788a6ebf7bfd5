"""What operators do beside cancel and requeue: a permission, and job names in the record of actions."""

from django.db import migrations

import django_backwave.models.fields


class Migration(migrations.Migration):
    """Adds one column with a default of the database: code that does not know it goes on."""

    dependencies = [
        ("django_backwave", "0004_running_handlers"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="job",
            options={
                "default_permissions": ("view",),
                "permissions": (
                    ("view_payload", "Can view payload, output and errors of jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("requeue_job", "Can requeue jobs"),
                    ("operate_job", "Can reschedule and change jobs, and pause queues and job names"),
                ),
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AlterModelOptions(
            name="pause",
            options={
                "default_permissions": ("view",),
                "verbose_name": "pause",
                "verbose_name_plural": "queues and pauses",
            },
        ),
        migrations.AddField(
            model_name="action",
            name="name",
            field=django_backwave.models.fields.ExactCharField(
                blank=True, db_default="", default="", max_length=255, verbose_name="job name"
            ),
        ),
    ]
