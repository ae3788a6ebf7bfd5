"""The first schema: jobs with their leases, attempts, workers."""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models

import django_backwave.ids
import django_backwave.models.fields
import django_backwave.models.indexes


def tune_vacuum(apps: Any, schema_editor: Any) -> None:
    """Have PostgreSQL vacuum the queue early: a drained table of dead index entries slows each claim."""
    if schema_editor.connection.vendor != "postgresql":
        return
    table = schema_editor.quote_name(apps.get_model("django_backwave", "Job")._meta.db_table)
    schema_editor.execute(
        f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.01,"
        " autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 1,"
        " autovacuum_analyze_scale_factor = 0.02)"
    )


class Migration(migrations.Migration):
    """Creates everything; written so that every supported database takes it."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Worker",
            fields=[
                (
                    "name",
                    django_backwave.models.fields.ExactCharField(
                        max_length=255, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                (
                    "host",
                    django_backwave.models.fields.ExactCharField(max_length=255, verbose_name="host"),
                ),
                ("pid", models.PositiveIntegerField(verbose_name="process id")),
                (
                    "started_at",
                    django_backwave.models.fields.InstantField(verbose_name="started at"),
                ),
                (
                    "seen_at",
                    django_backwave.models.fields.InstantField(db_index=True, verbose_name="seen at"),
                ),
                (
                    "queues",
                    django_backwave.models.fields.JSONTextField(null=True, verbose_name="queues"),
                ),
                (
                    "names",
                    django_backwave.models.fields.JSONTextField(verbose_name="job names served"),
                ),
                ("concurrency", models.PositiveIntegerField(verbose_name="concurrency")),
                (
                    "version",
                    django_backwave.models.fields.ExactCharField(max_length=50, verbose_name="version"),
                ),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
            },
        ),
        migrations.CreateModel(
            name="Job",
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
                (
                    "name",
                    django_backwave.models.fields.ExactCharField(max_length=255, verbose_name="name"),
                ),
                (
                    "queue",
                    django_backwave.models.fields.ExactCharField(max_length=100, verbose_name="queue"),
                ),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                ("payload", django_backwave.models.fields.JSONTextField(verbose_name="payload")),
                (
                    "state",
                    models.SmallIntegerField(
                        choices=[
                            (0, "waiting"),
                            (1, "ready"),
                            (2, "running"),
                            (3, "succeeded"),
                            (4, "cancelled"),
                            (5, "dead-lettered"),
                            (6, "quarantined"),
                        ],
                        default=1,
                        verbose_name="state",
                    ),
                ),
                (
                    "enqueued_at",
                    django_backwave.models.fields.InstantField(verbose_name="enqueued at"),
                ),
                ("due_at", django_backwave.models.fields.InstantField(verbose_name="due at")),
                (
                    "expires_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="expires at"),
                ),
                ("max_attempts", models.PositiveIntegerField(verbose_name="max attempts")),
                ("backoff_base", models.FloatField(verbose_name="backoff base (s)")),
                ("backoff_cap", models.FloatField(verbose_name="backoff cap (s)")),
                ("backoff_jitter", models.FloatField(verbose_name="backoff jitter")),
                ("lease_seconds", models.FloatField(null=True, verbose_name="lease (s)")),
                ("timeout_seconds", models.FloatField(null=True, verbose_name="time-out (s)")),
                ("attempt", models.PositiveIntegerField(default=0, verbose_name="attempt")),
                ("failures", models.PositiveIntegerField(default=0, verbose_name="failures")),
                (
                    "worker",
                    django_backwave.models.fields.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="worker"
                    ),
                ),
                (
                    "lease_expires_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="lease expires at"),
                ),
                (
                    "started_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="started at"),
                ),
                (
                    "cancel_requested_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="cancel requested at"),
                ),
                (
                    "unroutable_since",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="unroutable since"),
                ),
                (
                    "finished_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="finished at"),
                ),
                (
                    "cause",
                    django_backwave.models.fields.ExactTextField(
                        blank=True, default="", verbose_name="cause"
                    ),
                ),
                (
                    "output",
                    django_backwave.models.fields.JSONTextField(null=True, verbose_name="output"),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "indexes": [
                    django_backwave.models.indexes.StateIndex(
                        fields=["queue", "priority", "due_at", "id"],
                        name="backwave_claim",
                        states=[1],
                    ),
                    django_backwave.models.indexes.StateIndex(
                        fields=["lease_expires_at"], name="backwave_lease", states=[2]
                    ),
                    django_backwave.models.indexes.StateIndex(
                        fields=["state", "finished_at"],
                        name="backwave_finished",
                        states=[3, 4, 5, 6],
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_expires_at__isnull", False), ("state", 2)),
                            models.Q(models.Q(("state", 2), _negated=True), ("lease_expires_at", None)),
                            _connector="OR",
                        ),
                        name="backwave_running_has_lease",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Lease",
            fields=[],
            options={
                "verbose_name": "lease",
                "verbose_name_plural": "leases",
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("django_backwave.job",),
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField(verbose_name="number")),
                (
                    "worker",
                    django_backwave.models.fields.ExactCharField(max_length=255, verbose_name="worker"),
                ),
                (
                    "started_at",
                    django_backwave.models.fields.InstantField(null=True, verbose_name="started at"),
                ),
                (
                    "finished_at",
                    django_backwave.models.fields.InstantField(verbose_name="finished at"),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                            ("released", "released"),
                            ("snoozed", "snoozed"),
                            ("timed_out", "timed out"),
                            ("unroutable", "unroutable"),
                            ("abandoned", "abandoned"),
                        ],
                        max_length=12,
                        verbose_name="outcome",
                    ),
                ),
                (
                    "error_class",
                    django_backwave.models.fields.ExactTextField(
                        blank=True, default="", verbose_name="error class"
                    ),
                ),
                (
                    "message",
                    django_backwave.models.fields.ExactTextField(
                        blank=True, default="", verbose_name="message"
                    ),
                ),
                (
                    "traceback",
                    django_backwave.models.fields.ExactTextField(
                        blank=True, default="", verbose_name="traceback"
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attempts",
                        to="django_backwave.job",
                        verbose_name="job",
                    ),
                ),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "number"), name="backwave_attempt_number")
                ],
            },
        ),
        migrations.RunPython(tune_vacuum, migrations.RunPython.noop, elidable=True),
    ]
