"""Chromium without a window: looked at through WebDriver, and photographed."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.processes import wait_until

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

WIDE, NARROW, NARROWEST = 1280, 420, 360

#: Seconds until what a test waits for counts as never to come; a heartbeat may take five of them.
PATIENCE = 30.0

INSTALL = "The browser tests need Chromium and its driver: apt-get install chromium chromium-driver"


class Browser:
    """One tab, or a few; words for what tests do in it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    def all(self, css: str) -> list[WebElement]:
        """Return all elements that match."""
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str) -> WebElement:
        """Return the first element that matches, and wait for it."""
        self.wait(lambda: self.all(css), f"an element {css}")
        return self.all(css)[0]

    def text(self, css: str) -> str:
        """Return the text that is to be seen in the first element that matches."""
        return str(self.one(css).text)

    def click(self, css: str) -> None:
        """Click on an element that leads to another page, and wait for that page."""
        with self.another_page():
            self.one(css).click()

    @contextmanager
    def another_page(self) -> Iterator[None]:
        """Wait at the end until another page has been loaded, be it the same one anew."""
        self.script("window.isOld = true")
        yield
        loaded = "return !window.isOld && document.readyState === 'complete'"
        self.wait(lambda: self.script(loaded), "another page")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition is true.

        Whatever the driver complains of counts as not yet: elements are replaced under its hands.
        """

        def met() -> Any:
            try:
                return condition()
            except WebDriverException:
                return False

        wait_until(met, deadline=PATIENCE, what=lambda: f"{what}; the page says:\n{self._page()}")

    def wait_for_text(self, css: str, text: str) -> None:
        """Wait until an element has a text in it."""
        self.wait(lambda: any(text in each.text for each in self.all(css)), f"{text!r} in {css}")

    def script(self, code: str) -> Any:
        """Run JavaScript and return what it returns."""
        return self.driver.execute_script(code)  # type: ignore[no-untyped-call]

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def resize(self, width: int) -> None:
        """Lay the page out for this width."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )

    @contextmanager
    def at_width(self, width: int) -> Iterator[None]:
        """Lay the page out for this width meanwhile."""
        self.resize(width)
        try:
            yield
        finally:
            self.resize(WIDE)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(self.script("return document.documentElement.scrollWidth - window.innerWidth"))

    def shoot(self, name: str) -> None:
        """Take a picture of the whole page, wide and narrow."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for width in (WIDE, NARROW):
            with self.at_width(width):
                picture = self.command("Page.captureScreenshot", captureBeyondViewport=True)
                (SCREENSHOTS / f"{name}-{width}.png").write_bytes(base64.b64decode(picture["data"]))

    @contextmanager
    def dark(self) -> Iterator[None]:
        """Prefer dark pages meanwhile."""
        self.command(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
        )
        try:
            yield
        finally:
            self.command("Emulation.setEmulatedMedia", features=[])

    @contextmanager
    def another_tab(self) -> Iterator[None]:
        """Work in a second tab meanwhile, and close it at the end."""
        first = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        self.resize(WIDE)
        try:
            yield
        finally:
            self.driver.close()
            self.driver.switch_to.window(first)

    def complaints(self) -> list[str]:
        """Return what the console has complained of since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def _page(self) -> str:
        return f"{self.driver.current_url}\n{self.script('return document.body.innerText')}"


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start Chromium with a fresh profile, and end it."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.fail(INSTALL)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={WIDE},900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        chrome.set_page_load_timeout(60)
        browser = Browser(chrome)
        browser.resize(WIDE)
        yield browser
    finally:
        chrome.quit()
