"""`manage.py shop` opens, closes cleanly, and leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.example.running import RunningShop, free_port, is_alive, running_shop
from tests.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.only_on("sqlite")]


def test_it_opens_closes_on_ctrl_c_and_opens_again(tmp_path: Path) -> None:
    folder = tmp_path / "a new folder, 100 %"

    with running_shop(folder) as shop:
        first = shop.password
        shop.press_ctrl_c()
        assert shop.wait() == 0, shop.said
        assert "action=worker_stopped" in shop.said, "the worker has stopped in order"
        assert "reason=SIGTERM" in shop.said, "Ctrl-C reaches the worker through the command alone"
        assert "Traceback" not in shop.said
        assert not is_alive(shop.server_pid)
        assert not is_alive(shop.worker_pid)

    with running_shop(folder) as shop:
        assert shop.password != first
        assert shop.count("auth_user") == 1
        shop.send(signal.SIGHUP)  # the terminal was closed
        assert shop.wait() == 0
        assert not is_alive(shop.server_pid)
        assert not is_alive(shop.worker_pid)


@pytest.mark.parametrize("which", ["web server", "worker"])
def test_when_one_dies_the_other_is_stopped(tmp_path: Path, which: str) -> None:
    with running_shop(tmp_path) as shop:
        pids = {"web server": shop.server_pid, "worker": shop.worker_pid}

        os.kill(pids[which], signal.SIGKILL)

        assert shop.wait() == 1
        assert f"The {which} has ended (killed by SIGKILL), so all is stopped." in shop.said
        assert not any(map(is_alive, pids.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux tells children")
def test_nothing_is_left_when_the_command_itself_is_killed(tmp_path: Path) -> None:
    with running_shop(tmp_path) as shop:
        pids = [shop.server_pid, shop.worker_pid]

        shop.send(signal.SIGKILL)

        wait_until(lambda: not any(map(is_alive, pids)), deadline=30, what="both processes end")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        shop = RunningShop(tmp_path, port=port)
        try:
            assert shop.wait() == 1
            assert f"Port {port} cannot be used" in shop.said
            assert "make shop PORT=" in shop.said
        finally:
            shop.close()
