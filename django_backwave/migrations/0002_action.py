"""Operator actions, recorded with their effect."""

from django.db import migrations, models

import django_backwave.models.fields


class Migration(migrations.Migration):
    """Creates the table of actions."""

    dependencies = [
        ("django_backwave", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Action",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", django_backwave.models.fields.InstantField(verbose_name="at")),
                ("actor", django_backwave.models.fields.ExactCharField(max_length=255, verbose_name="actor")),
                ("verb", models.CharField(max_length=20, verbose_name="action")),
                ("job_id", models.UUIDField(db_index=True, null=True, verbose_name="job")),
                (
                    "queue",
                    django_backwave.models.fields.ExactCharField(
                        blank=True, default="", max_length=100, verbose_name="queue"
                    ),
                ),
                ("result", models.CharField(blank=True, default="", max_length=100, verbose_name="result")),
            ],
            options={
                "verbose_name": "action",
                "verbose_name_plural": "actions",
            },
        ),
    ]
