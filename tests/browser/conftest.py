"""One shop and one browser for all tests here; each test looks at orders of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, chromium
from tests.example.running import RunningShop, running_shop

# What a test does on purpose, and the console tells as if it were a fault.
MEANT = ("409 (Conflict)", "400 (Bad Request)", "ERR_INTERNET_DISCONNECTED")


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningShop]:
    """Return a shop that is open, and packs a parcel for as long as somebody may look at that."""
    with running_shop(tmp_path_factory.mktemp("shop"), SHOP_STEPS="6000") as shop:
        yield shop


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser."""
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chrome: Browser) -> Iterator[Browser]:
    """Return a browser whose console stays silent: no error, nothing that the CSP has refused."""
    chrome.complaints()
    yield chrome
    complaints = [text for text in chrome.complaints() if not any(meant in text for meant in MEANT)]
    assert complaints == []
