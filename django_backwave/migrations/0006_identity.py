"""Keys and generations, operations, schemas: nullable columns, so that older code goes on."""

from django.db import migrations, models

import django_backwave.ids
import django_backwave.models.fields
import django_backwave.models.indexes


class Migration(migrations.Migration):
    """Adds two tables, and four columns to the jobs; no row is read or rewritten."""

    dependencies = [
        ("django_backwave", "0005_operations"),
    ]

    operations = [
        migrations.CreateModel(
            name="Key",
            fields=[
                (
                    "id",
                    models.UUIDField(editable=False, primary_key=True, serialize=False, verbose_name="id"),
                ),
                ("queue", django_backwave.models.fields.ExactCharField(max_length=100, verbose_name="queue")),
                ("key", django_backwave.models.fields.ExactCharField(max_length=255, verbose_name="key")),
                ("name", django_backwave.models.fields.ExactCharField(max_length=255, verbose_name="name")),
                ("generation", models.PositiveIntegerField(verbose_name="generation")),
                ("job_id", models.UUIDField(verbose_name="job")),
                ("enqueued_at", django_backwave.models.fields.InstantField(verbose_name="enqueued at")),
                (
                    "forget_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="forget at"),
                ),
                ("used_at", django_backwave.models.fields.InstantField(verbose_name="used at")),
                ("settled_as", models.SmallIntegerField(null=True, verbose_name="settled as")),
            ],
            options={
                "verbose_name": "key",
                "verbose_name_plural": "keys",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Operation",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_backwave.ids.new_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                        verbose_name="id",
                    ),
                ),
                ("digest", models.CharField(max_length=64, verbose_name="digest")),
                ("job_id", models.UUIDField(null=True, verbose_name="job")),
                ("generation", models.PositiveIntegerField(null=True, verbose_name="generation")),
                ("created", models.BooleanField(default=False, verbose_name="created")),
                ("recorded_at", django_backwave.models.fields.InstantField(verbose_name="recorded at")),
                ("deadline", django_backwave.models.fields.InstantField(verbose_name="deadline")),
            ],
            options={
                "verbose_name": "operation",
                "verbose_name_plural": "operations",
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="job",
            name="awaited",
            field=models.BooleanField(null=True, verbose_name="awaited"),
        ),
        migrations.AddField(
            model_name="job",
            name="generation",
            field=models.PositiveIntegerField(null=True, verbose_name="generation"),
        ),
        migrations.AddField(
            model_name="job",
            name="key",
            field=django_backwave.models.fields.ExactCharField(max_length=255, null=True, verbose_name="key"),
        ),
        migrations.AddField(
            model_name="job",
            name="schema",
            field=django_backwave.models.fields.ExactCharField(
                max_length=100, null=True, verbose_name="schema"
            ),
        ),
        migrations.AddIndex(
            model_name="key",
            index=django_backwave.models.indexes.FilledIndex(
                fields=["settled_as", "forget_at"], name="backwave_key_forget"
            ),
        ),
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(fields=["deadline"], name="backwave_operation_deadline"),
        ),
    ]
