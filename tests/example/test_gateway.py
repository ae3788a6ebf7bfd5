"""The gateway's stand-in charges once for each key, whoever calls, and keeps every call."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SHOP = Path(__file__).resolve().parents[2] / "example_project"


@pytest.fixture
def gateway(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(SHOP))
    settings.GATEWAY_FILE = tmp_path / "gateway.jsonl"
    return import_module("shop.gateway")


def charge(gateway: Any, key: str = "k", **changes: Any) -> str:
    values = {"order": 1, "amount": 500, "attempt": 1}
    receipt: str = gateway.charge(key=key, **values | changes)
    return receipt


def test_a_call_is_one_line(gateway: Any, settings: Any) -> None:
    receipt = charge(gateway, "k", order=7, amount=500, attempt=3)

    [line] = settings.GATEWAY_FILE.read_text().splitlines()
    assert json.loads(line) == {
        "key": "k",
        "order": 7,
        "amount": 500,
        "receipt": receipt,
        "charged": True,
        "attempt": 3,
        "pid": os.getpid(),
    }


def test_a_repeated_key_gets_the_first_answer_and_charges_nothing(gateway: Any) -> None:
    first = charge(gateway, attempt=1)
    other = charge(gateway, "another key")

    again = charge(gateway, attempt=2)

    assert again == first != other
    assert [call["charged"] for call in gateway.calls()] == [True, True, False]


def test_callers_at_the_same_time_are_charged_once(gateway: Any) -> None:
    count = 16
    barrier = threading.Barrier(count)

    def call(number: int) -> str:
        barrier.wait()
        return charge(gateway, attempt=number)

    with ThreadPoolExecutor(count) as threads:
        receipts = set(threads.map(call, range(count)))

    assert len(receipts) == 1
    assert sorted(call["attempt"] for call in gateway.calls()) == list(range(count))
    assert [call["charged"] for call in gateway.calls()] == [True] + [False] * (count - 1)


def test_no_call_yet(gateway: Any) -> None:
    assert gateway.calls() == []


def test_a_held_order_is_charged_at_once_and_answered_late(gateway: Any) -> None:
    gateway.hold(1)
    charged = threading.Event()
    original = gateway._wait_while_held

    def wait(order: int) -> None:
        charged.set()
        original(order)

    gateway._wait_while_held = wait
    try:
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(charge, gateway)
            assert charged.wait(10)
            assert [call["charged"] for call in gateway.calls()] == [True]
            assert not answer.done()
            assert charge(gateway, attempt=2), "a repeat is answered at once"
            gateway.hold()
            assert answer.result(10)
    finally:
        gateway._wait_while_held = original
