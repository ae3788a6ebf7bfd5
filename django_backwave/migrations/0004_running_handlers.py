"""What running handlers say and need: tags, progress, headers, marks, pauses, expiry."""

import django.db.models.deletion
from django.db import migrations, models

import django_backwave.models.fields
import django_backwave.models.indexes


class Migration(migrations.Migration):
    """Adds tables and nullable columns only: code that does not know them goes on."""

    dependencies = [
        ("django_backwave", "0003_permissions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Mark",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", django_backwave.models.fields.ExactCharField(max_length=100, verbose_name="name")),
                ("attempt", models.PositiveIntegerField(verbose_name="attempt")),
                ("begun_at", django_backwave.models.fields.InstantField(verbose_name="begun at")),
                ("done_at", django_backwave.models.fields.InstantField(null=True, verbose_name="done at")),
                ("result", django_backwave.models.fields.JSONTextField(null=True, verbose_name="result")),
            ],
            options={
                "verbose_name": "mark",
                "verbose_name_plural": "marks",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("queue", "queue"), ("name", "job name")], max_length=5, verbose_name="kind"
                    ),
                ),
                (
                    "target",
                    django_backwave.models.fields.ExactCharField(
                        max_length=255, verbose_name="queue or job name"
                    ),
                ),
                ("at", django_backwave.models.fields.InstantField(verbose_name="since")),
                (
                    "actor",
                    django_backwave.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="actor"
                    ),
                ),
            ],
            options={
                "verbose_name": "pause",
                "verbose_name_plural": "pauses",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Tag",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "key",
                    django_backwave.models.fields.ExactCharField(
                        blank=True, default="", max_length=50, verbose_name="key"
                    ),
                ),
                ("value", django_backwave.models.fields.ExactCharField(max_length=100, verbose_name="value")),
            ],
            options={
                "verbose_name": "tag",
                "verbose_name_plural": "tags",
                "default_permissions": ("view",),
            },
        ),
        migrations.AddField(
            model_name="job",
            name="headers",
            field=django_backwave.models.fields.JSONTextField(null=True, verbose_name="headers"),
        ),
        migrations.AddField(
            model_name="job",
            name="progress",
            field=django_backwave.models.fields.JSONTextField(null=True, verbose_name="progress"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=django_backwave.models.indexes.PresentIndex(
                fields=["expires_at"], name="backwave_expiry", states=[0, 1]
            ),
        ),
        migrations.AddField(
            model_name="mark",
            name="job",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="marks",
                to="django_backwave.job",
                verbose_name="job",
            ),
        ),
        migrations.AddConstraint(
            model_name="pause",
            constraint=models.UniqueConstraint(fields=("kind", "target"), name="backwave_pause"),
        ),
        migrations.AddField(
            model_name="tag",
            name="job",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="tags",
                to="django_backwave.job",
                verbose_name="job",
            ),
        ),
        migrations.AddConstraint(
            model_name="mark",
            constraint=models.UniqueConstraint(fields=("job", "name"), name="backwave_mark"),
        ),
        migrations.AddIndex(
            model_name="tag",
            index=models.Index(fields=["key", "value", "job"], name="backwave_tag_word"),
        ),
        migrations.AddConstraint(
            model_name="tag",
            constraint=models.UniqueConstraint(fields=("job", "key", "value"), name="backwave_tag"),
        ),
    ]
