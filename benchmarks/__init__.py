"""Measures django_backwave beside other queues; `python -m benchmarks --help`, and README.md."""
