"""The worker's own clock and its source of chance: the only place that reads either."""

from __future__ import annotations

import random as _random
import time

#: Seconds that never go back; they mean nothing outside this process.
monotonic = time.monotonic

#: A number in [0, 1).
random = _random.Random().random  # noqa: S311 - it spreads retries, and keeps no secret
