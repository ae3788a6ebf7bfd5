"""The tests of django_backwave: one suite, run once for each database (see `make test`)."""
