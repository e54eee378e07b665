"""Pods of a real containerd and runc, started through CRI."""

import json
import shutil
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
