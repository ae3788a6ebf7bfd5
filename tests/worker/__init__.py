"""The worker: its threads by themselves, and as the real process that it is."""
