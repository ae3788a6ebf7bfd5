"""What type checkers see of the package: `jobs.py` is read by them and never run."""
