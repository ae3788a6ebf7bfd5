"""What is promised, as tests: one file a guarantee, the same on every database.

`make conformance` runs them. Each test bears the number of the guarantee that it holds; what a database
cannot do has a name in `capabilities.py`, and is the only reason for which one may be skipped here.
"""
