"""The command line: make a run, print its figures, and end with 1 if anything was wrong."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Plan, run

#: So many complaints are printed; one fault in the package often makes hundreds.
SHOWN = 20


def main() -> int:
    """Read the options, and make the run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long there are faults; default: 60")
    parser.add_argument("--seed", type=int, help="what the faults and the jobs are drawn from")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="of each worker; default: 2")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep journals and logs also after a good run")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().getrandbits(32)
    keep = options.keep
    del options.keep
    plan = Plan(**vars(options))
    folder = Path(tempfile.mkdtemp(prefix="backwave-chaos-"))
    print(f"{plan.database}, {plan.seconds:g} s of faults, seed {plan.seed}", flush=True)
    bad = True
    try:
        outcome = run(plan, folder)
        bad = bool(outcome.complaints)
    finally:
        if bad or keep:
            print(f"journals and logs: {folder}")
        else:
            shutil.rmtree(folder)
    print(outcome.figures)
    for complaint in outcome.complaints[:SHOWN]:
        print(f"WRONG: {complaint}")
    if bad:
        print(f"{len(outcome.complaints)} things are wrong. Seed {plan.seed} draws the same faults again.")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
