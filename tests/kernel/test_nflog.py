"""Packets that a rule logs, read from the group in a network namespace."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.kernel.nflog import Logged, Nflog

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

GROUP = 4711


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A namespace that logs and drops packets to port 9 of loopback."""
    path = tmp_path / "place"
    netns.create(path)
    rules = f"""table inet t {{ chain o {{ type filter hook output priority 0;
        udp dport 9 log prefix "nine" group {GROUP} drop;
    }}; }}"""
    arguments = ["nsenter", f"--net={path}", "sh", "-c", "ip link set lo up && nft -f -"]
    done = subprocess.run(arguments, input=rules, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    yield path
    netns.delete(path)


Sender = Callable[[int], None]


@pytest.fixture
def send(place: Path) -> Iterator[Sender]:
    """Sends so many packets in each family."""
    with netns.inside(place):
        four, six = (socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6))

    def send(count: int) -> None:
        for _ in range(count):
            for sock, address in ((four, "127.0.0.1"), (six, "::1")):
                with contextlib.suppress(PermissionError):  # the drop, as the sender learns of it
                    sock.sendto(b"x", (address, 9))

    with four, six:
        yield send


def arrived(log: Nflog, count: int) -> list[Logged]:
    loggeds: list[Logged] = []
    until = time.monotonic() + 5
    while len(loggeds) < count and time.monotonic() < until:
        loggeds += log.read(1000)[0]
        time.sleep(0.01)
    return loggeds


def test_logged_packets_are_read(place: Path, send: Sender) -> None:
    log = Nflog(GROUP, place)
    try:
        assert log.read(10) == ([], 0)
        send(3)
        result = arrived(log, 6)
        assert [(item.source, item.protocol, item.destination_port) for item in result] == [
            ("127.0.0.1", "UDP", 9),
            ("::1", "UDP", 9),
        ] * 3
        assert {(item.prefix, item.hook, item.input, item.output) for item in result} == {("nine", "output", 0, 1)}
        assert [item.number for item in result] == list(range(6))
        assert log.lost == 0
    finally:
        log.close()


def test_packets_beyond_the_limit_are_skipped_and_counted(place: Path, send: Sender) -> None:
    log = Nflog(GROUP, place)
    try:
        send(100)
        time.sleep(0.3)
        result, passed = log.read(10)
        assert (len(result), passed) == (10, 190)
        send(1)
        assert [item.number for item in arrived(log, 2)] == [200, 201]
        assert log.lost == 0
    finally:
        log.close()


def test_dropped_log_packets_are_counted(place: Path, send: Sender) -> None:
    log = Nflog(GROUP, place)
    try:
        with socket.socket(fileno=os.dup(log.fileno())) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        send(1000)
        time.sleep(0.3)
        first = len(log.read(2000)[0])
        assert 0 < first < 2000
        send(1)
        assert arrived(log, 2)
        assert first + log.lost >= 2000 - 64, "but for those that the kernel was about to send"
    finally:
        log.close()


def test_only_one_listener_can_bind_a_group(place: Path) -> None:
    log = Nflog(GROUP, place)
    with pytest.raises(KernelError, match=f"nflog group {GROUP}"):
        Nflog(GROUP, place)
    log.close()
    Nflog(GROUP, place).close()
