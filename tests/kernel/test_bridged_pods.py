"""podwire's pods beside pods that the plugin ``bridge`` wired on the same node: packets and policies."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.bridge_pods import NETWORK, BridgeRuntime
from tests.kernel.cni_node import NodeAgent, ping
from tests.kernel.reference_plugins import BRIDGE, PLUGINS

from podwire.agent.config import AgentConfig
from podwire.cni.bridgedpods import OWNER, BridgedPods
from podwire.install import uninstall
from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.kube.resources import NETWORKPOLICIES, PODS
from podwire.runtime.clock import SystemClock

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not shutil.which("bridge", path=PLUGINS), reason="needs containernetworking-plugins"),
]


def test_pods_of_both_plugins_reach_each_other_in_both_families(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make("10.244.1.0/24", "fd00:244:1::/64")
    for setting in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.accept_dad=0"):
        inside(node.place, "sysctl", "-qw", setting)
    runtime = BridgeRuntime(node.place, node.pods, tmp_path / "ipam", *node.cidrs)
    old = runtime.add("old")
    node.stop()
    for file in tmp_path.glob("ipam.db*"):
        file.unlink()
    node.host_local = tmp_path / "ipam" / NETWORK
    node.start()
    new = tuple(node.add("new"))
    assert not set(old) & set(new)
    bridged = BridgedPods(node.service.leases, SystemClock(), node.place)
    node.within(bridged.hold)
    for address in new:
        assert ping(node.pods / "old", address, patience_s=5)
    for address in old:
        assert ping(node.pods / "new", address, patience_s=5)
    share = next(bridged.shares())
    assert [str(line) for line in share.lines()][1:] == [
        *(f"neighbour {address} dev {BRIDGE} proxy proto 116" for address in new),
        f"sysctl net/ipv4/neigh/{BRIDGE}/proxy_delay = 0",
        f"sysctl net/ipv6/conf/{BRIDGE}/proxy_ndp = 1",
        f"sysctl net/ipv6/neigh/{BRIDGE}/proxy_delay = 0",
    ]
    node.call("DEL", "new")
    node.within(bridged.hold)
    assert entries(node) == 0
    node.add("newer")
    node.within(bridged.hold)
    assert entries(node) == 2
    with netns.inside(node.place):
        (step,) = [step for step in uninstall.steps(AgentConfig()) if step.subject == "devices and routes"]
        list(step.run(False))
    assert entries(node) == 0, "podwire uninstall removes them"


def entries(node: NodeAgent) -> int:
    """The number of proxy entries on the node."""
    with Netlink(node.place) as netlink:
        return len(OWNER.share(network.read(netlink, OWNER)).neighbours)


def pod_object(machine: Machine, name: str) -> None:
    spec = {"nodeName": "node-1", "containers": [{"name": "c", "image": "x"}]}
    meta = {"name": name, "namespace": "default", "labels": {"app": name}}
    machine.api("create", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, "default")


def has_address(machine: Machine, name: str, address: str) -> None:
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    machine.api("patch", PODS, name, {"status": status}, "default", subresource="status")


def test_policies_apply_to_pods_of_both_plugins(machine: Machine) -> None:
    machine.add_node(1, ("cni", "routing", "policy"), start=False)
    node, pods = machine.root / "node-1", machine.root / "pods"
    for setting in ("net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"):
        inside(node, "sysctl", "-qw", setting)
    runtime = BridgeRuntime(node, pods, machine.root / "ipam", "10.244.1.0/24")
    old = {name: runtime.add(name)[0] for name in ("old", "older")}
    for name, address in old.items():
        pod_object(machine, name)
        has_address(machine, name, address)
    file = machine.root / "node-1.yaml"
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"cni": {"hostLocal": str(machine.root / "ipam" / NETWORK)}}))
    machine.start_agent("node-1")
    eventually(lambda: machine.ready("node-1"), 60)
    pod_object(machine, "new")
    new = machine.pod("node-1", "new", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=new")
    has_address(machine, "new", new)
    addresses = old | {"new": new}
    assert len(set(addresses.values())) == 3
    pairs = [(a, b) for a in addresses for b in addresses if a != b]
    for source, target in pairs:
        eventually(lambda source=source, target=target: ping(pods / source, addresses[target]))
    for isolated in ("old", "new"):
        deny = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"deny-{isolated}", "namespace": "default"},
            "spec": {"podSelector": {"matchLabels": {"app": isolated}}, "policyTypes": ["Ingress"]},
        }
        machine.api("create", NETWORKPOLICIES, deny, "default")
    for source, target in pairs:
        expected = target not in ("old", "new")
        eventually(lambda s=source, t=target, e=expected: ping(pods / s, addresses[t]) == e)
    assert machine.drift("node-1") == []
