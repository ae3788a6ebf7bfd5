"""How many cases are tried, and which.

BACKWAVE_FUZZ_CASES   how many cases in all, shared out among the tests; 2,000 if not given
BACKWAVE_FUZZ_SEED    a number that draws other cases; without it they are the same in every run

A failing case is printed in full; with the same two numbers it is found again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("BACKWAVE_FUZZ_CASES", "2000"))
SEED = os.environ.get("BACKWAVE_FUZZ_SEED")


def bounds(share: float, **options) -> settings:
    """Return Hypothesis's settings for a test that gets this share of all cases."""
    return settings(
        max_examples=max(20, round(CASES * share)),
        deadline=None,  # the database decides how long a case takes
        derandomize=SEED is None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        **options,
    )


def fuzz[F: Callable](share: float) -> Callable[[F], F]:
    """Give a test its share of the cases, and the seed of the run; goes above ``given``."""

    def decorate(test: F) -> F:
        test = bounds(share)(test)
        return test if SEED is None else seed(int(SEED))(test)

    return decorate


#: Text as people do not write it: NUL, lone surrogates, SQL, what other programs take for nothing.
ODD = [
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "\udfff\ud800",
    "\ufeff",
    "\u202e",
    "💥" * 30,
    "'",
    '"',
    "'; DROP TABLE django_backwave_job; --",
    "%",
    "%s",
    "%(now)s",
    "_",
    "\\",
    "{}",
    "None",
    "NaN",
    "-infinity",
    "1e999",
    "-1",
    str(2**63),
    str(2**1000),
    "9" * 5000,
    "x" * 100,
    "x" * 101,
    "x" * 255,
    "x" * 256,
    "x" * 70_000,
    "../../etc/passwd",
    "<script>",
    "00000000-0000-0000-0000-000000000000",
    "00000000-0000-0000-0000-00000000000g",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999-14:00",
    "\r\n",
    "a\tb",
]

surrogates = st.characters(categories=["Cs"])
texts = st.sampled_from(ODD) | st.text(st.characters() | surrogates, max_size=300)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=100)
numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, -(2**63), 10**400, 0, True])
scalars = st.none() | st.booleans() | numbers | texts
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    # No NUL: that is refused.
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
#: Anything that somebody may hand over for an argument or an option.
anything = st.recursive(
    scalars
    | st.binary(max_size=20)
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.timezones())
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.complex_numbers()
    | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=3)
        | st.dictionaries(scalars, inner, max_size=3)
    ),
    max_leaves=8,
)
