"""Requests that wait while the agent is busy are handled together; each succeeds or fails by itself."""

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, inside

from podwire.cni.gate import OpenGate
from podwire.cni.ipam.ledger import Attachment
from podwire.errors import KernelError

Request = tuple[str, str, dict[str, Any]]
"""Verb, pod and further fields of the configuration."""


def together(node: NodeAgent, requests: Sequence[Request]) -> list[tuple[int, dict[str, Any]]]:
    """Sends requests while the agent is busy; returns their answers in order."""
    busy, free = threading.Event(), threading.Event()

    def block() -> None:
        busy.set()
        free.wait(30)

    with ThreadPoolExecutor(len(requests) + 1) as threads:
        blocked = threads.submit(node.within, block)
        assert busy.wait(10)
        calls = [threads.submit(node.call, verb, name, **more) for verb, name, more in requests]
        _until_connected(len(requests))
        free.set()
        blocked.result()
        return [call.result() for call in calls]


def _until_connected(count: int) -> None:
    """Waits until so many programs have connected to the agent's socket, and a moment for their requests."""
    names = _listening()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        sockets = [line.rpartition(" ")[2] for line in Path("/proc/net/unix").read_text().splitlines()]
        if sum(sockets.count(name) - 1 for name in names) >= count:
            time.sleep(0.05)
            return
        time.sleep(0.005)
    raise AssertionError("the programs did not connect")


def _listening() -> set[str]:
    """The names of the Unix sockets on which this process listens; the kernel lists accepted ones by the same name."""
    names = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copied = os.dup(int(entry.name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(copied).st_mode):
            os.close(copied)  # An open pipe would keep a program from the end of its input.
            continue
        with socket.socket(fileno=copied) as opened:
            if opened.family == socket.AF_UNIX and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                names.add(opened.getsockname())
    return names


def port(number: int) -> dict[str, Any]:
    return {"runtimeConfig": {"portMappings": [{"hostPort": number, "containerPort": 80, "protocol": "tcp"}]}}


def count_syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the files that go to the disk from now on."""
    brought: list[int] = []
    to_disk = os.fdatasync

    def count(descriptor: int) -> None:
        brought.append(descriptor)
        to_disk(descriptor)

    monkeypatch.setattr(os, "fdatasync", count)
    return brought


class Policies(OpenGate):
    """Keeps the pods whose policies come into force together; a pod of the name ``refused`` is refused."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.commits: list[list[str]] = []

    def attach(self, *attachments: Attachment) -> None:
        names = [attachment.key.container for attachment in attachments]
        self.commits.append(names)
        if f"c-{self.refused}" in names:
            raise KernelError("nft", "add element", 12, "no memory")


NAMES = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize("pod_link", ["routed", "bridge"], indirect=True)
def test_pods_that_wait_share_one_write_to_the_disk(
    make: Callable[..., NodeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make("10.244.1.0/24", "fd00:1::/64")
    policies = Policies()
    node.service.attachments.gate = policies
    for name in NAMES:
        node.pod(name)
    brought = count_syncs(monkeypatch)
    answers = together(node, [("ADD", name, port(8000 + number)) for number, name in enumerate(NAMES)])
    assert [status for status, _ in answers] == [0] * len(NAMES), answers
    assert len(brought) == 1
    assert [sorted(names) for names in policies.commits] == [[f"c-{name}" for name in NAMES]]
    addresses = [[ip["address"].partition("/")[0] for ip in answer["ips"]] for _, answer in answers]
    assert len({address for pair in addresses for address in pair}) == 2 * len(NAMES)
    assert all(node.ping("a", address) for pair in addresses[1:] for address in pair)
    table = inside(node.place, "nft", "list", "table", "inet", "podwire-hostport").stdout
    assert all(f"{8000 + number}" in table for number in range(len(NAMES)))

    answers = together(node, [("DEL", name, {}) for name in NAMES])
    assert answers == [(0, {})] * len(NAMES)
    assert len(brought) == 1, "DEL does not wait for the disk"
    assert (node.links(), node.service.leases.held) == ([], {})
    assert "8000" not in inside(node.place, "nft", "list", "ruleset").stdout
    assert node.service.leases.pools[0].held == 0
    assert node.service._pods.requests == {("ADD", "done"): len(NAMES), ("DEL", "done"): len(NAMES)}


def test_a_request_that_fails_leaves_its_neighbours_alone(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make()
    for name in NAMES:
        node.pod(name)
    inside(node.pods / "c", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    plain = tmp_path / "plain"
    plain.touch()
    requests: list[Request] = [
        ("ADD", "a", port(8080)),
        ("ADD", "b", {"netns": str(plain)}),
        ("ADD", "c", {}),
        ("ADD", "d", {"runtimeConfig": {"ips": ["10.9.9.9"]}}),
        ("ADD", "e", port(8080)),
    ]
    answers = together(node, requests)
    assert [status for status, _ in answers].count(0) == 1, answers
    codes = {name: answer.get("code", 0) for (_, name, _), (_, answer) in zip(requests, answers, strict=True)}
    assert {codes.pop("a"), codes.pop("e")} == {0, 103}, "one of two pods gets the hostPort"
    assert codes == {"b": 8, "c": 102, "d": 7}
    assert len(node.links()) == len(node.service.leases.held) == node.service.leases.pools[0].held == 1


def test_policies_of_one_pod_that_are_refused_concern_it_alone(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in NAMES:
        node.pod(name)
    policies = Policies("c")
    node.service.attachments.gate = policies
    answers = together(node, [("ADD", name, {}) for name in NAMES])
    assert [status for status, _ in answers] == [0, 0, 1, 0, 0], answers
    assert len(policies.commits) == 1 + len(NAMES), "one for all, then one for each"
    assert {key.container for key in node.service.leases.held} == {f"c-{name}" for name in NAMES if name != "c"}
    assert len(node.links()) == node.service.leases.pools[0].held == len(NAMES) - 1


def test_two_requests_of_one_pod_are_handled_apart(make: Callable[..., NodeAgent]) -> None:
    node = make()
    for name in NAMES:
        node.pod(name)
    requests: list[Request] = [("ADD", "a", {}), ("ADD", "a", {"ifname": "net1"}), ("ADD", "b", {}), ("ADD", "c", {})]
    answers = together(node, requests)
    assert [status for status, _ in answers] == [0] * 4, answers
    assert sorted(str(key) for key in node.service.leases.held) == [
        "podwire/c-a/eth0",
        "podwire/c-a/net1",
        "podwire/c-b/eth0",
        "podwire/c-c/eth0",
    ]
