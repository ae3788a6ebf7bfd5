"""The shop in a browser: orders, jobs that change their state before one's eyes, cancel from the admin."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import NARROWEST, Browser
from tests.example.running import RunningShop

# Once is enough: the shop has a database of its own.
pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.only_on("sqlite")]

ORDER, PACK, FAIL = ".choices .primary", "button[name=pack]", "button[name=fail]"
NEWEST = ".card:first-of-type"


def newest_order(browser: Browser) -> str:
    """Return the selector of the order that was placed last."""
    return f"#{browser.one(NEWEST).get_attribute('id')}"


def receipt(order: str) -> str:
    """Return the selector of the job that sends an order's receipt."""
    return f"{order} .receipt"


def parcel(order: str) -> str:
    """Return the selector of the job that packs an order."""
    return f"{order} .parcel"


def place(browser: Browser, shop: RunningShop, button: str = ORDER) -> str:
    """Open the shop and place an order; return its selector."""
    browser.open(shop.url)
    browser.click(button)
    return newest_order(browser)


def wait_for_state(browser: Browser, job: str, state: str) -> None:
    """Wait until the page shows a job in a state."""
    browser.wait_for_text(f"{job} .badge:first-child", state)


def mark(browser: Browser) -> None:
    """Leave a mark in the document, which is gone if it is loaded again."""
    browser.script("window.marked = true")


def is_marked(browser: Browser) -> bool:
    """Say whether it is the same document."""
    return bool(browser.script("return window.marked === true"))


def log_in(browser: Browser, shop: RunningShop) -> None:
    """Log in where the admin asks for it."""
    if browser.all("#id_username"):
        browser.one("#id_username").send_keys("admin")
        browser.one("#id_password").send_keys(shop.password)
        browser.click("input[type=submit]")


def open_in_admin(browser: Browser, shop: RunningShop, page: str) -> None:
    """Open a page of the admin."""
    browser.open(f"{shop.url}admin/{page}")
    log_in(browser, shop)


def test_an_order_is_followed_until_its_job_has_succeeded(browser: Browser, shop: RunningShop) -> None:
    browser.open(shop.url)
    browser.shoot("01-shop-empty")

    with shop.slow_gateway():
        browser.click(ORDER)
        order = newest_order(browser)
        mark(browser)
        wait_for_state(browser, receipt(order), "running")
        assert "the list follows them" in browser.text("#pace")
        browser.shoot("02-receipt-running")
    wait_for_state(browser, receipt(order), "succeeded")

    assert is_marked(browser), "nobody has loaded the page again"
    assert "attempt 1" in browser.text(f"{receipt(order)} .facts")
    assert '{"receipt": "R-' in browser.text(f"{receipt(order)} .detail")
    browser.wait_for_text("#pace", "All jobs have finished.")
    number = order.rpartition("-")[2]
    heard = browser.script("return document.getElementById('news').textContent")
    assert heard == f"Receipt of order {number}: succeeded.", "read out by screen readers"
    browser.shoot("03-receipt-succeeded")


def test_the_page_asks_for_news_only_while_there_may_be_some(browser: Browser, shop: RunningShop) -> None:
    order = place(browser, shop)
    wait_for_state(browser, receipt(order), "succeeded")
    browser.wait_for_text("#pace", "All jobs have finished.")

    asked = browser.driver.execute_async_script(  # type: ignore[no-untyped-call]
        """
        const done = arguments[0];
        const asked = () => performance.getEntriesByType("resource")
          .filter((entry) => entry.name.includes("/orders/newest/")).length;
        const before = asked();
        setTimeout(() => done(asked() - before), 2500);
        """
    )

    assert asked == 0


def test_an_order_that_fails_afterwards_leaves_nothing(browser: Browser, shop: RunningShop) -> None:
    browser.open(shop.url)
    before = shop.count("shop_order"), shop.count("django_backwave_job")
    cards = len(browser.all(".card"))

    browser.click(FAIL)

    assert "Nothing was written." in browser.text("#failure")
    assert "Looked for again: 0 orders and 0 jobs found." in browser.text("#failure")
    assert (shop.count("shop_order"), shop.count("django_backwave_job")) == before
    assert len(browser.all(".card")) == cards
    browser.shoot("04-order-failed")


def test_what_is_wrong_with_an_order_stands_at_its_field(browser: Browser, shop: RunningShop) -> None:
    browser.open(shop.url)
    browser.script("document.querySelector('.order form').noValidate = true")
    browser.one("#id_email").clear()

    browser.click(ORDER)

    email = browser.one("#id_email")
    assert email.get_attribute("aria-invalid") == "true"
    described_by = (email.get_attribute("aria-describedby") or "").split()
    assert any("required" in browser.text(f"#{each}") for each in described_by)
    browser.shoot("05-order-refused")


def test_a_running_job_is_cancelled_from_the_admin(browser: Browser, shop: RunningShop) -> None:
    order = place(browser, shop, PACK)
    wait_for_state(browser, parcel(order), "running")
    mark(browser)
    browser.shoot("06-parcel-running")
    details = browser.one(f"{parcel(order)} .more a").get_attribute("href")
    job = str(details).rstrip("/").split("/")[-2]

    with browser.another_tab():
        browser.open(str(details))
        browser.shoot("07-admin-login")
        log_in(browser, shop)
        assert job in browser.text(".bw-identity")
        browser.shoot("08-admin-job-running")
        open_in_admin(browser, shop, "django_backwave/lease/")
        assert job[-8:] in browser.text("#result_list")
        browser.shoot("09-admin-leases")
        browser.open(str(details))
        browser.click(".bw-danger")
        assert "asked to stop" in browser.text(".messagelist")
        browser.shoot("10-admin-job-asked-to-stop")
    wait_for_state(browser, parcel(order), "cancelled")

    assert is_marked(browser), "nobody has loaded the page again"
    assert "cancel" in browser.text(f"{parcel(order)} .detail")
    assert browser.text(f"{parcel(order)} button") == "Pack again"
    browser.shoot("11-parcel-cancelled")
    with browser.another_tab():
        browser.open(str(details))
        assert "cancelled" in browser.text(".bw-identity")
        assert "admin" in browser.text("[aria-labelledby=bw-actions]")
        browser.shoot("12-admin-job-cancelled")


def test_several_jobs_are_cancelled_by_the_action_in_the_admins_list(
    browser: Browser, shop: RunningShop
) -> None:
    orders = [place(browser, shop, PACK) for _ in range(2)]
    for order in orders:
        wait_for_state(browser, parcel(order), "running")

    with browser.another_tab():
        open_in_admin(browser, shop, "django_backwave/job/?state=running")
        boxes = browser.all("#result_list .action-select")
        assert len(boxes) == 2
        for box in boxes:
            box.click()
        browser.one("select[name=action] option[value=cancel_selected]").click()
        browser.shoot("13-admin-jobs-selected")
        browser.click("button[name=index]")
        assert "2 asked to stop" in browser.text(".messagelist")
        browser.shoot("14-admin-jobs-asked-to-stop")
        open_in_admin(browser, shop, "django_backwave/job/")
        browser.shoot("15-admin-jobs")
        open_in_admin(browser, shop, "django_backwave/worker/")
        browser.shoot("16-admin-workers")
        open_in_admin(browser, shop, "django_backwave/action/")
        browser.shoot("17-admin-actions")

    for order in orders:
        wait_for_state(browser, parcel(order), "cancelled")


def test_an_order_by_keyboard_alone(browser: Browser, shop: RunningShop) -> None:
    def press(*keys: str) -> None:
        ActionChains(browser.driver).send_keys(*keys).perform()

    def tab_to(script: str) -> None:
        for _ in range(40):
            if browser.script(f"return {script}"):
                return
            press(Keys.TAB)
        raise AssertionError(f"not reached by the tab key: {script}")

    browser.open(shop.url)
    press(Keys.TAB)
    assert browser.script("return document.activeElement.className") == "skip"
    tab_to("document.activeElement.id === 'id_email'")
    press("keyboard@example.com")  # in place of what was there: the tab key selects it all
    tab_to("document.activeElement.name === 'pack'")
    browser.shoot("18-focus")
    with browser.another_page():
        press(Keys.ENTER)
    order = newest_order(browser)
    assert "keyboard@example.com" in browser.text(order)
    wait_for_state(browser, parcel(order), "running")

    tab_to("document.activeElement.id.startsWith('cancel-')")
    seen = browser.text(f"{parcel(order)} .facts")
    browser.wait(lambda: browser.text(f"{parcel(order)} .facts") != seen, "news in the list")
    assert browser.script("return document.activeElement.id") == order.replace("#order", "cancel")
    with browser.another_page():
        press(Keys.ENTER)

    browser.wait_for_text(".told", "asked to stop")
    browser.shoot("19-parcel-asked-to-stop")
    wait_for_state(browser, parcel(order), "cancelled")


def test_a_focus_that_loses_its_button_stays_in_the_card(browser: Browser, shop: RunningShop) -> None:
    order = place(browser, shop, PACK)
    wait_for_state(browser, parcel(order), "running")
    browser.script("document.querySelector('[id^=cancel-]').focus()")
    address = browser.one("[id^=cancel-]").get_attribute("formaction")

    browser.script(
        f"""
        const form = new FormData(document.getElementById("order-actions"));
        fetch("{address}", {{ method: "POST", body: form, redirect: "manual" }});
        """
    )

    wait_for_state(browser, parcel(order), "cancelled")
    assert browser.script("return document.activeElement.id") == order.removeprefix("#")


@pytest.mark.parametrize("page", ["", "admin/django_backwave/job/", "admin/django_backwave/lease/"])
def test_a_narrow_window(browser: Browser, shop: RunningShop, page: str) -> None:
    order = place(browser, shop)
    wait_for_state(browser, receipt(order), "succeeded")
    details = browser.one(f"{receipt(order)} .more a").get_attribute("href")
    open_in_admin(browser, shop, page.removeprefix("admin/")) if page else None

    with browser.at_width(NARROWEST):
        assert browser.overflow() <= 0
        if page:
            browser.open(str(details))
            assert browser.overflow() <= 0


def test_dark(browser: Browser, shop: RunningShop) -> None:
    with browser.dark():
        order = place(browser, shop, PACK)
        wait_for_state(browser, parcel(order), "running")
        browser.shoot("20-shop-dark")
        dark = browser.script("return getComputedStyle(document.body).backgroundColor")
        browser.click(FAIL)
        browser.shoot("21-order-failed-dark")
        open_in_admin(browser, shop, "django_backwave/job/")
        browser.shoot("22-admin-jobs-dark")

    browser.open(shop.url)
    assert browser.script("return getComputedStyle(document.body).backgroundColor") != dark


def test_the_page_finds_back_when_the_shop_was_out_of_reach(browser: Browser, shop: RunningShop) -> None:
    with shop.slow_gateway():
        order = place(browser, shop)
        browser.driver.set_network_conditions(offline=True, latency=0, throughput=0)
        try:
            browser.wait_for_text("#pace", "The shop cannot be reached. Trying again.")
        finally:
            browser.driver.delete_network_conditions()

    wait_for_state(browser, receipt(order), "succeeded")
    browser.wait(lambda: "reached" not in browser.text("#pace"), "the warning is gone")


def test_without_javascript_there_is_a_link_to_reload(browser: Browser, shop: RunningShop) -> None:
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        with shop.slow_gateway():
            order = place(browser, shop)
            assert browser.text("#pace") == "Some jobs are unfinished; reload to see how they stand."
            browser.shoot("23-without-javascript")
        browser.wait(
            lambda: browser.click(".reload") or "succeeded" in browser.text(receipt(order)),  # type: ignore[func-returns-value]
            "the state after some reloads",
        )
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
