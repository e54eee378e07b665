"""The recorder of kernel changes: devices, routes, and transactions of nftables with the program that made them."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podwire.flows import recording
from podwire.flows.changes import KernelChange, parse
from podwire.kernel import netns
from podwire.runtime.polling import wait_until


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "netns"
    netns.create(path)
    yield path
    netns.delete(path)


@contextmanager
def recorded(namespace: Path) -> Iterator[list[str]]:
    """The lines of a recorder that runs in the namespace until the end of the block."""
    lines: list[str] = []
    ending = threading.Event()

    def run() -> None:
        with netns.inside(namespace):
            recording.record(lines.append, ending.is_set, poll_s=0.1)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert wait_until(lambda: any("recording" in line for line in lines), 30)
        yield lines
    finally:
        ending.set()
        thread.join()


def inside(namespace: Path, *command: str) -> None:
    subprocess.run(["nsenter", f"--net={namespace}", "--", *command], check=True, timeout=60)


def changes(lines: list[str]) -> list[KernelChange]:
    return parse("\n".join(lines), "node-1")


def test_changes_are_recorded_with_time_and_program(namespace: Path) -> None:
    with recorded(namespace) as lines:
        inside(namespace, "ip", "link", "add", "one", "type", "veth", "peer", "name", "two")
        inside(namespace, "ip", "address", "add", "192.0.2.1/24", "dev", "one")
        inside(namespace, "ip", "link", "set", "one", "up")
        inside(namespace, "ip", "route", "add", "198.51.100.0/24", "dev", "one", "proto", "113")
        inside(
            namespace,
            "nft",
            "add table ip sample { set names { type ipv4_addr; elements = { 192.0.2.7, 192.0.2.8 }; }; }",
        )
        inside(namespace, "ip", "link", "delete", "one")
        assert wait_until(lambda: any("-link dev one" in line for line in lines), 30), lines
        assert wait_until(lambda: any('"nftables"' in line for line in lines), 30), lines
    texts = [change.text for change in changes(lines)]
    assert any(text.startswith("+link") and text.endswith("dev one") for text in texts)
    assert "+route 198.51.100.0/24 dev one of routing" in texts
    (tables,) = [change for change in changes(lines) if change.subject == "nftables"]
    assert (tables.process, tables.node, tables.number) == ("nft", "node-1", 4)
    assert tables.text == "ip sample: +element x2, ip sample: +set, ip sample: +table"
    times = [change.at for change in changes(lines)]
    assert times == sorted(times)
