"""The shell around the driver: threads, connections, signals, the clock. It takes no decisions."""
