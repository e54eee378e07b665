"""Delays of the topology lab, in the kernel of user-mode Linux: others may lack netem."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.kernel import netns
from podwire.local.lab.apply import set_delay

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]


def _run(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Path]:
    """A namespace whose device ``left`` is linked with ``right`` in a second one."""
    item, other = tmp_path / "one", tmp_path / "other"
    for path in (item, other):
        netns.create(path)
    with netns.inside(item):
        _run("ip", "link", "add", "left", "type", "veth", "peer", "name", "right")
        _run("ip", "link", "set", "right", "netns", str(other))
        _run("ip", "address", "add", "10.9.0.1/24", "dev", "left")
        _run("ip", "link", "set", "left", "up")
    with netns.inside(other):
        _run("ip", "address", "add", "10.9.0.2/24", "dev", "right")
        _run("ip", "link", "set", "right", "up")
    yield item
    for path in (item, other):
        netns.delete(path)


def _travel_ms(namespace: Path) -> float:
    """The time that one datagram takes from ``left`` to ``right``, after a first one that resolved the address."""
    with netns.inside(namespace.with_name("other")):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(namespace):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.bind(("10.9.0.2", 0))
        receiver.settimeout(30)
        for _ in range(2):
            began = time.monotonic()
            sender.sendto(b"x", receiver.getsockname())
            receiver.recv(10)
    return (time.monotonic() - began) * 1000


def test_a_delay_holds_packets_back_until_it_is_taken_away(namespace: Path) -> None:
    set_delay(namespace, "left", 0)
    for delay_ms in (300.0, 150.0):
        set_delay(namespace, "left", delay_ms)
        assert _travel_ms(namespace) >= delay_ms
    set_delay(namespace, "left", 0)
    with netns.inside(namespace):
        assert "netem" not in _run("tc", "qdisc", "show", "dev", "left")
    _travel_ms(namespace)
