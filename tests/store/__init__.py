"""The store's conformance suite: the same tests on every database."""
