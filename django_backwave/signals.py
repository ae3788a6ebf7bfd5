"""Signals beside Django's own ``task_enqueued``, ``task_started`` and ``task_finished``.

Sent by a worker after the write, with the backend's class as sender and these keyword arguments:
``job_id``, ``name``, ``queue``, ``attempt``, ``worker``, and those below. A receiver that raises is logged
and harms nothing.
"""

from __future__ import annotations

from django.dispatch import Signal

#: An attempt failed, and the job will be tried again. Also ``error`` (the exception, or None), ``failures``,
#: ``max_attempts`` and ``due_in`` (seconds).
job_retrying = Signal()

#: A sweep disposed of a lapsed lease. Also ``state``, a JobState: what became of the job.
job_abandoned = Signal()

#: The fence refused an attempt's outcome: nothing of it was written. Also ``outcome``, the word refused.
job_stale = Signal()
