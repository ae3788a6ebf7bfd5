"""The pure core: no database, no clock, no process."""
