"""Loaded by a worker beside its handlers: its listener takes seconds for what otherwise takes a minute.

BACKWAVE_TEST_ANSWER_IN   seconds that the server has to answer in
"""

import os

from django_backwave.worker import listener

listener.ASK_AFTER, listener.ANSWER_IN = 0.2, float(os.environ.get("BACKWAVE_TEST_ANSWER_IN", "10"))
listener.RETRY_FIRST, listener.RETRY_CAP = 0.1, 0.2
