"""A module with a handler that nobody gets to see."""

raise RuntimeError("this module is broken")
