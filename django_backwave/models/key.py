"""The key: what names logical work within a queue, and the generation that it leads to."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_backwave.core.limits import KEY_LENGTH, NAME_LENGTH, QUEUE_LENGTH
from django_backwave.models.fields import ExactCharField, InstantField
from django_backwave.models.indexes import FilledIndex


class Key(models.Model):
    """The last generation of a queue and key, remembered also when its job's row is gone.

    An enqueue locks this row first, and so enqueues of one key come one after the other. Its ``id`` is made
    of queue and key, so there is one row for both: byte for byte, on every database.
    ``forget_at``: when the key's window is over, None for never. ``settled_as``: how the last generation
    ended, once its job has been pruned; until then the row stays, whatever its window.
    """

    id = models.UUIDField(_("id"), primary_key=True, editable=False)
    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH)
    key = ExactCharField(_("key"), max_length=KEY_LENGTH)
    name = ExactCharField(_("name"), max_length=NAME_LENGTH)
    generation = models.PositiveIntegerField(_("generation"))
    job_id = models.UUIDField(_("job"))
    enqueued_at = InstantField(_("enqueued at"))
    forget_at = InstantField(_("forget at"), null=True)
    used_at = InstantField(_("used at"))
    settled_as = models.SmallIntegerField(_("settled as"), null=True)

    class Meta:
        """The pruner looks for those whose window is over."""

        verbose_name = _("key")
        verbose_name_plural = _("keys")
        default_permissions = ("view",)
        indexes = (FilledIndex(name="backwave_key_forget", fields=["settled_as", "forget_at"]),)

    def __str__(self) -> str:
        """Name the key and its last generation."""
        return f"{self.queue} {self.key} #{self.generation}"

    @staticmethod
    def id_of(queue: str, key: str) -> UUID:
        """Return the id of a queue and key. Neither has a NUL in it, which stands between them here."""
        digest = blake2b(f"{queue}\0{key}".encode(), digest_size=16).digest()
        return UUID(bytes=digest, version=5)  # MariaDB refuses a UUID without a version
