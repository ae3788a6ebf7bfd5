"""The first schema of the shop."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("email", models.EmailField(max_length=254, verbose_name="customer's e-mail address")),
                ("item", models.CharField(max_length=100)),
                ("quantity", models.PositiveSmallIntegerField(default=1)),
                ("amount", models.PositiveIntegerField(verbose_name="amount in cents")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("receipt", models.CharField(blank=True, default="", max_length=50)),
                ("receipt_job", models.UUIDField(editable=False, null=True)),
                ("parcel_job", models.UUIDField(editable=False, null=True)),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
    ]
