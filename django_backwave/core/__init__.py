"""The pure core: states, retry policy, outcomes, dispatch and the worker's driver.

Nothing in this package imports Django, reads a clock, draws a random number or does I/O.
"""
