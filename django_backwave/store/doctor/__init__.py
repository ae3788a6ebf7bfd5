"""The doctor: reads that tell whether a database keeps what the package promises. Nothing here writes.

``results`` has the words, ``rows`` the invariants of single jobs and their history, ``backlog`` what waits
and who serves it, ``server`` what the database itself is busy with, ``schema`` tables and indexes;
``examine`` makes all checks, each within its bounds.
"""

from django_backwave.store.doctor.examine import examine
from django_backwave.store.doctor.results import Limits, Result, Severity

__all__ = ["Limits", "Result", "Severity", "examine"]
