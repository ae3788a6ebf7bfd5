"""The index by which the generations of a key are found, apart from the columns that it is made of."""

from django.db import migrations

import django_backwave.models.indexes


class Migration(migrations.Migration):
    """Reads the jobs once, in a transaction of its own.

    New columns lock a table on PostgreSQL against readers, too, until the transaction ends; a new index keeps
    only writers waiting.
    """

    dependencies = [
        ("django_backwave", "0006_identity"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=django_backwave.models.indexes.FilledIndex(
                fields=["key", "queue", "generation"], name="backwave_key"
            ),
        ),
    ]
