"""Loaded by a worker beside its handlers: its listener takes seconds for what otherwise takes a minute."""

from django_backwave.worker import listener

listener.ASK_AFTER, listener.ANSWER_IN = 0.2, 0.5
listener.RETRY_FIRST, listener.RETRY_CAP = 0.1, 0.2
