"""Keys in the admin: a job is found by its key and run again, and the keys are looked at."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.browser.chromium import NARROWEST, Browser
from tests.browser.test_shop import log_in, open_in_admin, place, receipt, wait_for_state
from tests.example.running import RunningShop

# Once is enough: the shop has a database of its own.
pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.only_on("sqlite")]

RUN_AGAIN = "form[action*=run_again] button"


def finished_with_key(browser: Browser, shop: RunningShop, key: str) -> str:
    """Place an order, give the job of its receipt a key, and return the address of that job's page."""
    order = place(browser, shop)
    wait_for_state(browser, receipt(order), "succeeded")
    address = str(browser.one(f"{receipt(order)} .more a").get_attribute("href"))
    job = address.rstrip("/").split("/")[-2]
    with closing(sqlite3.connect(shop.folder / "shop.sqlite3", timeout=20)) as connection, connection:
        connection.execute(
            "UPDATE django_backwave_job SET key = ?, generation = 1 WHERE id = ?",
            (key, job.replace("-", "")),
        )
    return address


def test_settled_work_is_run_again_from_its_page(browser: Browser, shop: RunningShop) -> None:
    address = finished_with_key(browser, shop, "receipt:7")
    browser.open(address)
    log_in(browser, shop)
    assert "receipt:7" in browser.text("[aria-labelledby=bw-key]")
    browser.shoot("30-admin-job-with-key")

    with browser.another_page():
        browser.click(RUN_AGAIN)

    assert "enqueued as generation 2" in browser.text(".messagelist")
    assert "this job" in browser.text(".bw-here")
    assert "run again" in browser.text("[aria-labelledby=bw-actions]")
    browser.shoot("31-admin-job-run-again")
    with browser.another_page():
        browser.click(".messagelist a")
    assert browser.text(".bw-here").startswith("2")

    def has_succeeded() -> bool:
        browser.open(browser.driver.current_url)
        return "succeeded" in browser.text(".bw-identity")

    browser.wait(has_succeeded, "the second generation has succeeded")
    browser.shoot("32-admin-second-generation")


def test_generations_are_found_by_their_key(browser: Browser, shop: RunningShop) -> None:
    browser.open(finished_with_key(browser, shop, "receipt:<8> & Co"))
    log_in(browser, shop)
    with browser.another_page():
        browser.click(RUN_AGAIN)

    open_in_admin(browser, shop, "django_backwave/job/")
    browser.one(".bw-typed input[name=key]").send_keys("receipt:<8> & Co")
    with browser.another_page():
        browser.script("document.querySelector('.bw-typed input[name=key]').form.requestSubmit()")

    assert len(browser.all("#result_list tbody tr")) == 2
    below = [each.text for each in browser.all(".field-short_id .bw-below")]
    assert below == ["generation 2", "generation 1"]
    browser.shoot("33-admin-jobs-of-a-key")


def test_the_keys(browser: Browser, shop: RunningShop) -> None:
    address = finished_with_key(browser, shop, "k" * 255)
    browser.open(address)
    log_in(browser, shop)
    with browser.another_page():
        browser.click(RUN_AGAIN)
    with browser.at_width(NARROWEST):
        assert browser.overflow() <= 0

    open_in_admin(browser, shop, "django_backwave/key/")
    assert "k" * 255 in browser.text("#result_list")
    assert "for ever" in browser.text("#result_list")
    browser.shoot("34-admin-keys")
    with browser.at_width(NARROWEST):
        assert browser.overflow() <= 0
    with browser.dark():
        browser.open(address)
        browser.shoot("35-admin-job-with-key-dark")
