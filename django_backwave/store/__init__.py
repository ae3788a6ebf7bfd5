"""The only place that writes rows, opens transactions or takes locks: one concern a file.

There is one door per transition: worker, admin, commands and tests all pass it. Every function takes
``using`` (a database alias) and ``now``: None for the database's own clock (G10), or a virtual instant.
"""
