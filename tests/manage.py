#!/usr/bin/env python
"""Django's command line for the test project.

Tests start workers with it, as processes of their own, against the very database of the test:

    command = [sys.executable, "tests/manage.py", "backwave_worker", "--drain"]
    subprocess.Popen(command, env=child_environment())

`child_environment` is in `tests/databases.py`, which explains the variables: above all
BACKWAVE_TEST_DATABASE_NAME for the database, and BACKWAVE_TEST_DATABASE_URL for another server,
host or port. With none of them set this is a project on an empty SQLite database in memory, good
enough for `makemigrations --check`.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Run one management command."""
    # Python puts this file's folder on the path, but `tests` and the package lie one above.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
