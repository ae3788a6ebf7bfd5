"""Hostile input and rows made by hand: whatever comes, a clear error or success, and a worker that lives.

How many cases there are, and which, is decided in `cases.py`.
"""
