"""Pods of a real containerd and runc, started through CRI."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import eventually
from tests.kernel.cni_node import NodeAgent, inside, ping
from tests.kernel.containerd import Containerd, Refused

from podwire.agent.config import CniSection
from podwire.cni import program

pytestmark = [
    pytest.mark.skipif(not shutil.which("containerd") or not shutil.which("runc"), reason="needs containerd and runc"),
]
WEB = {1: 0, 2: 80, 3: 8080}
"""A hostPort of TCP, as kubelet asks for it."""


@pytest.fixture
def node(make: Callable[..., NodeAgent]) -> NodeAgent:
    """A node with an address of its own."""
    agent = make()
    inside(agent.place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    return agent


@pytest.fixture
def runtime(node: NodeAgent, tmp_path: Path) -> Iterator[Containerd]:
    containerd = Containerd(tmp_path / "c", node.place, node.socket)
    yield containerd
    for sandbox in containerd.pods():
        containerd.remove_pod(sandbox)
    containerd.stop()


@pytest.mark.slow
def test_pods_of_containerd(node: NodeAgent, runtime: Containerd) -> None:
    assert not runtime.network_ready()
    with pytest.raises(Refused):
        runtime.run_pod("early")
    program.write_configuration(runtime.conf_dir, CniSection().conflist)
    eventually(runtime.network_ready)
    web, plain = runtime.run_pod("web", WEB), runtime.run_pod("plain")
    addresses = [runtime.address(sandbox) for sandbox in (web, plain)]
    assert addresses == ["10.244.1.2", "10.244.1.3"]
    assert all(ping(node.place, address, patience_s=10) for address in addresses)
    assert "tcp . 8080" in inside(node.place, "nft", "list", "table", "inet", "podwire-hostport").stdout
    assert {(key.network, item.pod, item.uid) for key, item in node.service.leases.held.items()} == {
        ("podwire", "web", "u1"),
        ("podwire", "plain", "u1"),
    }
    node.stop()
    runtime.stop()
    runtime.start()
    node.start()
    assert all(ping(node.place, address, patience_s=10) for address in addresses)
    assert {web, plain} < set(runtime.pods()), "the pod that could not start waits for its removal"
    for sandbox in runtime.pods():
        runtime.remove_pod(sandbox)
    assert runtime.pods() == []
    assert (node.links(), node.routes(), node.neighbours(), node.service.leases.held) == ([], [], [], {})
    assert "podwire-hostport" not in inside(node.place, "nft", "list", "tables").stdout


@pytest.mark.slow
def test_bandwidth_annotations_limit_pods_of_containerd(node: NodeAgent, runtime: Containerd) -> None:
    conflist = json.loads(CniSection().conflist)
    conflist["plugins"] += [{"type": "bandwidth", "capabilities": {"bandwidth": True}}, {"type": "firewall"}]
    for name in ("bandwidth", "firewall"):
        program.install(runtime.bin_dir, name)
    program.write_configuration(runtime.conf_dir, json.dumps(conflist).encode())
    eventually(runtime.network_ready)
    rates = {"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "4M"}
    limited = runtime.run_pod("limited", annotations=rates)
    shown = inside(node.place, "tc", "-j", "qdisc", "show").stdout
    buckets = {entry["dev"][:3]: entry["options"]["rate"] for entry in json.loads(shown) if entry["kind"] == "tbf"}
    assert sorted(buckets.values()) == [500_000, 1_000_000], "in bytes"
    assert buckets["bwp"] == 500_000
    address = runtime.address(limited)
    assert f"-s {address}/32 -j ACCEPT" in inside(node.place, "iptables-save").stdout
    assert ping(node.place, address, patience_s=10)
    runtime.remove_pod(limited)
    assert (node.links(), node.service.leases.held) == ([], {})
    assert address not in inside(node.place, "iptables-save").stdout


class Churn(threading.Thread):
    """Starts and removes pods as kubelet does: what fails is tried again, a pod under a new identifier."""

    def __init__(self, runtime: Containerd, name: str, rounds: int) -> None:
        super().__init__(daemon=True)
        self._runtime, self._name, self._rounds = runtime, name, rounds
        self.done = 0
        self.addresses: list[str] = []

    def run(self) -> None:
        for number in range(self._rounds):
            self.addresses.append(self._insist(f"{self._name}-{number}"))
            self.done += 1

    def _insist(self, name: str) -> str:
        """The address of a pod that runs."""
        for attempt in range(400):
            try:
                return self._runtime.address(self._runtime.run_pod(f"{name}-{attempt}", uid=f"{name}-{attempt}"))
            except (OSError, Refused):
                time.sleep(0.05)
        raise AssertionError(f"{name} never started")


@pytest.mark.slow
def test_pods_start_while_agent_and_containerd_restart(node: NodeAgent, runtime: Containerd) -> None:
    program.write_configuration(runtime.conf_dir, CniSection().conflist)
    eventually(runtime.network_ready)
    threads = [Churn(runtime, f"pod{number}", 3) for number in range(3)]
    for thread in threads:
        thread.start()
    for restart in range(4):
        done = sum(thread.done for thread in threads)
        eventually(lambda done=done: sum(thread.done for thread in threads) > done or not alive(threads), 60)
        node.stop()
        if restart == 1:
            runtime.stop()
            runtime.start()
        node.start()
    for thread in threads:
        thread.join()
    addresses = [address for thread in threads for address in thread.addresses]
    assert len(addresses) == len(set(addresses)) == 9
    assert all(ping(node.place, address, patience_s=10) for address in addresses)
    while sandboxes := runtime.pods():
        for sandbox in sandboxes:
            runtime.remove_pod(sandbox)
    assert (node.links(), node.routes(), node.neighbours(), node.service.leases.held) == ([], [], [], {})


def alive(threads: list[Churn]) -> bool:
    """Whether a thread still starts pods."""
    return any(thread.is_alive() for thread in threads)


@pytest.mark.slow
def test_node_that_was_switched_off_has_its_addresses_back(node: NodeAgent, runtime: Containerd) -> None:
    program.write_configuration(runtime.conf_dir, CniSection().conflist)
    eventually(runtime.network_ready)
    before = [runtime.run_pod("web", WEB), runtime.run_pod("plain")]
    addresses = [runtime.address(sandbox) for sandbox in before]
    node.stop()
    runtime.power_off()
    inside(node.place, "nft", "flush", "ruleset")
    eventually(lambda: node.links() == [])
    runtime.start()
    node.start()
    assert node.service.leases.held == {}, "the pods are gone, and the agent knows"
    assert set(before) == set(runtime.pods()), "the runtime has them on its disk"
    eventually(runtime.network_ready)
    new = runtime.run_pod("web", WEB, uid="u2")
    address = runtime.address(new)
    assert address not in addresses, "released addresses rest for a while"
    assert ping(node.place, address, patience_s=10)
    for sandbox in before:
        runtime.remove_pod(sandbox)
    assert runtime.pods() == [new]
    assert node.routes() == [address] and ping(node.place, address, patience_s=10)
    runtime.remove_pod(new)
    assert (node.links(), node.routes(), node.neighbours(), node.service.leases.held) == ([], [], [], {})
