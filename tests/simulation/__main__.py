"""`python -m tests.simulation`: see `command.py`."""

import sys

from tests.simulation.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
