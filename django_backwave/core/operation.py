"""What is known of an enqueue: of its error, of its commit, and in the end."""

from __future__ import annotations

from enum import StrEnum

#: Seconds for which a prepared enqueue may be carried out, unless it says otherwise.
DEADLINE = 300.0

#: Seconds for which an operation is remembered after its deadline.
REMEMBERED = 24 * 3600.0

#: The cause of the row that keeps an enqueue from being applied too late.
RESOLVED_CAUSE = "resolved as not applied: it was never enqueued"


class Disposition(StrEnum):
    """What an enqueue's error says of the enqueue."""

    KNOWN_NOT_APPLIED = "known_not_applied"
    UNKNOWN = "unknown"


class Confirmed(StrEnum):
    """What a receipt says of the commit."""

    IN_TRANSACTION = "in_transaction"  # the caller's commit is pending
    COMMITTED = "committed"
    COMMITTED_DURABLE = "committed_durable"  # it is on disk, too: a power loss does not undo it


class Resolution(StrEnum):
    """What became of a prepared enqueue."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"  # and it never will be
    UNKNOWN = "unknown"  # a transaction that may apply it is still open, or too much time has gone by
