"""What Django says of a backend for its tasks, as tests that any backend can be held to.

`test_enqueuing.py`, `test_running.py` and `test_reading.py` run against Django's own backends as well: what
those two do is what Django means. The other files hold what our backend adds, and where it may stand.
"""
